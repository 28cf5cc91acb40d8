"""Atomic writes, and files that only their owner may read."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Put a file in place so that, after a crash at any instant, either the old content or the new is there.

    An error (no room, no permission) leaves the old content, and no trace of the new one. A `private` file is readable
    by its owner alone from its first byte on, whatever the umask.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE if private else 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def private_folder(path: Path) -> Path:
    """Make a folder, and missing ones above it, for its owner alone; one that is there is closed to others."""
    if not path.parent.is_dir():
        private_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_FOLDER)
    close_to_others(path)
    return path


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file that is its owner's alone, whatever the umask; one that is there is closed to others."""
    handle = os.open(path, flags, PRIVATE_FILE)
    with contextlib.suppress(PermissionError):  # somebody else's file: its owner decides
        os.fchmod(handle, PRIVATE_FILE)
    return handle


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """For one process at a time: whoever reads a file and writes it anew does both within this.

    `write_whole` alone does not suffice: of two writers at once, one would put the other's half-written file in place.
    """
    handle = open_private(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def close_to_others(path: Path) -> None:
    """Take every right of group and others away; what belongs to somebody else stays as it is."""
    with contextlib.suppress(PermissionError):
        os.chmod(path, path.stat().st_mode & 0o700)


def date_alike(folder: Path, date: float) -> None:
    """Give a folder, and all that is in it, one date: when each file was written tells how long the work took."""
    for path in (*folder.rglob("*"), folder):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or somebody else's
            os.utime(path, (date, date), follow_symlinks=False)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
