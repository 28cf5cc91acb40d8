"""The cache folder, for what can be computed again, and the state folder, for what must last."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`WHOLEGRAIN_CACHE`, or the user's own; it may not be there yet, and it may be impossible to write."""
    return _folder("WHOLEGRAIN_CACHE", "XDG_CACHE_HOME", "~/.cache")


COUNTER = "WHOLEGRAIN_COUNTER"


def counter_file() -> Path | None:
    """`WHOLEGRAIN_COUNTER`: a file on another disk that says how far ledgers have come, if the operator has one."""
    named = os.environ.get(COUNTER)
    return Path(named).expanduser() if named else None


def state_folder() -> Path:
    """`WHOLEGRAIN_STATE`, or the user's own: for what must not be lost."""
    return _folder("WHOLEGRAIN_STATE", "XDG_STATE_HOME", "~/.local/state")


def _folder(own: str, base: str, otherwise: str) -> Path:
    folder = os.environ.get(own) or f"{os.environ.get(base) or otherwise}/wholegrain"
    return Path(folder).expanduser()
