"""Files in the idx format of MNIST and QMNIST, packed with gzip or not; sizes are checked before they are believed."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.errors import DataError

KINDS = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}
MOST_ROWS = 10**6


def find_idx(folder: Path, name: str) -> Path | None:
    """The file of this name, plain or with `.gz`, if it is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_idx(path: Path, kind: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of this kind, of any number of rows of this shape."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            rows = _rows(path, file.read(4 * (2 + len(shape))), kind, shape)
            content = file.read(rows * math.prod(shape) * np.dtype(kind).itemsize + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"The file '{path}' cannot be read: {_check.reason(error)}; fetch it again.") from error
    expected = rows * math.prod(shape) * np.dtype(kind).itemsize
    if len(content) != expected:
        told = "more" if len(content) > expected else f"only {len(content):,}"
        raise DataError(f"The file '{path}' should hold {expected:,} bytes of values and has {told}; fetch it again.")
    stored = np.dtype(kind).newbyteorder(">")
    return np.frombuffer(content, stored).astype(kind).reshape(rows, *shape)


def _rows(path: Path, head: bytes, kind: type[np.generic], shape: tuple[int, ...]) -> int:
    """The number of rows that the head of a file declares, once it declares what is expected."""
    code = next(code for code, known in KINDS.items() if known == np.dtype(kind).newbyteorder(">"))
    magic = bytes([0, 0, code, 1 + len(shape)])
    if len(head) < 4 * (2 + len(shape)) or head[:4] != magic:
        raise DataError(
            f"The file '{path}' starts with {head[:4].hex() or 'nothing'} where an idx file of this kind starts with"
            f" {magic.hex()}; fetch it again."
        )
    rows, *rest = struct.unpack(f">{1 + len(shape)}I", head[4:])
    if tuple(rest) != shape or not 0 < rows <= MOST_ROWS:
        raise DataError(
            f"The file '{path}' declares the shape {[rows, *rest]}; rows of shape {list(shape)} belong there."
        )
    return int(rows)
