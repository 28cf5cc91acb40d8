"""Gives memory back to the system between passes of a trial.

A trial runs passes of many sizes. The blocks of one size leave holes in the heap that those of the next do not fit
into, so that a process would grow by what no tensor holds.
"""

import ctypes
from collections.abc import Callable
from functools import cache

from wholegrain.gradients.workspace import Workspace

LARGE = 1 << 20
"""Bytes of buffers from which on it is worth a call."""


def release_memory(workspace: Workspace) -> None:
    """Forget a workspace's buffers; where they were large, the system has their memory again."""
    if workspace.clear() > LARGE:
        _find_trim()(0)


@cache
def _find_trim() -> Callable[[int], int]:
    """The C library's `malloc_trim`; nothing where there is none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda kept: 0
