"""Folders of 0.1.0: their runs are reported as they were, and resuming one is refused in one sentence."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from command import Command
from small_runs import ROUNDS, contents, start, stop_after
from wholegrain import __version__
from wholegrain.privacy.definitions import Standing
from wholegrain.report.page import page
from wholegrain.report.run_reader import read_run
from wholegrain.runs.run_folder import RunFolder


def rewrite(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def make_old(folder: Path) -> Path:
    """Rewrite the files of a run as 0.1.0 wrote them: with fewer keys, and a data digest keyed by the run's name."""
    facts = {name: json.loads((folder / name).read_text()) for name in ("run.json", "spec.json", "plan.json")}
    del facts["spec.json"]["silos"]["sizes"]
    for guarantee in facts["plan.json"]["guarantees"]:
        del guarantee["counted_sizes"]
    compact = json.dumps(facts["spec.json"], separators=(",", ":"), ensure_ascii=False)
    del facts["run.json"]["key"]
    facts["run.json"] |= {"wholegrain": "0.1.0", "spec": hashlib.sha256(compact.encode()).hexdigest()}
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        del summary["spent"], summary["account"]
        facts["summary.json"] = {"guarantees": facts["plan.json"]["guarantees"], **summary}
        del facts["summary.json"]["planned"]
    for name, content in facts.items():
        rewrite(folder / name, content)
    return folder


def test_a_run_of_an_old_version_is_not_gone_on_with_and_nothing_is_changed(
    tmp_path: Path, wholegrain: Command
) -> None:
    folder = make_old(stop_after(tmp_path / "old", 2).path)
    before = contents(folder)
    told = wholegrain("resume", str(folder))
    assert told.code == 2
    assert told.err == (
        f"error: The run in '{folder}' was started by version 0.1.0 of wholegrain, and this is version"
        f" {__version__}, whose specs say more; go on with that version, or start a new run.\n"
    )
    assert contents(folder) == before


@pytest.mark.parametrize("finish", [True, False])
def test_a_run_of_an_old_version_is_reported(tmp_path: Path, finish: bool) -> None:
    out = tmp_path / "old"
    if finish:
        start(out)
    else:
        stop_after(out, 2)
    run = read_run(make_old(out), "old")
    assert len(run.rounds) == (ROUNDS if finish else 2)
    assert run.finished is finish
    assert run.plan.promise.standing is Standing.PROVED
    assert run.plan.promise.counted_sizes  # 0.1.0 knew no others
    assert "were read off the data, as only a simulation may" in page([run])


def test_without_its_ledger_nobody_knows_what_an_old_run_has_spent(tmp_path: Path) -> None:
    start(tmp_path / "old")
    folder = make_old(tmp_path / "old")
    (folder / "ledger.sqlite").unlink()
    summary = RunFolder.open(folder).summary
    assert summary is not None
    assert summary.spent == ()
    assert [each.unit for each in summary.planned] == ["subject", "item", "silo"]
    run = read_run(folder, "old")
    assert run.promise.standing is Standing.NONE
    assert "nobody knows what was spent" in run.promise.because
