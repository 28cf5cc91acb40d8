"""Coins of compiled simulations: one for each item or subject, drawn and put in order by the C program.

A coin is 64 bits of two words of Philox, a function of the silo's key in this round, of the draw and of the place that
it is for. `toss` says in numpy what the program (program/draws.c) does. Laws that there is no program for are
numpy's: choices of a fixed size, caps on a subject's items, and rates so small that a coin for everybody takes longer.
Reproducible, and therefore for simulation only.
"""

import ctypes
from functools import cache, cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.draws import NumpyDraws, Positions
from wholegrain.data.subjects import SubjectIndex
from wholegrain.silo.c_library import load_library
from wholegrain.silo.counter_noise import COUNTERS, GROUP, Words, philox, words_of

COINS = GROUP // 2
"""In a group of words."""
LEAST_RATE = 1 / 64
"""For lower ones, numpy draws the number of all who are in, and then them."""


class CounterCoins:
    """`Draws` that can make whole batches; see `data.sampling.BatchDraws`."""

    def __init__(self, key: int) -> None:
        self._key, self._next = key, 0
        self._words = words_of(key)
        self._place = self._words.ctypes.data

    @cached_property
    def _others(self) -> NumpyDraws:
        return NumpyDraws(np.random.default_rng(self._key))

    def subset(self, count: int, rate: float, *, shuffled: bool) -> Positions:
        """As numpy draws it."""
        return self._others.subset(count, rate, shuffled=shuffled)

    def choose(self, count: int, size: int) -> Positions:
        """As numpy draws it."""
        return self._others.choose(count, size)

    def shuffle(self, positions: Positions) -> Positions:
        """As numpy draws it."""
        return self._others.shuffle(positions)

    def draw_batch(self, index: SubjectIndex, rate: float, by_subject: bool) -> tuple[Positions, Positions] | None:
        """Items and their groups, as `data.sampling.Batch` has them, or None where that is left to numpy.

        Guarantee: a coin depends on no other item or subject.
        """
        if rate < LEAST_RATE or not index.items:
            return None
        places, room = ctypes.byref(places_of(index)), index.items
        memory = np.empty(7 * room + 2, np.int64)  # items, groups, and what the program needs
        place = memory.ctypes.data
        found = _draw_batch()(
            self._place, self._next, last_coin(rate), places, by_subject, place + 16 * room, place, place + 8 * room
        )
        self._next += -(-(len(index.counts) if by_subject else room) // COINS)
        return memory[:found].copy(), memory[room : room + found].copy()


def last_coin(rate: float) -> int:
    """The largest that says yes; scaling by a power of two is exact, so never more often than at the rate."""
    return int(rate * 2.0**64) - 1


def toss(key: Words, group: int, count: int) -> NDArray[np.uint64]:
    """So many coins from a group of words on, as the C program tosses them."""
    groups = -(-count // COINS)
    counters = np.arange(group * COUNTERS, (group + groups) * COUNTERS, dtype=np.uint64)
    words = philox(counters, key).reshape(2, 2, groups, COUNTERS).astype(np.uint64)
    coins = words[:, 0] | words[:, 1] << np.uint64(32)
    return coins.transpose(1, 0, 2).reshape(-1)[:count]


class IndexPlaces(ctypes.Structure):
    """Where an index lies in memory, as in program/draws.c."""

    kept: tuple[Positions, ...]
    """The arrays themselves, which must live as long."""
    _fields_ = (
        ("order", ctypes.c_void_p),
        ("owners", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("items", ctypes.c_int64),
        ("subjects", ctypes.c_int64),
    )


_PLACES: WeakKeyDictionary[SubjectIndex, IndexPlaces] = WeakKeyDictionary()


def places_of(index: SubjectIndex) -> IndexPlaces:
    """Where this index lies, found once."""
    found = _PLACES.get(index)
    if found is None:
        arrays = (index.order, index.subjects[index.order], index.starts, index.counts)
        kept = tuple(np.ascontiguousarray(each, np.int64) for each in arrays)
        found = IndexPlaces(*(each.ctypes.data for each in kept), index.items, len(index.counts))
        found.kept = kept
        _PLACES[index] = found
    return found


@cache
def _draw_batch() -> Any:
    function = load_library().wholegrain_draw_batch
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    function.restype = ctypes.c_int64
    function.argtypes = (pointer, number, number, pointer, ctypes.c_int64, pointer, pointer, pointer)
    return function
