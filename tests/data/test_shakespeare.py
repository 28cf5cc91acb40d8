"""Shakespeare in LEAF's format, and the characters it is made of."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_files import shakespeare_records, write_leaf
from wholegrain.data.characters import SPACE, VOCABULARY, tokens, unknown_note
from wholegrain.data.leaf import MisfitError
from wholegrain.data.shakespeare import encode, shakespeare
from wholegrain.data.subjects import subject_codes
from wholegrain.errors import DataError

LINE = "x" * 80


def text_of(numbers: Any) -> str:
    return "".join(VOCABULARY[number] for number in numbers)


def test_the_vocabulary_is_leafs() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert VOCABULARY[:2] == "\n "
    assert VOCABULARY.endswith("xyz}")


@given(st.text())
def test_known_characters_come_back_and_others_are_spaces(text: str) -> None:
    numbers, unknown = tokens(text)
    assert numbers.dtype == np.int8
    assert text_of(numbers) == "".join(c if c in VOCABULARY else " " for c in text)
    assert unknown == sum(c not in VOCABULARY for c in text)


@pytest.mark.parametrize("character", ["\x00", "\x7f", "\x80", "é", "€", "\ud800", "😀", "\U0010ffff", "$", "\t", "{"])
def test_characters_that_the_vocabulary_lacks(character: str) -> None:
    assert character not in VOCABULARY
    numbers, unknown = tokens(f"a{character}b")
    assert (text_of(numbers), unknown) == ("a b", 1)


def test_texts_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = shakespeare_records()
    write_leaf(tmp_path / "all_data.json", records)
    dataset = shakespeare(path=tmp_path)
    data = dataset.data
    assert (dataset.classes, data.inputs.dtype, data.inputs.shape) == (80, np.int8, (160, 80))
    assert [text_of(window) for window in data.inputs] == [x for xs, _ in records.values() for x in xs]
    assert text_of(data.targets) == VOCABULARY * 2
    assert data.subjects.tolist() == subject_codes(["HAMLET_0"] * 80 + ["HAMLET_1"] * 80).tolist()
    assert dataset.notes == ()


def test_unknown_characters_are_spaces_and_counted_also_from_the_cache(tmp_path: Path) -> None:
    write_leaf(tmp_path / "a.json", {"BOTTOM": (["é{" + LINE[2:], LINE], ["$", "a"])})
    for _ in range(2):
        dataset = shakespeare(path=tmp_path)
        assert dataset.data.inputs[0, :2].tolist() == [SPACE, SPACE]
        assert dataset.data.targets.tolist() == [SPACE, VOCABULARY.index("a")]
        assert dataset.notes == unknown_note(3)
        assert "3" in dataset.notes[0]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([LINE, LINE[1:]], ["a", "b"], "x[1] is a text of 79 characters and should be a text of 80"),
        ([LINE + "x", LINE], ["a", "b"], "x[0] is a text of 81 characters"),
        ([LINE, list(LINE)], ["a", "b"], "x[1] is no text"),
        ([LINE, None], ["a", "b"], "x[1] is no text"),
        ([LINE, LINE], ["a", ""], "y[1] is a text of 0 characters and should be a text of 1"),
        ([LINE, LINE], ["ab", "c"], "y[0] is a text of 2 characters"),
        ([LINE, LINE], ["a", 3], "y[1] is no text"),
        ([LINE, LINE], [10**400, "a"], "y[0] is no text"),
    ],
)
def test_what_is_no_window_is_refused_by_its_place(x: list[Any], y: list[Any], words: str) -> None:
    with pytest.raises(MisfitError, match=re.escape(words)):
        encode(x, y)


def test_a_femnist_file_is_not_taken_for_shakespeare(tmp_path: Path) -> None:
    write_leaf(tmp_path / "a.json", {"f1": ([[0.0] * 784], [3])})
    with pytest.raises(DataError, match=r"a\.json', subject 'f1': x\[0\] is no text"):
        shakespeare(path=tmp_path)
