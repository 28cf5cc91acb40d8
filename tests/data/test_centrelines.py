"""Strokes of any width become lines, and every character keeps its shape."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import label

from wholegrain.data import centrelines
from wholegrain.errors import DataError

EIGHT = np.ones((3, 3), bool)


def filled(rectangles: list[tuple[int, int, int, int]]) -> np.ndarray:
    picture = np.zeros((1, 40, 40), bool)
    for top, left, height, width in rectangles:
        picture[0, top : top + height, left : left + width] = True
    return picture


RECTANGLES = st.tuples(st.integers(2, 28), st.integers(2, 28), st.integers(1, 9), st.integers(1, 9))


@given(st.lists(RECTANGLES, min_size=1, max_size=5))
def test_thinning_keeps_what_hangs_together_and_adds_nothing(rectangles: list[tuple[int, int, int, int]]) -> None:
    drawn = filled(rectangles)
    lines = centrelines.thin_strokes(drawn)
    assert not (lines & ~drawn).any()
    assert label(lines[0], EIGHT)[1] == label(drawn[0], EIGHT)[1]
    assert (centrelines.thin_strokes(lines) == lines).all()


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_a_bar_of_any_width_becomes_one_line_along_its_middle(width: int) -> None:
    lines = centrelines.thin_strokes(filled([(5, 10, 30, width)]))[0]
    assert lines.sum(axis=1).max() == 1
    assert lines.sum() >= 30 - width
    assert np.argwhere(lines)[:, 1].mean() == pytest.approx(10 + (width - 1) / 2, abs=0.6)


def test_a_ring_stays_a_ring() -> None:
    ring = filled([(5, 5, 20, 20)]) & ~filled([(10, 10, 10, 10)])
    lines = centrelines.thin_strokes(ring)[0]
    assert label(~lines)[1] == 2


def test_one_picture_does_not_wear_another() -> None:
    one, other = filled([(5, 5, 4, 20)]), filled([(2, 12, 30, 5)])
    both = centrelines.thin_strokes(np.concatenate([one, other]))
    assert (both == np.concatenate([centrelines.thin_strokes(one), centrelines.thin_strokes(other)])).all()


def test_every_character_of_every_face_is_there_once_and_centred() -> None:
    pytest.importorskip("matplotlib", reason="typefaces come with matplotlib: install wholegrain[data]")
    pictures = centrelines.distances("0ij")
    assert pictures.shape == (len(centrelines.FACES) + 1, 3, centrelines.SIDE, centrelines.SIDE)
    assert pictures.dtype == np.float32
    for face in pictures:
        parts = [label(picture < 1.5, EIGHT)[1] for picture in face]
        assert parts == [1, 2, 2]  # the dots of i and j are not lost
        middle = np.argwhere(face[0] < 1).mean(axis=0)
        assert middle == pytest.approx([(centrelines.SIDE - 1) / 2] * 2, abs=1)
        for picture in face:
            assert min(picture[0].min(), picture[-1].min(), picture[:, 0].min(), picture[:, -1].min()) > 4


def test_without_matplotlib_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DataError, match=r"install 'wholegrain\[data\]'"):
        centrelines.distances("xyz")
