"""Items, targets and parameters that are made up to test a backend with. They have the data's shapes only."""

from collections.abc import Iterator

import torch
from torch import Tensor

TRIAL = 3
"""Items that a program is compared with the reference on."""
PERIOD = 31
"""How many different items a pass has that is tested for rows that depend on each other."""
FEW = 7
"""And where passes are so small that so many would not repeat."""


def make_items(given: Tensor) -> Iterator[Tensor]:
    """Values of the same kind that differ from item to item.

    Numbers between 0 and 1, then of either sign with one item much larger than the others; where they are whole
    numbers, 0 and 1, then 1 alone.
    """
    shape, draws = (TRIAL, *given.shape[1:]), torch.Generator().manual_seed(0)
    if given.is_floating_point():
        yield torch.rand(shape, dtype=given.dtype, generator=draws)
        wide = torch.randn(shape, dtype=given.dtype, generator=draws).mul_(3)
        wide[-1] *= 100
        yield wide
        return
    mixed = torch.randint(2, shape, generator=draws).to(given.dtype)
    if given.dim() == 1:
        mixed[0], mixed[1] = 0, 1
    yield from (mixed, torch.ones_like(mixed), torch.zeros_like(mixed))


def vary_items(made_up: Tensor) -> Tensor:
    """Many more items of the same kind, of numbers so different in size that every order of adding them up shows."""
    draws, shape = torch.Generator().manual_seed(3), (PERIOD, *made_up.shape[1:])
    if not made_up.is_floating_point():
        whole = torch.randint(2, shape, generator=draws).to(made_up.dtype)
        return whole.clamp(int(made_up.min()), int(made_up.max()))
    exponents = torch.randint(-6, 7, shape, generator=draws).to(made_up.dtype)
    return torch.randn(shape, dtype=made_up.dtype, generator=draws) * 2**exponents


def zero_items(given: Tensor) -> Tensor:
    """For models that can take no other number."""
    return given.new_zeros(TRIAL, *given.shape[1:])


def perturb(vector: Tensor) -> Tensor:
    """Parameters off any symmetric beginning, where many gradients are zero and agree by chance."""
    elsewhere = vector.new_empty(vector.shape).normal_(0, 0.05, generator=torch.Generator().manual_seed(1))
    return elsewhere.add_(vector.detach()).nan_to_num_(0.0, 0.0, 0.0)
