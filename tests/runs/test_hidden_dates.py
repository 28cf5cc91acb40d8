"""A folder is passed on with the dates of its files: those of a release do not tell how long its rounds took."""

from pathlib import Path

import pytest

from small_runs import secure_spec, write_spec
from wholegrain.cli import run_commands
from wholegrain.federation.round_record import RoundRecord
from wholegrain.runs.tensorboard import event_files


def dates(folder: Path) -> set[int]:
    return {path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def test_all_files_of_a_release_have_one_date(tmp_path: Path) -> None:
    run_commands.run(secure_spec(tmp_path / "specs"), out=tmp_path / "release", quiet=True)
    assert (tmp_path / "release" / "README.md").exists()
    assert len(dates(tmp_path / "release")) == 1


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
