"""What a model's first step takes beside the step itself, and what steps leave behind."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten

# A process of its own, because a peak is a whole process's. Vectors are so large that each is mapped by itself, and
# given back when it is freed; a small model goes first, so that libraries are in memory.
FIRST_STEP = """
import sys
import torch
from torch import nn
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.clipping import Clip, ClipPer, Pool

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
def test_the_first_step_holds_five_vectors_and_loads_no_compiler() -> None:
    """The sum, parameters that are made up, weights drawn for a kernel, and what the kernel makes of them."""
    ran = subprocess.run([sys.executable, "-c", FIRST_STEP], capture_output=True, text=True, check=True)
    vectors, compiler = ran.stdout.split()
    assert float(vectors) < 5.5
    assert compiler == "False"


class ByHand(nn.Module):
    """A product and a look-up that are written out, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.weight = nn.Parameter(torch.randn(50, 8)), nn.Parameter(torch.randn(8, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        """[item, position] to [item, class]."""
        return (nn.functional.embedding(tokens, self.table) @ self.weight).mean(1)


def test_a_step_leaves_nothing_in_memory() -> None:
    """Layers that are found in operations have the same buffers in every step."""
    model, clip = ByHand(), Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    engine, vector = BookKeeping(model, nn.functional.cross_entropy), flatten(model)
    tokens, classes = torch.arange(160).view(32, 5) % 50, torch.arange(32) % 4

    def tensors_after(steps: int) -> int:
        for _ in range(steps):
            engine(vector, tokens, classes, torch.arange(32), clip)
        gc.collect()
        return sum(type(each) is Tensor for each in gc.get_objects())

    assert tensors_after(2) == tensors_after(5)
