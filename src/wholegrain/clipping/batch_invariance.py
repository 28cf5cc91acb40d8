"""Sizes of passes, and passes in which everybody has a place.

A clip bounds a subject's own contribution. It does not bound what the subject's presence does to others: a product over
one row more may add in another order and round every row differently, and parameters can be chosen that turn a last bit
into another gradient. So a program is run in sizes in which its kernels were tried (`kernels`); where there are none,
in passes of one size. A unit's position in its pass then follows from its own number, not from where it stands in the
batch; empty positions are padded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.subjects import rank_within

LEAST_ROWS = 16
"""Libraries have other kernels for very few rows; shorter batches are filled up."""
WIDE = 32
"""A vectorised function has no remainder, which it would compute value by value, at multiples of this many values."""
LARGER = 8
"""So many larger sizes are tried in the place of one that fails."""
FINENESS = 3
"""Sizes are whole multiples of 2^−FINENESS of the next lower power of two: few sizes to try, few rows to fill up."""


class PassSizes(Protocol):
    """In which sizes a program may be run."""

    def fit(self, items: int) -> int | None:
        """The smallest trusted size for so many items; None where there is none, and the batch must be divided."""
        ...


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


def round_size_up(items: int, multiple: int) -> int:
    """The next size that is tried.

    >>> [round_size_up(items, 1) for items in (3, 17, 100, 101, 127, 500)]
    [16, 18, 104, 104, 128, 512]
    """
    items = max(items, LEAST_ROWS)
    step = max(multiple, 1 << max(0, items.bit_length() - 1 - FINENESS))
    return -(-items // step) * step
