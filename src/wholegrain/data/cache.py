"""Parsed data, kept on disk so that large files are parsed once.

A kept file is used only if it is whole (by a digest of its content) and was parsed from the very files that are there
now (by name, size and times) by the same version of the same reader. Anything else is parsed again and written over;
a folder that cannot be written is done without. Nothing in it is executed: arrays only, never a pickle.

Private: what is kept are raw items; files are readable by their owner alone.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain._files import private_folder
from wholegrain._places import cache_folder

FORMAT = 1
"""Raised whenever the meaning of a kept file changes."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CacheOrigin:
    """What is parsed: by which reader (its name and version in one word), from where, and which files."""

    reader: str
    root: Path
    files: tuple[Path, ...]

    def identity(self) -> str:
        """All that tells these files, as they are now, from others."""
        facts = [(os.path.abspath(file), *_stamp(file)) for file in self.files]
        return json.dumps([FORMAT, self.reader, facts])

    @property
    def place(self) -> Path:
        """Where it is kept: one place for each reader and root, so that a newer parse replaces an older one."""
        key = json.dumps([self.reader, os.path.abspath(self.root)])
        name = f"{self.reader}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
        return cache_folder() / "data" / name


def load_cached(origin: CacheOrigin, parse: Callable[[], Arrays]) -> Arrays:
    """What `parse` gives, read from the cache if it is there, whole, and of these files."""
    try:
        place, identity = origin.place, origin.identity()
    except (OSError, RuntimeError):  # a file is gone, or there is no home: the parser says what matters of that
        return parse()
    kept = _read(place, identity)
    if kept is not None:
        return kept
    parsed = parse()
    with contextlib.suppress(OSError):
        if origin.identity() == identity:  # not changed while it was read
            _write(place, identity, parsed)
    return parsed


def digest(identity: str, arrays: Arrays) -> str:
    """SHA-256 over the identity and every array with its name, kind and shape."""
    total = hashlib.sha256(identity.encode())
    for name, array in sorted(arrays.items()):
        total.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _stamp(file: Path) -> tuple[int, int, int]:
    # The time of change also catches a file of the same size that was put in place with its old date.
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(place: Path, identity: str) -> Arrays | None:
    if not zipfile.is_zipfile(place):
        return None
    try:
        # Opened here, because numpy leaves a file open that turns out to be no archive.
        with place.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            if str(kept["identity"]) != identity:
                return None
            arrays = {name: kept[name] for name in kept.files if name not in ("identity", "digest")}
            whole = str(kept["digest"]) == digest(identity, arrays)
    except Exception:  # whatever is wrong with it, it is not the file that was written here
        return None
    return arrays if whole else None


def _write(place: Path, identity: str, arrays: Arrays) -> None:
    private_folder(place.parent)
    # A temporary file is its owner's alone from the start, and takes its place only when it is whole.
    handle, partial = tempfile.mkstemp(dir=place.parent, prefix=".partial-")
    try:
        with os.fdopen(handle, "wb") as file:
            facts = {"identity": np.array(identity), "digest": np.array(digest(identity, arrays))}
            np.savez(file, allow_pickle=False, **facts, **arrays)
        os.replace(partial, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
