"""Batch invariance: an item's result must not depend on the other items of its pass, not even in the last bit.

A clip bounds a subject's own contribution. It does not bound what the subject's presence does to others: a product over
one row more may add in another order and round every row differently, and parameters can be chosen that turn a last bit
into another gradient. So a backend is run in one of two ways.

A *steady* backend gives the same row for the same item in every batch size and at every position. The order in which a
kernel adds depends on sizes and positions, never on values, and two orders give different results on random numbers.
Each size is therefore tested once, on made-up items that repeat: equal items must give equal rows, the same as in the
other sizes.

Any other backend runs in passes of one size. A unit's position in its pass follows from its own number, not from where
it stands in the batch; empty positions are padded.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.data.subjects import rank_within

LEAST_ROWS = 16
"""Libraries have other kernels for very few rows; shorter batches are filled up."""
WIDE = 32
"""A vectorised function has no remainder, which it would compute value by value, at multiples of this many values."""
LARGER = 8
"""So many larger sizes are tried in the place of one that fails."""
FIRST = 2 * WIDE
"""Rows of the pass that all others are compared with."""
ODD = (16, 17, 27, 33, 50, 98)
FINENESS = 4
"""Sizes are whole multiples of 2^−FINENESS of the next lower power of two: few sizes to try, few rows to fill up."""

Rows = Callable[[int], list[Tensor]]
"""All rows of a pass over so many made-up items, which repeat with a period."""


class PassSizes(Protocol):
    """In which sizes a program may be run."""

    def fit(self, items: int) -> int | None:
        """The smallest trusted size for so many items; None where there is none, and the batch must be divided."""
        ...


class AnySize:
    """For programs that compute one item after the other."""

    def fit(self, items: int) -> int:
        """Just as many."""
        return items


@dataclass(frozen=True)
class FixedPlaces:
    """For programs whose rows depend on where they stand: every pass has as many rows."""

    rows: int = 16

    def fit(self, items: int) -> int:
        """A pass is filled up before it is run."""
        return items

    def passes(self, numbers: NDArray[np.int64], size: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """For units of one size with these numbers: who is at each place of a pass, and whether they belong there.

        A unit's place depends on its number alone. Where the next pass would have no other unit at that place, any unit
        fills it up.
        """
        places = max(1, self.rows // size)
        place = numbers % places
        turn = rank_within(place)
        by_turn = np.argsort(turn, kind="stable")
        for ours in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]) if len(turn) else ():
            chosen, real = np.full(places, ours[0]), np.zeros(places, bool)
            chosen[place[ours]], real[place[ours]] = ours, True
            yield chosen, real


@dataclass(eq=False)
class SteadySizes:
    """Sizes that were tried, and are tried when they first occur."""

    run: Rows
    period: int
    multiple: int
    most: int = sys.maxsize
    """Items that memory allows at once: larger passes do not occur, and are not tried."""
    _first: list[Tensor] = field(default_factory=list)
    _trusted: dict[int, bool] = field(default_factory=dict)

    @staticmethod
    def of(run: Rows, period: int, multiple: int, most: int = sys.maxsize) -> "SteadySizes | None":
        """Trusted sizes among multiples of this, else of WIDE; None where rows depend on the others in both."""
        for each in sorted({multiple, WIDE}):
            tried = SteadySizes(run, period, each, most)
            if all(tried.trusts(size) for size in sorted({round_size_up(size, each) for size in ODD if size <= most})):
                return tried
        return None

    @property
    def largest(self) -> int:
        """The largest size that occurs."""
        return round_size_up(self.most, self.multiple) if self.most < FIRST else sys.maxsize

    def fit(self, items: int) -> int | None:
        """The smallest trusted size for so many items among those that are tried; None where none of them passes.

        A size that fails is passed over for a larger one. So who is there decides how far a pass is filled up, and not
        where groups of the sum are cut. More items than memory allows are never in one pass.
        """
        if items > self.most:
            return None
        size = round_size_up(items, self.multiple)
        tried = size, *(round_size_up(size, WIDE) + k * WIDE for k in range(LARGER))
        return next((each for each in tried if each <= self.largest and self.trusts(each)), None)

    def trusts(self, size: int) -> bool:
        """Whether every row of a pass of this size is what it is in the first one."""
        if size not in self._trusted:
            self._first = self._first or [rows[: self.period].clone() for rows in self.run(min(FIRST, self.largest))]
            found = zip(self.run(size), self._first, strict=True)
            self._trusted[size] = all(self._repeats(rows, first) for rows, first in found)
        return self._trusted[size]

    def _repeats(self, rows: Tensor, first: Tensor) -> bool:
        return _equal(rows, first[torch.arange(rows.shape[0]) % self.period])


def round_size_up(items: int, multiple: int) -> int:
    """The next size that is tried.

    >>> [round_size_up(items, 1) for items in (3, 17, 100, 101, 127, 500)]
    [16, 17, 100, 104, 128, 512]
    """
    items = max(items, LEAST_ROWS)
    step = max(multiple, 1 << max(0, items.bit_length() - 1 - FINENESS))
    return -(-items // step) * step


def _equal(rows: Tensor, others: Tensor) -> bool:
    """Whether all values are the same; what is not a number equals itself here."""
    if rows.shape != others.shape or rows.dtype != others.dtype:
        return False
    return torch.equal(rows, others) or bool(((rows == others) | (rows.isnan() & others.isnan())).all())
