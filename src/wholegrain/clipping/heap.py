"""How the C library keeps memory that was freed."""

import ctypes
from functools import cache

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
LARGEST, MOST_KEPT = 1 << 30, (1 << 31) - 1


@cache
def keep_freed_memory() -> None:
    """Keep what is freed for what is asked for next, instead of returning it to the system.

    Every step asks for the same large tensors again. Returned and asked for anew, each page of them is a fault, which
    takes longer than many an operation on it. This is for the whole process; where the C library is not GNU's, nothing
    is done.
    """
    try:
        allow = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    allow(MMAP_THRESHOLD, LARGEST)
    allow(TRIM_THRESHOLD, MOST_KEPT)
