"""What mistakes and full disks do to a ledger: nothing."""

import os
import sqlite3
from pathlib import Path

import pytest

from ledgers import guard_on, witness_of
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Ledger


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


