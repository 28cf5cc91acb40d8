"""`watch`: the page of a run that goes on, or of one that is still to come."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from command import Command
from wholegrain.cli import report_commands


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """What was served, each time until Ctrl-C."""
    seen: list[list[Path]] = []

    def serve(folders: list[Path], port: int) -> None:
        seen.append(folders)
        raise KeyboardInterrupt

    monkeypatch.setattr(report_commands, "_serve", serve)
    return seen


def sleeping(monkeypatch: pytest.MonkeyPatch, *happens: Any) -> None:
    """What happens, one after the other, while the command pauses."""
    events = iter(happens)
    monkeypatch.setattr(report_commands.time, "sleep", lambda seconds: next(events)())


@pytest.mark.parametrize("empty", [False, True], ids=["no folder", "an empty folder"])
def test_a_run_that_is_to_come_is_waited_for(
    wholegrain: Command, proved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[Any], empty: bool
) -> None:
    folder = tmp_path / "later"
    if empty:
        folder.mkdir()
    begin = lambda: shutil.copytree(proved, folder, dirs_exist_ok=True)  # noqa: E731
    sleeping(monkeypatch, lambda: None, begin)
    told = wholegrain("watch", proved, folder)
    assert told.code == 0
    assert told.err == f"Waiting for a run in '{folder}' – Ctrl-C ends it\n"
    assert served == [[proved, folder]]


def test_waiting_ends_with_ctrl_c(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[Any]
) -> None:
    def press() -> None:
        raise KeyboardInterrupt

    sleeping(monkeypatch, press)
    told = wholegrain("watch", tmp_path / "never")
    assert told.code == 0
    assert "Traceback" not in told.err
    assert not served


def test_a_folder_of_other_things_is_not_waited_for(wholegrain: Command, tmp_path: Path, served: list[Any]) -> None:
    (tmp_path / "mine").touch()
    told = wholegrain("watch", tmp_path)
    assert told.code == 2
    assert told.err == f"error: '{tmp_path}' holds no run: there is no run.json in it.\n"
    assert not served
