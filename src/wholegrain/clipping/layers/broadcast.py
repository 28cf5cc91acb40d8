"""A parameter that meets every item alike: added to it, multiplied with it, or repeated for it.

Position tables, class tokens, the weights of norms that are written by hand, scales and gates. Each item's gradient of
such a parameter is that of the result, summed over the dimensions along which the parameter was repeated.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.layers.base import Gradients, Needed, Outward, RuleError, Space


class PullBack(Protocol):
    """From each unit's gradient of an expression of parameters to the shares of these parameters."""

    def __call__(self, rows: Tensor) -> tuple[Share, ...]:
        """Of rows [unit, *shape of the expression]."""
        ...


class Sum:
    """x + e, or x − e with `sign` −1; items are counted along dimension `axis` of x."""

    def __init__(self, e: Tensor, pull_back: PullBack, axis: int, sign: int = 1) -> None:
        self._e, self._pull_back, self._axis, self._sign = e.detach(), pull_back, axis, sign

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """One operation for each value."""
        (x,) = inputs
        return torch.add(x, self._e, alpha=self._sign), x.shape

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """The gradient as it is; the parameter's rows are sums of it."""
        (g,) = outward
        assert g is not None
        rows = sum_to_rows(g, self._e, self._axis, space.items)
        rows = rows if self._sign > 0 else -rows
        return (g.sum_to_size(saved) if needed[0] else None,), self._pull_back(space.units.pool(rows))


class Product:
    """x · e."""

    def __init__(self, e: Tensor, pull_back: PullBack, axis: int) -> None:
        self._e, self._pull_back, self._axis = e.detach(), pull_back, axis

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """One operation for each value."""
        (x,) = inputs
        return x * self._e, x

    def backward(self, space: Space, saved: Tensor, outward: Outward, needed: Needed) -> Gradients:
        """Each factor's gradient is that of the product times the other factor."""
        (g,) = outward
        assert g is not None
        rows = sum_to_rows(g * saved, self._e, self._axis, space.items)
        gx = (g * self._e).sum_to_size(saved.shape) if needed[0] else None
        return (gx,), self._pull_back(space.units.pool(rows))


class Repeat:
    """The same values for every item, as `expand` and `repeat` give them."""

    def __init__(self, e: Tensor, pull_back: PullBack, repeat: Callable[[Tensor], Tensor]) -> None:
        self._e, self._pull_back, self._repeat = e.detach(), pull_back, repeat

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """A copy for each item."""
        return self._repeat(self._e).contiguous(), None

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """Each item's gradient of its own copy."""
        (g,) = outward
        assert g is not None
        return (), self._pull_back(space.units.pool(sum_to_rows(g, self._e, 0, space.items)))


def sum_to_rows(values: Tensor, e: Tensor, axis: int, items: int) -> Tensor:
    """Values with items along `axis` as rows [item, *e.shape]: summed where e was repeated.

    The first dimension may count positions of items as well.

    >>> sum_to_rows(torch.ones(2, 3, 4), torch.zeros(4), 0, items=2)
    tensor([[3., 3., 3., 3.],
            [3., 3., 3., 3.]])
    >>> sum_to_rows(torch.ones(6, 4), torch.zeros(4), 0, items=2)[0]
    tensor([3., 3., 3., 3.])
    """
    if axis == 0 and values.shape[0] != items:
        if values.shape[0] % items or e.dim() >= values.dim():
            raise RuleError(f"a tensor of shape {list(values.shape)} does not count {items} items")
        values = values.reshape(items, -1, *values.shape[1:])
    shape = (1,) * (values.dim() - e.dim()) + tuple(e.shape)
    if len(shape) != values.dim() or shape[axis] != 1:
        raise RuleError(f"a parameter of shape {list(e.shape)} has a value for each item")
    rows = values.movedim(axis, 0)
    kept = shape[:axis] + shape[axis + 1 :]
    repeated = tuple(d + 1 for d, size in enumerate(kept) if size == 1 and rows.shape[d + 1] != 1)
    rows = rows.sum(repeated, keepdim=True) if repeated else rows
    if tuple(rows.shape[1:]) != kept:
        raise RuleError(f"a parameter of shape {list(e.shape)} is repeated in another way than by broadcasting")
    return rows.reshape(rows.shape[0], *e.shape)
