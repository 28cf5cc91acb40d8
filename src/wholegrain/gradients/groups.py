"""Groups of the sum: which units are added up together in single precision, and how the groups are added up.

A group is chosen by the subject's own number and its own items in the batch. Groups are summed apart and added up in
double precision. So one subject more or less changes the rounding of its own group alone, and that is bounded: with R
products in a row, and parts whose lengths add up to `load`, by γ_R·load [Higham, §3.1].
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.gradients.rounding import SUM, accumulated, unit_roundoff
from wholegrain.gradients.units import Buckets, Part, Run, Units

BLOCK = 1 << 16
"""Values that are added up at a time, so that they stay in the cache."""
TYPICAL = 3.0
"""How much longer than a gradient its parts together typically are, where it has several. Only speed hangs on it."""
ROUNDINGS = 2
"""Of each product before it is added: by the weight, and of the product itself."""
MOST_SIZES = 64


@dataclass(frozen=True, eq=False)
class Grouping:
    """How many groups there are, from public facts and the shape of the model alone.

    `single`: all units are one group, of whatever size they are, and are computed at once. Otherwise units of so many
    items have `count(items)` groups.
    """

    single: bool
    count: Callable[[int], int]

    def groups(self, units: Units, numbers: NDArray[np.int64] | None) -> Iterator[tuple[Run, Part]]:
        """The groups of some units, whose numbers [unit] are in order within each run; runs, where it is one group."""
        for run in units.runs:
            if numbers is None or self.single:
                yield run, units.part(run, 0, run.count)
                continue
            for start, stop in pairwise(_edges(numbers[run.units], self.count(run.size))):
                yield run, units.part(run, start, stop)


def grouping_for(
    buckets: Buckets, subjects: bool, terms: Callable[[int], int], most_items: int, kind: torch.dtype
) -> Grouping:
    """The grouping of batches, by what is public of them, where a unit of n items adds `terms(n)` products.

    Groups that are computed at once must fit into memory: twice as many as needed, because they differ in size.
    """
    items = buckets.expected_items
    fewest = 1 if items <= most_items else int(np.ceil(2 * items / most_items))
    expected, largest = (buckets.expected_subjects, buckets.largest) if subjects else (items, 1)

    def count(size: int) -> int:
        return max(fewest, int(np.ceil(expected / typical_group(terms(size), kind))))

    sizes = {*range(1, min(largest, MOST_SIZES) + 1), largest}
    return Grouping(all(count(size) == 1 for size in sizes), count)


def typical_group(terms: int, kind: torch.dtype) -> int:
    """Units of so many products each that can usually be summed at once.

    >>> typical_group(1, torch.float32), typical_group(80, torch.float32)
    (258, 15)
    """
    load = 1.0 if terms == 1 else TYPICAL
    return max(1, int((SUM / (unit_roundoff(kind) * terms * load)) ** 0.5) - ROUNDINGS // 2)


def rounding(products: int, load: float, kind: torch.dtype) -> float:
    """How far a sum of so many products, whose lengths add up to `load`, may be off."""
    return accumulated(products + ROUNDINGS, kind) * load


def most_units(terms: int, load: float, allowed: float, kind: torch.dtype) -> int:
    """How many units can be summed at once so that all of them together are off by no more than is allowed."""
    if load <= 0:
        return 1 << 40
    # γ_n is a little more than n·u.
    products = allowed * (1 - SUM) / (load * unit_roundoff(kind)) - ROUNDINGS
    return max(0, int(products // terms))


def divided(run: Run, part: Part, most: int) -> list[Part]:
    """Parts of at most so many units."""
    count, first, items = part.units.stop - part.units.start, part.units.start, part.items.start
    cuts = [*range(0, count, most), count]
    return [
        Part(slice(items + start * run.size, items + stop * run.size), slice(first + start, first + stop))
        for start, stop in pairwise(cuts)
    ]


def add_up(values: Tensor, total: Tensor) -> None:
    """Add single-precision values to a double-precision total, some at a time: at once it is ten times slower."""
    wide = total.new_empty(min(BLOCK, len(total)))
    for some, sums in zip(torch.split(values, BLOCK), torch.split(total, BLOCK), strict=True):
        sums.add_(wide[: len(some)].copy_(some))


def _edges(numbers: NDArray[np.int64], count: int) -> list[int]:
    """Where groups begin and end among numbers that are in order; none is empty."""
    # In which of `count` equal intervals of 0 … 2⁶³ − 1 a number lies.
    group = (numbers >> np.int64(32)) * np.int64(count) >> np.int64(31)
    return [0, *(np.flatnonzero(group[1:] != group[:-1]) + 1).tolist(), len(numbers)]
