"""What the reference finds on made-up items, in a form that takes little memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from wholegrain.clipping.clip_units import Units

BLOCK = 1 << 16
"""Values of a parameter that are compared as one product."""


@dataclass(frozen=True, eq=False)
class ReferenceResult:
    """What the reference finds for some units: their gradients' norms, and a weighted sum of them, in a sketch."""

    units: Units
    weights: Tensor  # [unit]
    norms: Tensor  # [unit, parameter]
    lengths: Tensor  # [unit]
    sketches: list[Tensor]
    sizes: list[float]
    """How long each parameter's part of the sum may be. A sketch can be much smaller, by chance."""

    @staticmethod
    def of(units: Units, gradients: Callable[[slice], list[Tensor]]) -> "ReferenceResult":
        """From the summed gradients of some items, one unit after the other: a large model's take much memory.

        Only its sketch is kept of each: the sketch of a weighted sum is the weighted sum of the sketches.
        """
        found = [_norms_and_sketches(gradients(items)) for items in _items_of_each(units)]
        norms = torch.stack([norms for norms, _ in found])  # [unit, parameter]
        weights = torch.linspace(1, 2, units.count).to(norms.dtype)
        sketches = [weights @ torch.stack(each) for each in zip(*(each for _, each in found), strict=True)]
        return ReferenceResult(units, weights, norms, norms.norm(dim=1), sketches, (weights @ norms).tolist())


def _items_of_each(units: Units) -> Iterator[slice]:
    for run in units.runs:
        for start in range(run.items.start, run.items.stop, run.size):
            yield slice(start, start + run.size)


def _norms_and_sketches(gradients: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    return torch.stack([gradient.norm() for gradient in gradients]), compute_sketches(gradients)


def compute_sketches(gradients: Iterable[Tensor]) -> list[Tensor]:
    """For each parameter, products of its blocks with one random vector: what differs in the whole differs in these."""
    random = _random_block()
    blocks = [torch.split(gradient.reshape(-1), BLOCK) for gradient in gradients]
    return [torch.stack([block @ random[: len(block)].to(block.dtype) for block in each]) for each in blocks]


@cache
def _random_block() -> Tensor:
    with torch.inference_mode(False):
        return torch.randn(BLOCK, generator=torch.Generator().manual_seed(2))
