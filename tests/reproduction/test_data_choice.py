"""The nearest data to the paper's that is there; nothing is called FEMNIST that is not."""

from pathlib import Path

import pytest

from wholegrain.errors import DataError, SpecError
from wholegrain_reproduction.data_choice import DESCRIPTIONS, IMAGES, TEXT, choose_data


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHOLEGRAIN_DATA", raising=False)


def names(*given: str) -> tuple[str, str]:
    chosen = choose_data(given)
    return chosen.images.name, chosen.text.name


def test_without_files_data_is_synthetic() -> None:
    assert names() == ("glyphs", "babble")


def test_the_papers_own_data_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tinyshakespeare.txt").touch()
    assert names(str(tmp_path)) == ("glyphs", "plays")
    (tmp_path / "mnist_by_writer.npz").touch()
    monkeypatch.setenv("WHOLEGRAIN_DATA", str(tmp_path))
    assert names() == ("mnist_writers", "plays")
    (tmp_path / "femnist").mkdir()
    (tmp_path / "shakespeare").mkdir()
    assert names() == ("femnist", "shakespeare")
    assert choose_data([]).images.path == tmp_path / "femnist"


def test_a_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tinyshakespeare.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert choose_data(["data"]).text.path == tmp_path / "data" / "tinyshakespeare.txt"


def test_a_name_is_taken_by_its_word(tmp_path: Path) -> None:
    (tmp_path / "mnist_by_writer.npz").touch()
    assert names(str(tmp_path), "glyphs") == ("glyphs", "babble")
    assert choose_data([f"plays={tmp_path}"]).text.path == tmp_path
    assert choose_data(["mnist_writers", str(tmp_path)]).images.path == tmp_path / "mnist_by_writer.npz"


def test_only_the_papers_data_is_called_by_its_name() -> None:
    for name in (*IMAGES, *TEXT):
        assert ("not" in DESCRIPTIONS[name]) == (name not in ("femnist", "shakespeare"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("femnis",), SpecError, "did you mean 'femnist'"),
        (("/nowhere",), SpecError, "there is no folder '/nowhere'"),
        (("plays=/nowhere",), DataError, "There is no '/nowhere'"),
        (("femnist",), DataError, "--data femnist=PATH"),
        (("femnist", "glyphs"), SpecError, "both femnist and glyphs"),
    ],
)
def test_what_cannot_be_is_refused(given: tuple[str, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        choose_data(given)
