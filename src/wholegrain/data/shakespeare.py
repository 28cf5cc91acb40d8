"""Shakespeare of the LEAF benchmark: a speaker's 80 characters, and the one that comes next.

A character that LEAF's vocabulary lacks is read as a space, in a window and as a target; how many there were is noted.
"""

from pathlib import Path
from typing import Any

import numpy as np

from wholegrain.data import leaf
from wholegrain.data.characters import VOCABULARY, tokens
from wholegrain.data.data_folder import find_data
from wholegrain.data.dataset import Dataset
from wholegrain.data.leaf import Items, LeafForm, MisfitError

WINDOW = 80


def shakespeare(*, path: str | Path | None = None) -> Dataset:
    """Windows of text and their speakers from LEAF's JSON.

    `path` is a file, a folder of files, or a folder with `train` and `test`; without it, the folder `shakespeare` in
    `WHOLEGRAIN_DATA`.
    """
    return leaf.read(find_data(path, "shakespeare", "shakespeare"), FORM)


def encode(x: list[Any], y: list[Any]) -> Items:
    """A speaker's windows as tokens, with the tokens that come next."""
    _require_texts("x", x, WINDOW)
    _require_texts("y", y, 1)
    windows, unknown = tokens("".join(x))
    targets, unknown_targets = tokens("".join(y))
    return Items(windows.reshape(-1, WINDOW), targets.astype(np.int64), unknown + unknown_targets)


def _require_texts(name: str, texts: list[Any], length: int) -> None:
    for number, text in enumerate(texts):
        if not isinstance(text, str) or len(text) != length:
            given = f"a text of {len(text)} characters" if isinstance(text, str) else "no text"
            raise MisfitError(f"{name}[{number}] is {given} and should be a text of {length}")


FORM = LeafForm(name="shakespeare", version=2, classes=len(VOCABULARY), width=WINDOW, dtype=np.int8, encode=encode)
