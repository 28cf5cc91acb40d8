"""One place for the account of a data set: no file that is gone, put back or exchanged opens a fresh budget."""

from pathlib import Path

import pytest

from command import Command
from small_runs import prepared, secure_spec, stop_after
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.ledger_registry import LEDGER, LedgerRegistry


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.cli.run_commands.prepare", prepared)


def test_a_deleted_ledger_opens_no_fresh_budget(tmp_path: Path, wholegrain: Command) -> None:
    spec, ledger = secure_spec(tmp_path / "specs"), tmp_path / "state" / LEDGER
    assert wholegrain("run", spec, "--out", tmp_path / "first", "--quiet").code == 0
    for file in (ledger, ledger.with_name(f"{LEDGER}.heads")):
        file.unlink()
    outcome = wholegrain("run", spec, "--out", tmp_path / "second", "--quiet")
    assert outcome.code == 2
    assert "keeps the account of the data 'patients' in" in " ".join(outcome.err.split())
    assert not ledger.exists()
    assert wholegrain("ledger", "forget", "patients").code == 0
    assert wholegrain("run", spec, "--out", tmp_path / "second", "--quiet").code == 0


def test_another_ledger_is_refused_until_it_is_adopted(tmp_path: Path, wholegrain: Command) -> None:
    first = secure_spec(tmp_path / "a")
    assert wholegrain("run", first, "--out", tmp_path / "first", "--quiet").code == 0
    second = secure_spec(tmp_path / "b", path="other.sqlite")
    Ledger.open(tmp_path / "b" / "other.sqlite").close()
    outcome = wholegrain("run", second, "--out", tmp_path / "second", "--quiet")
    assert outcome.code == 2
    assert "is not the one in which this machine keeps the account of the data 'patients'" in " ".join(
        outcome.err.split()
    )
    assert wholegrain("ledger", "adopt", tmp_path / "b" / "other.sqlite", "--data", "patients").code == 2
    moved = tmp_path / "b" / "moved.sqlite"
    for end in ("", ".heads"):
        (tmp_path / "state" / f"{LEDGER}{end}").rename(f"{moved}{end}")
    assert wholegrain("ledger", "adopt", moved, "--data", "patients").code == 0
    third = secure_spec(tmp_path / "b", path="moved.sqlite")
    assert wholegrain("run", third, "--out", tmp_path / "third", "--quiet").code == 0


def test_a_ledger_that_was_put_back_with_its_witness_is_refused(tmp_path: Path, wholegrain: Command) -> None:
    spec, ledger = secure_spec(tmp_path / "specs"), tmp_path / "state" / LEDGER
    stop_after(tmp_path / "run", 3, spec)
    early = {end: (ledger.with_name(f"{LEDGER}{end}")).read_bytes() for end in ("", ".heads")}
    assert wholegrain("run", spec, "--out", tmp_path / "second", "--quiet").code == 0
    for end, content in early.items():
        ledger.with_name(f"{LEDGER}{end}").write_bytes(content)
    outcome = wholegrain("run", spec, "--out", tmp_path / "third", "--quiet")
    assert outcome.code == 2
    assert "was put back to an earlier state" in " ".join(outcome.err.split())


def test_a_damaged_list_of_ledgers_is_said(tmp_path: Path, wholegrain: Command) -> None:
    spec = secure_spec(tmp_path / "specs")
    for content in ("[]", "{", '{"patients": 3}', '{"patients": {"path": "x"}}'):
        registry = LedgerRegistry(tmp_path / "state").path
        registry.parent.mkdir(exist_ok=True)
        registry.write_text(content)
        outcome = wholegrain("run", spec, "--out", tmp_path / "out", "--quiet")
        assert outcome.code == 2
        assert "The list of ledgers" in outcome.err


def test_simulations_leave_no_trace_on_the_machine(tmp_path: Path, wholegrain: Command) -> None:
    spec = secure_spec(tmp_path / "specs")
    spec.write_text(spec.read_text().replace('noise = "secure"', 'noise = "seeded"'))
    for name in ("first", "second"):
        assert wholegrain("run", spec, "--out", tmp_path / name, "--quiet").code == 0
    assert not (tmp_path / "state" / "ledgers.json").exists()
