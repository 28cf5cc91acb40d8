"""Groups of the sum: which units are added up together in single precision, and how the groups are added up.

A group is chosen by the subject's own number and its own items in the batch. Groups are summed apart and added up in
double precision. So one subject more or less changes the rounding of its own group alone, and that is bounded: with R
products in a row, and parts whose lengths add up to `load`, by γ_R·load [Higham, §3.1].
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from wholegrain.clipping.clip_units import Buckets, UnitRange, UnitRun, Units
from wholegrain.clipping.rounding import ADDED, SUM, rounding_bound, unit_roundoff

TYPICAL = 3.0
"""How much longer than a gradient its parts together typically are, where it has several. Only speed hangs on it."""
ROUNDINGS = 2
"""Of each product before it is added: by the weight, and of the product itself."""
FEW = 256
"""Units that a group may have whatever was expected; items, where it is one group."""
LARGEST = 4096
"""Units of one product each are then off by less than SUM·C/3, even one by one."""


@dataclass(frozen=True, eq=False)
class SumGroups:
    """How many groups there are, from public facts and the shape of the model alone.

    `single`: all units are one group, of whatever size they are. Otherwise units of so many items have `count(items)`
    groups. A group of units of so many items that has more than `most(items)` items in all is summed unit by unit.
    """

    single: bool
    count: Callable[[int], int]
    most: Callable[[int], int]

    def groups(self, units: Units, numbers: NDArray[np.int64] | None) -> Iterator[tuple[UnitRun, UnitRange]]:
        """The groups of some units, whose numbers [unit] are in order within each run; runs, where it is one group."""
        for run in units.runs:
            if numbers is None or self.single:
                yield run, units.part(run, 0, run.count)
                continue
            for start, stop in pairwise(_edges(numbers[run.units], self.count(run.size))):
                yield run, units.part(run, start, stop)

    def shares(self, units: Units, numbers: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """Which part of its group's rounding each unit may have [unit]: none where the group has too many units."""
        shares = np.empty(units.count)
        together = units.whole.items.stop if numbers is None or self.single else None
        for run, group in self.groups(units, numbers):
            items = together or group.items.stop - group.items.start
            shares[group.units] = run.size / items if items <= self.most(run.size) else 0.0
        return shares


def plan_groups(
    buckets: Buckets, subjects: bool, terms: Callable[[int], int], most_items: int, kind: torch.dtype
) -> SumGroups:
    """The grouping of batches, by what is public of them, where a unit of n items adds `terms(n)` products."""
    items = buckets.expected_items
    expected = buckets.expected_subjects if subjects else items
    mean = max(1, round(items / expected)) if subjects and expected else 1

    @cache
    def count(size: int) -> int:
        return int(np.ceil(expected / typical_group(terms(size), most_items // size, kind)))

    @cache
    def most(size: int) -> int:
        if single:
            return max(FEW, int(np.ceil(2 * items)))
        return size * max(FEW, int(np.ceil(2 * expected / count(size))))

    single = count(mean) <= 1 and items <= LARGEST
    return SumGroups(single, count, most)


def typical_group(terms: int, at_once: int, kind: torch.dtype) -> int:
    """Units of so many products each that can usually be one group, where memory allows so many `at_once`.

    >>> [typical_group(terms, at_once, torch.float32) for terms, at_once in ((1, 1000), (80, 1000), (1, 64))]
    [258, 15, 1022]
    """
    load = 1.0 if terms == 1 else TYPICAL
    products = SUM / (unit_roundoff(kind) * terms * load)
    fits = int(products**0.5) - ROUNDINGS // 2
    return max(1, fits, min(LARGEST, int(products / (at_once + ROUNDINGS))))


def rounding(products: int, load: float, kind: torch.dtype) -> float:
    """How far a sum of so many products, whose lengths add up to `load`, may be off."""
    return rounding_bound(products + ROUNDINGS, kind) * load


def most_units(terms: int, load: float, allowed: float, kind: torch.dtype) -> int:
    """How many units can be summed at once so that all of them together are off by no more than is allowed."""
    if load <= 0:
        return 1 << 40
    # γ_n is a little more than n·u.
    products = allowed * (1 - SUM) / (load * unit_roundoff(kind)) - ROUNDINGS
    return max(0, int(products // terms))


def narrow_adds(units: int, kind: torch.dtype) -> int:
    """How many sums of parts of so many clipped units can be added up in this precision.

    Each addition is off by at most u times the length of what has been added up: C for each unit.

    >>> narrow_adds(512, torch.float32)
    32
    """
    return int(ADDED / (unit_roundoff(kind) * units)) if units else 0


def split_range(run: UnitRun, part: UnitRange, most: int) -> list[UnitRange]:
    """Parts of at most so many units."""
    count, first, items = part.units.stop - part.units.start, part.units.start, part.items.start
    cuts = [*range(0, count, most), count]
    return [
        UnitRange(slice(items + start * run.size, items + stop * run.size), slice(first + start, first + stop))
        for start, stop in pairwise(cuts)
    ]


def _edges(numbers: NDArray[np.int64], count: int) -> list[int]:
    """Where groups begin and end among numbers that are in order; none is empty."""
    # In which of `count` equal intervals of 0 … 2⁶³ − 1 a number lies.
    group = (numbers >> np.int64(32)) * np.int64(count) >> np.int64(31)
    return [0, *(np.flatnonzero(group[1:] != group[:-1]) + 1).tolist(), len(numbers)]
