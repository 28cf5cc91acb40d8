"""Whose gradients are clipped as one: items, or subjects with all their items in the batch.

Everything downstream treats both alike, because an item is a unit of one item. Items must lie in the batch unit by
unit, and units of one size side by side; then every computation over units is a view, not a copy.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class UnitRun:
    """Neighbouring units that have the same number of items."""

    items: slice
    units: slice
    count: int
    size: int


@dataclass(frozen=True)
class UnitRange:
    """Neighbouring units of one run, or all units there are, and their items."""

    items: slice
    units: slice


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a batch."""

    count: int
    items: int
    sizes: Tensor | None  # [unit]; None where every unit is one item

    @staticmethod
    @lru_cache
    def of_items(count: int) -> "Units":
        """Each item by itself.

        >>> Units.of_items(3).runs
        (UnitRun(items=slice(0, 3, None), units=slice(0, 3, None), count=3, size=1),)
        """
        return Units(count, count, None)

    @staticmethod
    def of_sizes(sizes: NDArray[np.int64]) -> "Units":
        """Units of these sizes, which must not decrease.

        >>> [(run.count, run.size) for run in Units.of_sizes(np.array([1, 1, 4])).runs]
        [(2, 1), (1, 4)]
        """
        return Units(len(sizes), int(sizes.sum()), torch.from_numpy(sizes))

    @cached_property
    def runs(self) -> tuple[UnitRun, ...]:
        """Neighbouring units of one size; made when asked for, because small models never ask."""
        if self.sizes is None:
            return (UnitRun(slice(0, self.count), slice(0, self.count), self.count, 1),)
        runs, item, unit = [], 0, 0
        for size, same in groupby(self.sizes.tolist()):
            count = len(list(same))
            runs.append(UnitRun(slice(item, item + size * count), slice(unit, unit + count), count, size))
            item, unit = item + size * count, unit + count
        return tuple(runs)

    def run_of(self, unit: int) -> UnitRun:
        """The run that has this unit."""
        return next(run for run in self.runs if unit < run.units.stop)

    @cached_property
    def whole(self) -> UnitRange:
        """All units."""
        return UnitRange(slice(0, self.items), slice(0, self.count))

    @cached_property
    def of_item(self) -> Tensor:
        """The unit of each item [item]."""
        if self.sizes is None:
            return torch.arange(self.count)
        return torch.from_numpy(np.repeat(np.arange(self.count), self.sizes.numpy()))

    def pool(self, rows: Tensor) -> Tensor:
        """Sum rows [item, ...] within each unit: [unit, ...]."""
        if self.sizes is None:
            return rows
        return rows.new_zeros(self.count, *rows.shape[1:]).index_add_(0, self.of_item, rows)

    def spread(self, values: Tensor) -> Tensor:
        """One value per unit [unit] as one per item [item]."""
        return values if self.sizes is None else values[self.of_item]

    def pad(self, more: int) -> "Units":
        """With so many units of one item behind them."""
        if not more:
            return self
        if self.sizes is None:
            return Units.of_items(self.count + more)
        return Units.of_sizes(np.append(self.sizes.numpy(), np.ones(more, np.int64)))

    def part(self, run: UnitRun, start: int, stop: int) -> UnitRange:
        """Units of a run, counted from its first."""
        items, units = run.items.start, run.units.start
        return UnitRange(slice(items + start * run.size, items + stop * run.size), slice(units + start, units + stop))


@dataclass(eq=False)  # not frozen: one is made for each step, and freezing triples its cost
class Buckets:
    """In which group of the sum a subject is added up: by a number of its own, never by its place in the batch.

    `table` has a number for each item of a silo, alike for all items of a subject (see `scatter_codes`); `items` are
    those of the batch. The rest is public: how many subjects and items a batch is expected to have, and the most
    items that one subject can have in it. Groups are made from these alone. One subject more or less then changes its
    own group, and every other group stays the same to the last bit.
    """

    table: NDArray[np.int64]
    items: NDArray[np.int64]
    expected_subjects: float
    expected_items: float
    largest: int

    @staticmethod
    def of(groups: Tensor) -> "Buckets":
        """For a batch of which nothing is publicly known: what is seen stands in."""
        sizes = torch.bincount(groups)
        items = np.arange(len(groups))
        return Buckets(scatter_codes(groups.numpy()), items, float(len(sizes)), float(len(items)), int(sizes.max()))

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Of the batch's items."""
        return self.table[self.items]


def scatter_codes(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Subjects' codes, scattered over 0 … 2⁶³ − 1, each by itself [SplitMix64; Steele, Lea and Flood 2014]."""
    with np.errstate(over="ignore"):
        mixed = codes.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(1)).astype(np.int64)


def sort_into_runs(groups: Tensor, numbers: NDArray[np.int64] | None = None) -> tuple[Tensor | None, NDArray[np.int64]]:
    """The order that puts a batch into runs (None where it already is), and the sizes of its subjects in that order.

    With `numbers` [item], subjects of one size are in their order.

    >>> sort_into_runs(torch.tensor([0, 1, 0]))
    (tensor([1, 0, 2]), array([1, 2]))
    >>> sort_into_runs(torch.tensor([0, 1, 1]))
    (None, array([1, 2]))
    """
    members = groups.numpy()
    if numbers is None and (members[1:] >= members[:-1]).all():
        sizes = np.bincount(members)
        if (sizes[1:] >= sizes[:-1]).all() and sizes[0] > 0:
            return None, sizes
    _, inverse, counts = np.unique(members, return_inverse=True, return_counts=True)
    keys = (inverse, counts[inverse]) if numbers is None else (inverse, numbers, counts[inverse])
    return torch.from_numpy(np.lexsort(keys)), np.sort(counts)
