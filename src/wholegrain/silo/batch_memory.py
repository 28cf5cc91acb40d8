"""Memory for the items of batches, used again by later batches.

The system hands out fresh memory page by page, and zeroes it. A small batch would spend more time on that than on being
copied.
"""

import sys
from math import prod
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain.clipping.rounding import VECTOR_BYTES

KEPT_BYTES = 1 << 22
"""The largest block that is kept: larger ones take longer to fill than to get."""


class BatchMemory:
    """Copies of rows, in blocks that are used again once nothing refers to them. Several threads may share one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: list[Block] = []

    def copy_rows(self, stored: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
        """The rows at these places, in one block that begins where a vector of the processor does."""
        shape = (len(places), *stored.shape[1:])
        with self._lock:  # between finding a block free and referring to it
            rows = self._find_block(prod(shape) * stored.itemsize).hold(shape, stored.dtype)
        # Places are those of a batch, so that none is clipped; "raise" would copy everything twice.
        return np.take(stored, places, 0, rows, "clip")

    def _find_block(self, wanted: int) -> "Block":
        """A free one that is large enough and at most twice as large; a new one takes the place of a free one."""
        free = [each for each in self._blocks if each.is_free]
        for each in free:
            if wanted <= each.bytes <= 2 * wanted:
                return each
        found = Block(wanted)
        if wanted <= KEPT_BYTES:
            self._blocks = [each for each in self._blocks if each not in free[:1]] + [found]
        return found


class Block:
    """Memory for one copy."""

    def __init__(self, wanted: int) -> None:
        self.bytes = wanted
        self._owner = np.empty(wanted + VECTOR_BYTES, np.uint8)
        self._start = -self._owner.ctypes.data % VECTOR_BYTES

    @property
    def is_free(self) -> bool:
        """Whether nothing else refers to the memory: every array and tensor that shares it refers to its owner."""
        return sys.getrefcount(self._owner) <= 2  # this object, and the question

    def hold(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """An array in this memory; its values are whatever was there."""
        return np.ndarray(shape, kind, self._owner, self._start)
