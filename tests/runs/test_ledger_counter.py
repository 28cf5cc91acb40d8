"""A counter on another disk: what a copy of the whole machine has forgotten, it has not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from command import Command
from ledgers import guard_on, reserved
from small_runs import prepared, secure_spec, stop_after
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.accounts import release_ledger
from wholegrain.runs.ledger_backup import back_up, restore
from wholegrain.runs.ledger_counter import LedgerCounter


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.cli.run_commands.prepare", prepared)


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty counter, as an operator makes it."""
    path = tmp_path / "share" / "counter"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setenv("WHOLEGRAIN_COUNTER", str(path))
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


def spend(ledger: Path, round: int) -> None:
    with release_ledger(ledger, "patients") as book:
        guard_on(book).reserve(round, {"north": 2}, "start")


def put_back(tmp_path: Path, *names: str) -> None:
    """Everything that this machine keeps, from one copy."""
    for name in names:
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path / "copy" / name, tmp_path / name)


def resume_twice(tmp_path: Path, wholegrain: Command) -> tuple[int, str]:
    """Resume a run to its end, put run and state back together, and resume it again; the second outcome."""
    stop_after(tmp_path / "run", 3, secure_spec(tmp_path / "specs"))
    for name in ("state", "run"):
        shutil.copytree(tmp_path / name, tmp_path / "copy" / name)
    assert wholegrain("resume", tmp_path / "run", "--quiet").code == 0
    put_back(tmp_path, "state", "run")
    outcome = wholegrain("resume", tmp_path / "run", "--quiet")
    return outcome.code, " ".join(outcome.err.split())


def test_a_run_and_a_state_that_were_put_back_together_are_refused(
    tmp_path: Path, counter: Path, ledger: Path, wholegrain: Command
) -> None:
    code, said = resume_twice(tmp_path, wholegrain)
    assert code == 2
    assert f"the counter '{counter}' has seen: it was put back with all that this machine knows of it" in said
    assert said.count(". ") == 0
    assert "If this folder" not in said
    with Ledger.open(ledger, create=False) as book:
        assert LedgerCounter(counter).find("patients") != book.head


def test_without_a_counter_nobody_can_see_it_and_resume_says_so(tmp_path: Path, wholegrain: Command) -> None:
    code, said = resume_twice(tmp_path, wholegrain)
    assert code == 0
    assert "If this folder and the state folder were put back from one copy, do not go on" in said


def test_the_counter_holds_every_entry_before_anything_is_released(counter: Path, ledger: Path) -> None:
    with release_ledger(ledger, "patients") as book:
        guard = guard_on(book)
        for round in range(3):
            guard.reserve(round, {"north": 2}, "start")
            assert json.loads(counter.read_text()) == {"patients": {"number": book.head.number, "hash": book.head.hash}}
    assert counter.stat().st_mode & 0o077 == 0


def lose(counter: Path) -> None:
    counter.unlink()


def spoil(text: str) -> Callable[[Path], object]:
    return lambda counter: counter.write_text(text)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lose, "is not there; mount its disk, or make an empty file if there has never been one."),
        (spoil("{"), "cannot be used"),
        (spoil("[]"), "cannot be used"),
        (spoil('{"patients": {"number": 3}}'), "cannot be used"),
        (spoil('{"patients": {"number": -1, "hash": ""}}'), "cannot be used"),
        (spoil('{"patients": {"number": 9999999999999999999999, "hash": ""}}'), "cannot be used"),
    ],
    ids=["gone", "cut short", "a list", "no hash", "negative", "beyond all ledgers"],
)
def test_nothing_is_paid_for_while_the_counter_cannot_be_read(
    counter: Path, ledger: Path, damage: Callable[[Path], object], said: str
) -> None:
    with release_ledger(ledger, "patients") as book:
        guard = guard_on(book)
        guard.reserve(0, {"north": 2}, "start")
        damage(counter)
        with pytest.raises(LedgerError, match=said):
            guard.reserve(1, {"north": 2}, "start")
    with pytest.raises(LedgerError, match=said):
        spend(ledger, 2)


def test_a_ledger_that_is_gone_with_all_traces_is_not_begun_anew(
    counter: Path, ledger: Path, wholegrain: Command
) -> None:
    spend(ledger, 0)
    shutil.rmtree(ledger.parent)
    with pytest.raises(LedgerError, match="There is no ledger"):
        spend(ledger, 0)
    assert not ledger.exists()
    # With the state folder empty nothing is known to forget, but by the counter.
    assert wholegrain("ledger", "forget", "patients").code == 0
    spend(ledger, 0)


def test_an_owner_may_adopt_an_older_ledger(tmp_path: Path, counter: Path, ledger: Path, wholegrain: Command) -> None:
    spend(ledger, 0)
    shutil.copytree(tmp_path / "state", tmp_path / "copy" / "state")
    spend(ledger, 1)
    put_back(tmp_path, "state")
    with pytest.raises(LedgerError, match="does not hold entry"):
        spend(ledger, 1)
    assert wholegrain("ledger", "adopt", ledger, "--data", "patients").code == 0
    spend(ledger, 1)
    assert reserved(ledger) == {"north": 4}


def test_a_copy_that_the_counter_has_seen_the_end_of_is_not_restored(
    tmp_path: Path, counter: Path, ledger: Path
) -> None:
    spend(ledger, 0)
    back_up(ledger, tmp_path / "backup")
    spend(ledger, 1)
    shutil.rmtree(ledger.parent)
    with pytest.raises(LedgerError, match="does not hold entry"):
        restore(tmp_path / "backup", ledger)


def test_several_data_sets_share_a_counter(tmp_path: Path, counter: Path, ledger: Path) -> None:
    spend(ledger, 0)
    with release_ledger(tmp_path / "other.sqlite", "others") as book:
        assert book.head.number == 1
    assert set(json.loads(counter.read_text())) == {"patients"}, "nothing was paid for from the other"
