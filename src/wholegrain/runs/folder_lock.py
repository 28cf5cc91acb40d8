"""Whether a process is at work in a run's folder, found out without touching its lock."""

import os
from pathlib import Path

LOCK = "lock"
KERNEL = Path("/proc/locks")
"""The locks of all processes, as Linux lists them: whoever tried the lock instead could make a run that begins fail."""


def is_locked(folder: Path) -> bool:
    """Whether somebody holds the folder's lock; False where the system does not say."""
    try:
        status = os.stat(folder / LOCK)
        held = KERNEL.read_text(encoding="utf-8")
    except OSError:
        return False
    return any(f":{status.st_ino} " in line and "WRITE" in line for line in held.splitlines())
