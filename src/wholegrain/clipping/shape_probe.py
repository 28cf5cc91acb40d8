"""Finds out which dimension of a tensor counts items, by forward passes over different numbers of items.

A constant may by chance be as long as a batch. So a model is first run with two numbers of items that share no divisor:
a length that follows them counts items, any other does not.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from wholegrain.clipping.layers.base import RuleError

PAIRS = ((5, 7), (11, 13), (17, 19))
"""Numbers of items to try: those after the first are for models that have a constant of such a length."""


class ShapeRecord:
    """Along which dimension each noted tensor counts items, by the order of noting; None for those that do not."""

    def __init__(self) -> None:
        self._axes: list[tuple[int | None, ...]] = []
        self._next = 0
        self.items = 0
        """Of the pass that is probed; 0 in all others."""
        self.found: list[tuple[int | None, ...]] = []

    def begin(self) -> None:
        """A pass begins."""
        self._next = 0

    def axes(self, tensors: Iterable[Tensor]) -> tuple[int | None, ...]:
        """Of these tensors, which must be asked for in every pass in the same order."""
        if self.items:
            axes = tuple(_counting_axis(tensor, self.items) for tensor in tensors)
            self.found.append(axes)
            return axes
        self._next += 1
        if self._next > len(self._axes):
            raise RuleError("it computes something else than it was tried with")
        return self._axes[self._next - 1]

    def keep(self, one: list[tuple[int | None, ...]], other: list[tuple[int | None, ...]]) -> bool:
        """Believe what two passes have found, if they agree."""
        if one != other:
            return False
        self._axes = one
        return True


def _counting_axis(tensor: Tensor, items: int) -> int | None:
    """The first dimension that is a multiple of the items; later ones only where it is just as many."""
    if tensor.dim() and tensor.shape[0] and tensor.shape[0] % items == 0:
        return 0
    return next((d for d, size in enumerate(tensor.shape) if size == items), None)


def copies(inputs: Tensor, items: int) -> Tensor:
    """A batch of so many copies of its first item."""
    return inputs[:1].expand(items, *inputs.shape[1:]).clone()


def outside_watchers() -> Any:
    """Where operations are neither counted nor seen by the watchers of a trial."""
    return torch.utils._python_dispatch._disable_current_modes()
