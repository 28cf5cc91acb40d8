"""Faults of the machine, which pass: no descriptor, no room, no memory, a disk that does not answer.

None of them is a reason to end a run of days: what they hit is done again when it can be done.
"""

import errno
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from wholegrain import _check

log = logging.getLogger("wholegrain.server")

PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS}
    | {errno.EFBIG, errno.EBUSY, errno.EINTR}
)
PASSING_IN_SQLITE = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_BUSY}
)

FIRST, LONGEST = 2.0, 60.0
"""Seconds before what failed is tried again: the first time, and at most."""

Result = TypeVar("Result")


def is_passing(error: BaseException | None) -> bool:
    """Whether a fault of the machine is behind an error."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in PASSING):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int) and code & 0xFF in PASSING_IN_SQLITE:  # the rest of the code says more than is needed
        return True
    return is_passing(error.__cause__)


def again_and_again(act: Callable[[], Result]) -> Result:
    """Do something, again after each fault that passes, at a pace that slows down; what can be repeated, that is."""
    pause = FIRST
    while True:
        try:
            return act()
        except Exception as error:
            if not is_passing(error):
                raise
            say_fault(error, pause)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)


def say_fault(error: BaseException, pause: float) -> None:
    """Tell an operator what is wrong with the machine."""
    log.error("%s Trying again in %.0f s.", _check.quoted(str(error) or type(error).__name__), pause)
