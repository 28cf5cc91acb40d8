"""Plays: whose words they are, and how they are cut into windows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_files import PLAY, real_file
from wholegrain.data.characters import VOCABULARY
from wholegrain.data.plays import plays, speeches
from wholegrain.data.subjects import subject_codes
from wholegrain.errors import DataError, SpecError


def written(tmp_path: Path, text: str = PLAY) -> Path:
    path = tmp_path / "play.txt"
    path.write_text(text, encoding="utf-8")
    return path


def text_of(numbers: np.ndarray) -> str:
    return "".join(VOCABULARY[number] for number in numbers)


def test_a_speakers_speeches_are_joined() -> None:
    assert speeches(PLAY, "play") == {
        "First Citizen": "Before we proceed any further, hear me speak."
        " You are all resolved rather to die than to famish?",
        "All": "Speak, speak.",
    }


def test_headings_blank_lines_and_line_ends_may_vary() -> None:
    text = "\n \nALL: \r\nSo\t it   is:\r\n\n\n\nNOBODY:\n\nALL:\nyes"
    assert speeches(text, "play") == {"ALL": "So it is: yes"}


@given(st.integers(1, 12), st.integers(1, 5))
def test_windows_and_what_comes_next(tmp_path_factory: pytest.TempPathFactory, window: int, stride: int) -> None:
    dataset = plays(path=written(tmp_path_factory.mktemp("play")), window=window, stride=stride)
    data = dataset.data
    found = [
        (code, text_of(x), VOCABULARY[y]) for code, x, y in zip(data.subjects, data.inputs, data.targets, strict=True)
    ]
    said = speeches(PLAY, "play")
    expected = [
        (code, text[start : start + window], text[start + window])
        for code, text in zip(subject_codes(said), said.values(), strict=True)
        for start in range(0, len(text) - window, stride)
    ]
    assert found == expected
    assert data.inputs.dtype == np.int8
    assert data.inputs.flags.writeable


def test_who_says_too_little_has_no_items_and_is_counted(tmp_path: Path) -> None:
    dataset = plays(path=written(tmp_path))
    assert dataset.data.subject_count == 1
    assert dataset.data.inputs.shape[1] == 80
    assert dataset.notes == ("speakers of no more than 80 characters, left out: 1",)
    assert plays(path=written(tmp_path), window=12).notes == ()


def test_unknown_characters_are_counted(tmp_path: Path) -> None:
    dataset = plays(path=written(tmp_path, PLAY.replace("die", "$ié")), window=12)
    assert dataset.notes == ("characters that the vocabulary lacks, read as spaces: 2",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ACT I\n\nALL:\nSpeak.", "Line 1 of '.*play.txt' starts a speech with 'ACT I'"),
        ("ALL:\nSpeak.\n\n\nEnter a crowd\nof people", "Line 5 of .* 'Enter a crowd'"),
        ("ALL:\nSpeak.\n\n:\nNo", "Line 4 of .* ':'"),
        ("x" * 1000, "'xxxx"),
        ("", "Nobody"),
        ("\n\n", "Nobody"),
        ("ALL:\n", "Nobody"),
        ("ALL:\nSpeak, speak.", "Nobody in .* says more than 80 characters"),
    ],
)
def test_a_text_that_is_no_play(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        plays(path=written(tmp_path, text))
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ALL:\n\xe9")
    with pytest.raises(DataError, match=r"a\.txt' is not text in UTF-8 \(byte 5\)"):
        plays(path=tmp_path / "a.txt")


def test_a_folder_is_no_play(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        plays(path=tmp_path)


def test_windows_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.data.plays.MOST", 100)
    with pytest.raises(DataError, match=r"raise data\.options\.stride"):
        plays(path=written(tmp_path), window=10)
    assert plays(path=written(tmp_path), window=10, stride=20).data.items == 6


@pytest.mark.parametrize("option", [{"window": 0}, {"stride": 0}, {"stride": -1}, {"window": 1.5}, {"stride": "x"}])
def test_windows_are_counted_in_whole_numbers(tmp_path: Path, option: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=next(iter(option))):
        plays(path=written(tmp_path), **option)


def test_the_real_text() -> None:
    text = real_file("tinyshakespeare.txt")
    assert len(speeches(text.read_text(), "plays")) == 299
    dataset = plays(path=text, stride=80)
    assert dataset.data.subject_count == 256
    assert dataset.notes[0].endswith("spaces: 1")
