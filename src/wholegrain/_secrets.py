"""Keys that the operating system draws once and that are kept on this machine alone.

A key decides what must not be guessed: which items survive a cap, who is held out, what a digest of private data is.
It lies in the state folder, in a file of its owner's alone, and is never printed, recorded or sent.
"""

import hashlib
import os
import secrets
from pathlib import Path

from wholegrain import _check
from wholegrain._files import private_folder, write_whole
from wholegrain._places import state_folder
from wholegrain.errors import RunError

SIZE = 32


def secret_key(name: str, folder: Path | None = None) -> bytes:
    """The key of this name: 256 bits, drawn at the first call and the same ever after."""
    path = (folder or state_folder() / "keys") / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.key"
    try:
        if not path.exists():
            _make(path)
        key = path.read_bytes()
    except OSError as error:
        raise RunError(f"The key '{path}' cannot be read or made: {_check.reason(error)}.") from error
    if len(key) != SIZE:
        raise RunError(f"The key '{path}' is damaged: it has {len(key)} bytes, not {SIZE}; put it back from a copy.")
    return key


def _make(path: Path) -> None:
    """Draw a key; where another process is faster, its key stays."""
    draft = private_folder(path.parent) / f"{path.name}.{secrets.token_hex(8)}"
    write_whole(draft, secrets.token_bytes(SIZE), private=True)
    try:
        os.link(draft, path)  # fails where there is one already
    except FileExistsError:
        pass
    finally:
        draft.unlink()
