"""What a model's first step takes beside the step itself."""

import subprocess
import sys
from pathlib import Path

import pytest

# A process of its own, because a peak is a whole process's. Vectors are so large that each is mapped by itself, and
# given back when it is freed; a small model goes first, so that libraries are in memory.
FIRST_STEP = """
import sys
import torch
from torch import nn
from wholegrain.gradients.engine import BookKeeping
from wholegrain.gradients.parameters import flatten
from wholegrain.gradients.clipping import Clip, ClipPer, Pool

def resident(entry):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(entry + ":"))

def step(width):
    model = nn.Linear(width, width)
    vector, items = flatten(model), torch.ones(4, width)
    held = resident("VmRSS")
    clip = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
    BookKeeping(model, nn.functional.cross_entropy)(vector, items, torch.arange(4), torch.tensor([0, 1, 1, 2]), clip)
    return (resident("VmHWM") - held) / (4 * len(vector))

torch.set_num_threads(1)
step(64)
print(step(4096), "torch._dynamo" in sys.modules)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.slow
def test_the_trial_holds_three_vectors_and_loads_no_compiler() -> None:
    """The parameters it is made at, an item's gradient, and the next one's that is added to it."""
    ran = subprocess.run([sys.executable, "-c", FIRST_STEP], capture_output=True, text=True, check=True)
    vectors, compiler = ran.stdout.split()
    assert float(vectors) < 3.5
    assert compiler == "False"
