import shutil
from pathlib import Path

import pytest

from wholegrain.errors import RunError
from wholegrain.privacy.definitions import Standing
from wholegrain.report.run_reader import read_run, read_runs


def test_a_finished_run_is_read_in_full(proved: Path) -> None:
    run = read_run(proved, "proved")
    assert run.finished
    assert run.simulation
    assert [done.round for done in run.rounds] == [0, 1, 2]
    assert run.promise.standing is Standing.PROVED
    assert run.plan.claim is None
    assert run.counts is not None
    assert sum(run.counts.items_per_subject.values()) == run.counts.subjects
    assert run.ledger.whole


def test_a_run_as_printed_has_its_claim_beside_what_is_proved(printed: Path) -> None:
    run = read_run(printed, "printed")
    assert run.plan.claim is not None
    assert run.plan.claim.epsilon == 4.0
    assert run.promise.standing is Standing.NONE


def test_an_unfinished_run_is_read_as_far_as_it_got(proved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(proved, tmp_path / "half")
    (folder / "summary.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text(lines[0] + lines[1][:20])
    run = read_run(folder, "half")
    assert not run.finished
    assert len(run.rounds) == 1


def test_a_broken_ledger_is_told_and_does_not_stop_the_report(proved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(proved, tmp_path / "broken")
    (folder / "ledger.sqlite").write_bytes(b"not a database at all, but long enough to look like something")
    run = read_run(folder, "broken")
    assert not run.ledger.whole
    assert "ledger" in run.ledger.sentence


def test_runs_of_one_name_are_told_apart_by_their_paths(proved: Path, tmp_path: Path) -> None:
    other = shutil.copytree(proved, tmp_path / "proved")
    names = [run.name for run in read_runs([proved, other])]
    assert len(set(names)) == 2


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        read_run(tmp_path, "nothing")


@pytest.mark.parametrize("text", ["{}", '{"format": 1}', '{"format": 1, "run": "0000000000000000"}'])
def test_a_run_that_does_not_say_who_it_is_is_refused(proved: Path, tmp_path: Path, text: str) -> None:
    folder = shutil.copytree(proved, tmp_path / "nameless")
    (folder / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json' is damaged: .*; put it back, or start anew\.$"):
        read_run(folder, "nameless")
