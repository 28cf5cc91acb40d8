"""One stretch of memory that a pass cuts its large tensors from, step after step.

A fresh large tensor costs page faults, and blocks of many sizes leave holes in a heap. Here what one tensor returns
joins what lies free beside it, so that gradients of units fit where activations were that the way back is done with.
"""

import weakref
from functools import partial

import numpy as np
from numpy.typing import NDArray

VECTOR_BYTES = 64
"""Where the widest vectors begin in memory."""

Bytes = NDArray[np.uint8]
Place = tuple[int, int]
"""Where a block begins and ends in the stretch; (-n, 0) for n bytes that lie elsewhere."""
Lent = dict[int, tuple["weakref.ref[Bytes]", Place]]


class LentMemory:
    """Lends blocks; one is free again once nothing refers to it, not even a view.

    What does not fit lies in memory of its own. Once everything has been returned, the stretch grows by what did not
    fit, so after a few passes everything does.
    """

    def __init__(self) -> None:
        self._stretch = aligned_bytes(0)
        self._free: list[Place] = []  # in order, no two of them side by side
        self._lent: Lent = {}
        self._returned: list[Place] = []
        self._beyond = self._most_beyond = 0

    @property
    def bytes(self) -> int:
        """Of the stretch, and of what is lent beside it."""
        return len(self._stretch) + self._beyond

    def lend(self, wanted: int) -> Bytes:
        """A block that begins where vectors do; its values are whatever was there."""
        self._take_back()
        if not self._lent and self._most_beyond:
            self._grow()
        size = -(-wanted // VECTOR_BYTES) * VECTOR_BYTES
        place = self._cut(size)
        if place is None:
            place, block = (-size, 0), _block_of(aligned_bytes(wanted))
            self._beyond += size
            self._most_beyond = max(self._most_beyond, self._beyond)
        else:
            block = _block_of(self._stretch[place[0] : place[0] + wanted])
        # Memory is freed at any time, also while this object is at work: so a block is only noted then.
        watched = weakref.ref(block, partial(_note, self._lent, self._returned))
        self._lent[id(watched)] = watched, place
        return block

    def forget(self) -> None:
        """Begin anew; what is still referred to stays until it is not, and does not come back here."""
        self._lent, self._returned = {}, []
        self._stretch, self._free = aligned_bytes(0), []
        self._beyond = self._most_beyond = 0

    def _grow(self) -> None:
        """A larger stretch, while nothing is lent."""
        # Blocks that were returned a moment ago are of the old one: in the new one they would be lent twice. Another
        # thread may be about to note one, so that they have a list of their own.
        self._returned = []
        self._beyond = 0
        size = len(self._stretch) + self._most_beyond
        self._stretch = aligned_bytes(0)  # the old one is gone before the new one comes, and so is what did not fit
        self._stretch, self._free, self._most_beyond = aligned_bytes(size), [(0, size)], 0

    def _cut(self, size: int) -> Place | None:
        """The first place that is large enough."""
        for index, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[index : index + 1] = [(start + size, stop)] if stop - start > size else []
                return start, start + size
        return None

    def _take_back(self) -> None:
        """Put blocks that were returned among the free ones."""
        if not self._returned:
            return
        blocks = [self._returned.pop() for _ in range(len(self._returned))]  # others may come meanwhile
        self._beyond -= sum(-start for start, _ in blocks if start < 0)
        free: list[Place] = []
        for start, stop in sorted([*self._free, *(each for each in blocks if each[0] >= 0 and each[1] > each[0])]):
            if free and free[-1][1] == start:
                free[-1] = free[-1][0], stop
            else:
                free.append((start, stop))
        self._free = free


def _note(lent: Lent, returned: list[Place], watched: "weakref.ref[Bytes]") -> None:
    """That a block is free again, in the lists of the stretch that it is a part of."""
    returned.append(lent.pop(id(watched))[1])


def _block_of(part: Bytes) -> Bytes:
    """The same memory as an array that its views refer to: those of a part would refer to the whole instead."""
    return np.asarray(part.data)


def aligned_bytes(wanted: int) -> Bytes:
    """So many, at a full vector. Numpy asks the system for huge pages, and torch does not."""
    made = np.empty(wanted + VECTOR_BYTES, np.uint8)
    start = -made.ctypes.data % VECTOR_BYTES
    return made[start : start + wanted]
