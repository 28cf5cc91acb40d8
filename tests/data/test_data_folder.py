"""Files are found where they are said to be, or in WHOLEGRAIN_DATA; otherwise it is said what to do."""

from pathlib import Path

import pytest

from wholegrain.data.data_folder import find_data
from wholegrain.errors import DataError, SpecError


def test_a_path_that_is_given_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLEGRAIN_DATA", "/nowhere")
    assert find_data(str(tmp_path), "femnist", "femnist") == tmp_path
    assert find_data(tmp_path, "femnist", "femnist") == tmp_path


def test_otherwise_the_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLEGRAIN_DATA", str(tmp_path))
    assert find_data(None, "mnist_writers") == tmp_path
    (tmp_path / "femnist").mkdir()
    assert find_data(None, "femnist", "femnist") == tmp_path / "femnist"
    with pytest.raises(DataError, match=r"There is no .*plays.* set data\.options\.path"):
        find_data(None, "plays", "plays.txt")


@pytest.mark.parametrize("value", [None, ""])
def test_without_either_it_says_what_to_set(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHOLEGRAIN_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("WHOLEGRAIN_DATA", value)
    with pytest.raises(DataError, match=r"'femnist' reads files .* data\.options\.path .* WHOLEGRAIN_DATA .*'femnist'"):
        find_data(None, "femnist", "femnist")


@pytest.mark.parametrize("path", ["none", "a\0b", "x" * 5000])
def test_a_path_that_leads_nowhere(path: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        find_data(tmp_path / path, "femnist", "femnist")


@pytest.mark.parametrize("path", [3, True, ["a"], {"a": 1}])
def test_a_path_that_is_no_name(path: object) -> None:
    with pytest.raises(SpecError, match="name of a file or folder"):
        find_data(path, "femnist", "femnist")  # type: ignore[arg-type]
