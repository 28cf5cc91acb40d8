"""Faults of the machine, which pass: no descriptor, no room, no memory, a disk that does not answer."""

import errno
import sqlite3

PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS}
    | {errno.EFBIG, errno.EBUSY, errno.EINTR}
)
PASSING_IN_SQLITE = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_BUSY}
)


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
