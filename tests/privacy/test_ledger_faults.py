"""What mistakes and full disks do to a ledger: nothing."""

import os
import sqlite3
from pathlib import Path

import pytest

from ledgers import bodies, guard_on, reserved, witness_of
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Reserved


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger in which a run has reserved one round."""
    place = tmp_path / "ledger.sqlite"
    with Ledger.open(place) as ledger:
        guard_on(ledger).reserve(0, {"north": 2, "south": 1}, "start")
    return place


@pytest.mark.parametrize("witness", [True, False])
def test_an_empty_file_is_no_ledger_unless_one_is_to_be_made(path: Path, witness: bool) -> None:
    os.truncate(path, 0)
    if not witness:
        witness_of(path).unlink()
    with pytest.raises(LedgerError, match="empty"):
        Ledger.open(path, create=False)
    assert path.read_bytes() == b""


def test_an_empty_file_with_a_witness_is_not_begun_anew(path: Path) -> None:
    os.truncate(path, 0)
    with pytest.raises(LedgerError, match="gone"):
        Ledger.open(path)
    assert path.read_bytes() == b""


def test_another_process_that_is_faster_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write_first = tmp_path / "ledger.sqlite", Ledger._write_first

    def overtaken(self: Ledger) -> None:
        monkeypatch.setattr(Ledger, "_write_first", write_first)
        Ledger.open(path).close()
        write_first(self)

    monkeypatch.setattr(Ledger, "_write_first", overtaken)
    with Ledger.open(path) as ledger:
        assert ledger.head.number == 1


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE places (name TEXT)")
    database.commit()
    database.close()
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(LedgerError, match="another program"):
            Ledger.open(path, create=create)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_entry_that_contradicts_others_is_refused_before_it_is_there(path: Path) -> None:
    before = bodies(path)
    with Ledger.open(path) as ledger:
        wrong = Reserved(run="unknown", round=0, silo="north", steps=1, stream="s", start="x")
        with pytest.raises(LedgerError, match="never opened"), ledger.writing() as transaction:
            transaction.add(wrong)
        assert bodies(path) == before
        assert guard_on(ledger).reserve(1, {"north": 2}, "next").epsilon == 5
    assert reserved(path) == {"north": 4, "south": 1}


def test_a_commit_that_fails_leaves_the_ledger_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk at the last instant: what is in memory must not run ahead of the file."""

    class Full(sqlite3.Connection):
        full = False

        def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
            if self.full and sql == "COMMIT":
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Full))
    with Ledger.open(path) as ledger:
        guard, before = guard_on(ledger), ledger.head
        Full.full = True
        with pytest.raises(LedgerError, match="disk is full"):
            guard.reserve(1, {"north": 2}, "next")
        Full.full = False
        assert ledger.state.runs["first"].reserved == {"north": 2, "south": 1}
        assert ledger.head == before
        assert guard.reserve(1, {"north": 2}, "next").epsilon == 5
    assert reserved(path) == {"north": 4, "south": 1}


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 300, "gone/ledger.sqlite"):
        for create in (True, False):
            with pytest.raises(LedgerError, match="ledger"):
                Ledger.open(tmp_path / name, create=create)
