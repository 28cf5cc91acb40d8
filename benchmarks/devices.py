"""What a private step costs on each device and in each precision that this machine has, beside plain SGD there.

Run: python benchmarks/devices.py

A batch of 32 subjects with 8 items each, clipped per subject, one thread on the CPU. "float32" on the CPU is the usual
engine; all other rows compute each subject in passes of its own. Then noise, which is made on the host for every
device: a device waits for it, and for its way there.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.devices import DEVICES, HOST, PRECISIONS, Compute
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.trial_items import perturb
from wholegrain.errors import SpecError
from wholegrain.models.model_catalog import build
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.secure_noise import SecureNoise

SUBJECTS, ITEMS, CLASSES = 32, 8, 10
VALUES = 1 << 22
FEATURES, MODELS = 784, ("mlp", "small_cnn")


def there() -> Iterator[Compute]:
    """The devices and precisions of this machine."""
    for device in DEVICES:
        for precision in PRECISIONS:
            try:
                yield Compute.of(device, precision)
            except SpecError:
                continue


def seconds(compute: Compute, call: Callable[[], object], repeats: int) -> float:
    """The median time of a call: of the processor on the CPU, which others may use as well; on a device, of a clock."""
    clock = time.process_time if compute.device == HOST else time.perf_counter
    found = []
    for _ in range(repeats + 1):
        begun = clock()
        call()
        if compute.device.type == "cuda":
            torch.cuda.synchronize()
        if compute.device.type == "mps":
            torch.mps.synchronize()
        found.append(clock() - begun)
    return statistics.median(found[1:])  # the first one tries the device


def plain_step(model: nn.Module, compute: Compute, inputs: Tensor, targets: Tensor) -> Callable[[], object]:
    """The mean gradient of the whole batch, on the device and in the precision."""
    placed, x, y = model.to(compute.device), inputs.to(compute.device), targets.to(compute.device)

    def step() -> None:
        with compute.settings():
            with compute.narrow():
                loss = cross_entropy(placed(x), y)
            torch.autograd.grad(loss, [p for p in placed.parameters() if p.requires_grad])

    return step


def main() -> None:
    """Two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    clip = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
    print("| model | where | plain SGD, ms | private, ms | ratio |\n| --- | --- | ---: | ---: | ---: |")
    for name in MODELS:
        inputs = torch.randn(SUBJECTS * ITEMS, FEATURES, generator=draws)
        targets = torch.randint(CLASSES, (SUBJECTS * ITEMS,), generator=draws)
        groups = torch.arange(SUBJECTS * ITEMS) // ITEMS
        for compute in there():
            model = build(name, FEATURES, CLASSES, seed=0)
            vector = perturb(flatten(model)).to(compute.place)  # some layers begin at zero
            engine = clipped_sums(model, cross_entropy, compute)
            private = seconds(compute, lambda: engine(vector, inputs, targets, groups, clip), repeats)  # noqa: B023
            plain = seconds(compute, plain_step(deepcopy(model), compute, inputs, targets), repeats)
            print(
                f"| {name} | {compute} | {plain * 1e3:.1f} | {private * 1e3:.1f} | {private / plain:.1f} |", flush=True
            )
    print("\n| noise | sum on | ns for a value |\n| --- | --- | ---: |")
    for source in (SeededNoise(0), SecureNoise()):
        for compute in {each.place: each for each in there()}.values():
            total, stream = torch.zeros(VALUES, dtype=torch.float64, device=compute.place), source.stream(0, "north")
            spent = seconds(compute, lambda: stream.add_to(total, 1.0, 1.0), repeats)  # noqa: B023
            print(f"| {source.name.split()[0]} | {compute.place} | {spent / VALUES * 1e9:.1f} |", flush=True)


if __name__ == "__main__":
    main()
