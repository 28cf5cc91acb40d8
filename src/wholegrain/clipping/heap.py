"""Memory that was freed and that the C library still holds."""

import ctypes
from collections.abc import Callable
from functools import cache

LARGE = 1 << 20
"""Bytes that were freed from which on it is worth a call."""


def trim_heap() -> None:
    """Give it back to the system, where there is a way to."""
    _find_trim()(0)


@cache
def _find_trim() -> Callable[[int], int]:
    """The C library's `malloc_trim`; nothing where there is none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda kept: 0
