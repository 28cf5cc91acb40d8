"""A release's folder is its owner's alone, and the dates of its files do not tell how long its rounds took."""

import os
from pathlib import Path

import pytest

from small_runs import resume, secure_spec, stop_after, write_spec
from wholegrain.cli import run_commands
from wholegrain.federation.round_record import RoundRecord
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import load
from wholegrain.runs.tensorboard import event_files


def dates(folder: Path) -> set[int]:
    return {path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def test_all_files_of_a_release_have_one_date(tmp_path: Path) -> None:
    run_commands.run(secure_spec(tmp_path / "specs"), out=tmp_path / "release", quiet=True)
    assert (tmp_path / "release" / "README.md").exists()
    assert len(dates(tmp_path / "release")) == 1


def others(folder: Path) -> list[str]:
    """What group or others have any right to."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_a_release_is_its_owners_alone_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    """Its rounds have scores without noise."""
    spec, kept = secure_spec(tmp_path / "specs"), tmp_path / "release"
    before = os.umask(mask)
    try:
        stop_after(kept, 2, spec)
        assert others(kept) == []
        resume(kept)
    finally:
        os.umask(before)
    assert others(kept) == []


def test_no_other_sees_a_release_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(RunFolder, "_fill", lambda folder, *given: seen.append(folder.path.stat().st_mode & 0o777))
    monkeypatch.setattr(RunFolder, "seal", lambda folder: None)
    RunFolder.create(tmp_path / "release", prepare(load(secure_spec(tmp_path / "specs"))))
    assert seen == [0o700]


def test_a_simulation_is_open_to_whom_the_umask_allows(tmp_path: Path) -> None:
    run_commands.run(write_spec(tmp_path / "specs"), out=tmp_path / "simulation", quiet=True)
    assert (tmp_path / "simulation").stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_simulation_keeps_its_dates(tmp_path: Path) -> None:
    run_commands.run(write_spec(tmp_path / "specs"), out=tmp_path / "simulation", quiet=True)
    assert len(dates(tmp_path / "simulation")) > 1


@pytest.mark.filterwarnings("ignore")
def test_the_events_of_a_release_are_dated_by_their_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'wholegrain[tensorboard]'")
    with event_files(tmp_path, timed=False) as observe:
        for number in range(3):
            observe(RoundRecord(round=number, cohort=("a",), spent=1.0, seconds=0.0))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path)).Reload().Scalars("privacy/epsilon spent")
    assert [event.wall_time - found[0].wall_time for event in found] == pytest.approx([0, 1, 2])
    assert len(dates(tmp_path)) == 1
