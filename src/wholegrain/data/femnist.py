"""FEMNIST: handwritten digits and letters by writer, from the LEAF benchmark's files.

Classes 0–9 are digits, 10–35 capital and 36–61 small letters. An image is 784 numbers from 0 to 1, kept as bytes.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain.data import leaf
from wholegrain.data.data_folder import find_data
from wholegrain.data.dataset import Dataset
from wholegrain.data.leaf import Items, LeafForm, MisfitError

PIXELS = 28 * 28
CLASSES = 62


def femnist(*, path: str | Path | None = None) -> Dataset:
    """Images and their writers from LEAF's JSON.

    `path` is a file, a folder of files, or a folder with `train` and `test`; without it, the folder `femnist` in
    `WHOLEGRAIN_DATA`.
    """
    return leaf.read(find_data(path, "femnist", "femnist"), FORM)


def encode(x: list[Any], y: list[Any]) -> Items:
    """A writer's images as bytes, with their classes."""
    return Items(_pixels(x), leaf.require_classes(y, CLASSES))


def _pixels(x: list[Any]) -> NDArray[np.uint8]:
    if not x:
        return np.empty((0, PIXELS), np.uint8)
    try:
        values = np.array(x)
    except (ValueError, OverflowError):  # not all of one length
        values = np.empty(0)
    # Text and missing values would make an array of another kind; NaN is within no bounds.
    proper = values.dtype.kind in "fiu" and values.shape == (len(x), PIXELS)
    if not proper or not ((values >= 0) & (values <= 1)).all():
        raise _misfit(x)
    pixels: NDArray[np.uint8] = np.rint(255 * values).astype(np.uint8)
    return pixels


def _misfit(x: list[Any]) -> MisfitError:
    """What is wrong with the first image that cannot be used."""
    for number, image in enumerate(x):
        if not isinstance(image, list) or len(image) != PIXELS:
            size = f"{len(image)} values" if isinstance(image, list) else "no list"
            return MisfitError(f"x[{number}] is {size} and should be {PIXELS} numbers")
        for place, value in enumerate(image):
            if type(value) not in (int, float) or not 0 <= value <= 1:
                return MisfitError(f"x[{number}][{place}] is not a number from 0 to 1")
    return MisfitError(f"x is not a list of images of {PIXELS} numbers each")


FORM = LeafForm(name="femnist", version=2, classes=CLASSES, width=PIXELS, dtype=np.uint8, encode=encode)
