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
class Run:
    """Neighbouring units that have the same number of items."""

    items: slice
    units: slice
    count: int
    size: int


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a batch, in runs."""

    runs: tuple[Run, ...]
    count: int
    sizes: Tensor | None  # [unit]; None where every unit is one item

    @staticmethod
    @lru_cache
    def of_items(count: int) -> "Units":
        """Each item by itself.

        >>> Units.of_items(3).runs
        (Run(items=slice(0, 3, None), units=slice(0, 3, None), count=3, size=1),)
        """
        return Units((Run(slice(0, count), slice(0, count), count, 1),), count, None)

    @staticmethod
    def of_sizes(sizes: NDArray[np.int64]) -> "Units":
        """Units of these sizes, which must not decrease.

        >>> [(run.count, run.size) for run in Units.of_sizes(np.array([1, 1, 4])).runs]
        [(2, 1), (1, 4)]
        """
        runs, item, unit = [], 0, 0
        for size, same in groupby(sizes.tolist()):
            count = len(list(same))
            runs.append(Run(slice(item, item + size * count), slice(unit, unit + count), count, size))
            item, unit = item + size * count, unit + count
        return Units(tuple(runs), unit, torch.from_numpy(sizes))

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


def arranged(groups: Tensor) -> tuple[Tensor | None, NDArray[np.int64]]:
    """The order that puts a batch into runs (None where it already is), and the sizes of its subjects in that order.

    >>> arranged(torch.tensor([0, 1, 0]))
    (tensor([1, 0, 2]), array([1, 2]))
    >>> arranged(torch.tensor([0, 1, 1]))
    (None, array([1, 2]))
    """
    numbers = groups.numpy()
    if (numbers[1:] >= numbers[:-1]).all():
        sizes = np.bincount(numbers)
        if (sizes[1:] >= sizes[:-1]).all() and sizes[0] > 0:
            return None, sizes
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    order = np.lexsort((inverse, counts[inverse]))
    return torch.from_numpy(order), np.sort(counts)
