"""Where shares add up their weighted gradients: in their own precision, or part by part in double precision.

A model's parameters are larger than a cache. So a product is made a few rows at a time and added while it is still
there, and a sum that begins is written instead of being set to zero first.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wholegrain.clipping.parameters import Slot, Views
from wholegrain.clipping.products import add_product
from wholegrain.clipping.rounding import VECTOR_BYTES

PRODUCT = 1 << 20
"""Values of a product that are made at a time, 4 MB of float32: with fewer, factors are packed too often."""
BLOCK = 1 << 16
"""Values that are added up at a time, so that they stay in the cache."""


class ParameterSums(Protocol):
    """A sum for each parameter, to which shares add."""

    def add_product(self, slot: Slot, left: Tensor, right: Tensor) -> None:
        """Add left [row, k] times right [k, column]."""
        ...

    def add_rows(self, slot: Slot, rows: Tensor, weights: Tensor) -> None:
        """Add Σ_k weight_k · row_k, of rows [k, value]."""
        ...

    def add_at(self, slot: Slot, places: Tensor, rows: Tensor) -> None:
        """Add rows [k, value] to the parameter's rows at these places [k]."""
        ...

    def add(self, slot: Slot, values: Tensor) -> None:
        """Add values that have the parameter's shape."""
        ...


class LazyZeros:
    """A vector of zeros that are written only where nothing is added: until then its values are whatever was there."""

    def __init__(self, total: Views) -> None:
        self._total, self._begun = total, set[str]()

    def take(self, slot: Slot) -> tuple[Tensor, bool]:
        """A slot's part, and whether it holds a sum already; if not, it is to be written and not added to."""
        begun = slot.name in self._begun
        self._begun.add(slot.name)
        return slot.of(self._total.views), begun

    def settle(self) -> Tensor:
        """The vector, with zeros where nothing was added."""
        vector, views = self._total
        if len(self._begun) < len(views):
            for name in views.keys() - self._begun:
                views[name].zero_()
            self._begun.update(views)
        return vector

    @property
    def begun(self) -> bool:
        """Whether anything was added."""
        return bool(self._begun)

    def clear(self) -> None:
        """Begin again."""
        self._begun.clear()


class SplitTotal:
    """A sum of parts: as many as rounding allows in their own precision, and all others in double precision.

    Double precision takes twice the memory, and adding up large models is as slow as memory is.
    """

    def __init__(self, wide: LazyZeros, narrow: LazyZeros | None = None, adds: int = 0, units: int = 1) -> None:
        """`adds` additions to a sum that is as long as `units` clip norms are bounded in its own precision."""
        self.wide, self._narrow, self._left, self._units = wide, narrow, float(adds), units

    def take(self, uses: int = 1, load: float = 0.0) -> LazyZeros:
        """Where the next part is to be added, in so many additions to one parameter.

        Where these are several, each may be as long as `load` clip norms, however short they are together.
        """
        adds = uses if uses == 1 else uses * (1 + load / self._units)
        if self._narrow is None or self._left < adds:
            return self.wide
        self._left -= adds
        return self._narrow

    def settle(self) -> Tensor:
        """The whole sum; in double precision where anything was added in it."""
        if self._narrow is None or not self._narrow.begun:
            return self.wide.settle()
        return self.wide.settle().add_(self._narrow.settle()) if self.wide.begun else self._narrow.settle()


class SingleSums:
    """In the precision of the shares."""

    def __init__(self, total: LazyZeros) -> None:
        self._total = total

    def add_product(self, slot: Slot, left: Tensor, right: Tensor) -> None:
        """By one product."""
        view, begun = self._total.take(slot)
        if slot.turned:
            left, right = right.t(), left.t()
        add_product(view, left, right, begun=begun)

    def add_rows(self, slot: Slot, rows: Tensor, weights: Tensor) -> None:
        """By one product with a vector."""
        view, begun = self._total.take(slot)
        (view if view.dim() == 1 else view.view(-1)).addmv_(rows.t(), weights, beta=int(begun))

    def add_at(self, slot: Slot, places: Tensor, rows: Tensor) -> None:
        """By a scatter."""
        view, begun = self._total.take(slot)
        (view if begun else view.zero_()).index_add_(0, places, rows)

    def add(self, slot: Slot, values: Tensor) -> None:
        """As they are."""
        view, begun = self._total.take(slot)
        if begun:
            view.add_(values.view(view.shape))
        else:
            view.copy_(values.view(view.shape))


@dataclass(frozen=True, eq=False)
class AddBuffers:
    """Memory that sums in double precision use from step to step: fresh memory costs as much as adding up does."""

    product: Tensor  # in the precision of the shares
    wide: Tensor  # in double precision

    @staticmethod
    @torch.inference_mode(False)
    def like(vector: Tensor) -> "AddBuffers":
        """For gradients of this vector's kind and size."""
        size = vector.numel()
        return AddBuffers(vector.new_empty(min(PRODUCT, size)), torch.empty(min(BLOCK, size), dtype=torch.float64))


class WideSums:
    """In double precision: every product is made in the precision of the shares, and then added."""

    def __init__(self, total: LazyZeros, buffers: AddBuffers) -> None:
        self._total, self._product, self._wide = total, buffers.product, buffers.wide

    def add_product(self, slot: Slot, left: Tensor, right: Tensor) -> None:
        """Some rows at a time."""
        if slot.turned:
            slot, left, right = slot.plain, right.t(), left.t()
        width = right.shape[1]
        if width > self._product.shape[0]:
            self.add(slot, torch.mm(left, right))
            return
        total, begun = self._total.take(slot)
        step = self._product.shape[0] // width
        for start in range(0, left.shape[0], step):
            rows = left[start : start + step]
            made = self._product[: rows.shape[0] * width]
            add_product(made.view(rows.shape[0], width), rows, right, begun=False)
            self._add(made, total[start : start + step].view(-1), begun)

    def add_rows(self, slot: Slot, rows: Tensor, weights: Tensor) -> None:
        """By one product with a vector."""
        self.add(slot, torch.mv(rows.t(), weights))

    def add_at(self, slot: Slot, places: Tensor, rows: Tensor) -> None:
        """By a scatter into a table of zeros."""
        total, begun = self._total.take(slot)
        table = rows.new_zeros(total.shape).index_add_(0, places, rows)
        self._add(table.view(-1), total.view(-1), begun)

    def add(self, slot: Slot, values: Tensor) -> None:
        """Values in single precision."""
        total, begun = self._total.take(slot)
        self._add(values.reshape(-1), total.view(-1), begun)

    def _add(self, values: Tensor, total: Tensor, begun: bool) -> None:
        """Some at a time: at once it is ten times slower."""
        if not begun:
            total.copy_(values)
        elif values.dtype is total.dtype:
            total.add_(values)
        elif values.shape[0] <= self._wide.shape[0]:
            total.add_(self._wide[: values.shape[0]].copy_(values))
        else:
            for some, sums in zip(torch.split(values, BLOCK), torch.split(total, BLOCK), strict=True):
                sums.add_(self._wide[: some.shape[0]].copy_(some))


def align(rows: Tensor) -> Tensor:
    """The same at a place where vectors begin: elsewhere libraries may add up in another order.

    What a group of units adds up to must not depend on where its rows stand among those of others.
    """
    return rows if rows.data_ptr() % VECTOR_BYTES == 0 else rows.clone(memory_format=torch.preserve_format)
