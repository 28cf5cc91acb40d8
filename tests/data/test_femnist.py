"""FEMNIST in LEAF's format: bytes come back as they went in, and what is no image is refused by its place."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_files import femnist_records, leaf_tree, write_leaf
from wholegrain.data.femnist import encode, femnist
from wholegrain.data.leaf import MisfitError
from wholegrain.data.subjects import subject_codes
from wholegrain.errors import DataError

BLANK = [1.0] * 784


def test_bytes_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = femnist_records()
    write_leaf(tmp_path / "all_data_0.json", records)
    dataset = femnist(path=str(tmp_path))
    data = dataset.data
    assert (dataset.classes, data.inputs.dtype, data.inputs.shape) == (62, np.uint8, (64, 784))
    expected = np.concatenate([np.array(x) for x, _ in records.values()])
    assert (data.inputs / 255 == expected).all()
    assert data.targets.tolist() == [y for _, ys in records.values() for y in ys]
    assert data.subjects.tolist() == subject_codes(f"f{number // 16:04d}_00" for number in range(64)).tolist()


def test_every_byte_survives_its_way_through_text() -> None:
    shades = json.loads(json.dumps([[byte / 255 for byte in range(256)] + [0] * 528]))
    assert encode(shades, [0]).inputs[0, :256].tolist() == list(range(256))


def image(place: int, value: Any) -> list[Any]:
    return [*BLANK[:place], value, *BLANK[place + 1 :]]


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([BLANK, BLANK[1:]], "x[1] is 783 values and should be 784 numbers"),
        ([BLANK, [*BLANK, 0.0]], "x[1] is 785 values"),
        ([BLANK, []], "x[1] is 0 values"),
        ([[], []], "x[0] is 0 values"),
        ([BLANK, 0.5], "x[1] is no list"),
        ([1.0, 0.5], "x[0] is no list"),
        (["a" * 784, BLANK], "x[0] is no list"),
        ([BLANK, [[1.0]] * 784], "x[1][0] is not a number from 0 to 1"),
        ([[[1.0]] * 784] * 2, "x[0][0] is not a number from 0 to 1"),
        ([BLANK, image(3, 1.001)], "x[1][3] is not a number from 0 to 1"),
        ([BLANK, image(3, -0.001)], "x[1][3]"),
        ([BLANK, image(783, 255)], "x[1][783]"),
        ([image(0, float("nan")), BLANK], "x[0][0]"),
        ([image(0, float("inf")), BLANK], "x[0][0]"),
        ([image(0, 10**400), BLANK], "x[0][0]"),
        ([image(0, 2**64), BLANK], "x[0][0]"),
        ([image(0, "0.5"), BLANK], "x[0][0]"),
        ([image(0, None), BLANK], "x[0][0]"),
        ([image(0, {}), BLANK], "x[0][0]"),
        ([[True] * 784, [False] * 784], "x[0][0]"),
    ],
)
def test_what_is_no_image_is_refused_by_its_place(x: list[Any], words: str) -> None:
    with pytest.raises(MisfitError, match=re.escape(words)):
        encode(x, [0, 1])


def test_a_mislabelled_file_is_told_with_file_and_subject(tmp_path: Path) -> None:
    records = femnist_records()
    records["f0002_00"][1][5] = 62
    write_leaf(tmp_path / "a.json", records)
    words = r"a\.json', subject 'f0002_00': y\[5\] is 62 .* 0 to 61; mend the file, or check that it is femnist\."
    with pytest.raises(DataError, match=words):
        femnist(path=tmp_path)


@pytest.mark.parametrize("written", ["1e400", "NaN", "-Infinity", "1" + "0" * 400, '"1.0"', "null", "-1e-9"])
def test_odd_numbers_in_a_file(tmp_path: Path, written: str) -> None:
    text = json.dumps(leaf_tree({"ann": ([image(7, 0.123456)], [1])}))
    (tmp_path / "a.json").write_text(text.replace("0.123456", written))
    with pytest.raises(DataError, match=r"subject 'ann': x\[0\]\[7\] is not a number from 0 to 1"):
        femnist(path=tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)


@given(JSON, st.integers(0, 783), st.booleans())
def test_anything_in_place_of_a_pixel_or_an_image_is_a_misfit(value: Any, place: int, inside: bool) -> None:
    pixel = inside and type(value) in (int, float, bool) and 0 <= value <= 1
    x = [BLANK, image(place, value) if inside else value]
    if pixel:
        assert encode(x, [0, 1]).inputs[1, place] == round(255 * value)
        return
    with pytest.raises(MisfitError):
        encode(x, [0, 1])
