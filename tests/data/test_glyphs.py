"""Synthetic writers: the same for the same seed, alike within a writer, different between writers, and legible."""

import runpy
import sys
from types import ModuleType

import numpy as np
import pytest

from wholegrain.data import centrelines
from wholegrain.data import glyphs as glyphs_module
from wholegrain.data.dataset import Dataset
from wholegrain.data.glyphs import CHARACTERS, glyphs
from wholegrain.data.handwritten_strokes import HANDS
from wholegrain.errors import SpecError


@pytest.fixture(scope="module")
def digits() -> Dataset:
    pytest.importorskip("matplotlib", reason="glyphs draws typefaces of matplotlib: install wholegrain[data]")
    return glyphs(writers=150, items=40, classes=10)


def test_geometry(digits: Dataset) -> None:
    assert digits.data.inputs.shape == (6000, 784)
    assert digits.data.inputs.dtype == np.uint8
    assert digits.data.index.counts.tolist() == [40] * 150
    assert digits.items_per_subject == 40
    assert digits.silos is None


def test_every_writer_writes_every_class_equally_often(digits: Dataset) -> None:
    for targets in digits.data.targets.reshape(150, 40):
        assert np.bincount(targets, minlength=10).tolist() == [4] * 10
    assert (digits.data.targets[:40] != digits.data.targets[40:80]).any()


def test_a_writer_does_not_depend_on_how_many_there_are(digits: Dataset) -> None:
    fewer = glyphs(writers=8, items=40, classes=10)
    assert (fewer.data.inputs == digits.data.inputs[: 8 * 40]).all()
    assert (fewer.data.targets == digits.data.targets[: 8 * 40]).all()


def test_the_seed_decides(digits: Dataset) -> None:
    other = glyphs(writers=8, items=40, classes=10, seed=1)
    assert (other.data.inputs != digits.data.inputs[: 8 * 40]).any()


def test_images_are_ink_on_a_dark_ground(digits: Dataset) -> None:
    images = digits.data.inputs.reshape(-1, 28, 28)
    ink = images / 255
    assert (ink.max(axis=(1, 2)) > 0.6).all()
    share = ink.mean(axis=(1, 2))
    assert share.min() > 0.01
    assert share.max() < 0.5
    border = np.concatenate([ink[:, 0], ink[:, -1], ink[:, :, 0], ink[:, :, -1]], axis=1)
    assert border.mean() < 0.02
    assert np.abs(_middles(ink) - 13.5).mean() < 1.5


def _middles(ink: np.ndarray) -> np.ndarray:
    places = np.arange(28)
    down = (ink.sum(axis=2) @ places) / ink.sum(axis=(1, 2))
    along = (ink.sum(axis=1) @ places) / ink.sum(axis=(1, 2))
    return np.stack([down, along])


def test_a_writers_items_are_alike(digits: Dataset) -> None:
    """Otherwise protecting an image would protect its writer, and there were nothing to show."""
    threes = digits.data.targets == 3
    images = digits.data.inputs[threes].astype(np.float32).reshape(150, 4, 784)
    within = np.linalg.norm(images[:, 0] - images[:, 1], axis=1)
    between = np.linalg.norm(images[:-1, 0] - images[1:, 1], axis=1)
    assert within.mean() < 0.8 * between.mean()


def test_unseen_writers_are_legible(digits: Dataset) -> None:
    """The nearest image of 130 writers names the digit of 20 others."""
    inputs, targets = digits.data.inputs.astype(np.float32), digits.data.targets
    known, asked = inputs[:5200], inputs[5200:]
    distances = (known**2).sum(axis=1) - 2 * asked @ known.T
    found = targets[:5200][distances.argmin(axis=1)]
    assert (found == targets[5200:]).mean() > 0.7


def test_letters_follow_digits_as_in_femnist() -> None:
    assert CHARACTERS[:11] + CHARACTERS[35:37] + CHARACTERS[61] == "0123456789AZaz"
    assert len(CHARACTERS) == 62


@pytest.mark.parametrize("module", [centrelines, glyphs_module])
def test_matplotlib_is_imported_only_when_needed(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    assert runpy.run_path(str(module.__file__))["__doc__"] == module.__doc__


def test_more_hands_change_how_digits_look_and_not_which_they_are(digits: Dataset) -> None:
    other = glyphs(writers=8, items=40, classes=10, hands=3)
    assert (other.data.inputs != digits.data.inputs[: 8 * 40]).any()
    assert other.data.index.counts.tolist() == [40] * 8


@pytest.mark.parametrize("hand", range(len(HANDS)))
def test_a_hand_writes_within_the_picture(hand: int) -> None:
    """A capital is one high: points beyond it would be cut off."""
    points = np.array([point for strokes in HANDS[hand].values() for stroke in strokes for point in stroke])
    assert np.abs(points).max() <= 0.5
    assert set(HANDS[hand]) <= set("0123456789")


def test_there_are_so_many_hands() -> None:
    with pytest.raises(SpecError, match="between 1 and 4"):
        glyphs(writers=1, items=1, classes=10, hands=5)


@pytest.mark.parametrize("name", ["writers", "items", "classes", "hands"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_counts_are_whole_and_positive(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=name):
        glyphs(**{name: value})


@pytest.mark.parametrize("classes", [1, 63])
def test_classes_are_those_there_are(classes: int) -> None:
    with pytest.raises(SpecError, match="between 2 and 62"):
        glyphs(classes=classes)
