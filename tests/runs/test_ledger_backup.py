"""Copies of ledgers: whole, and never a way to forget what was released."""

from pathlib import Path

import pytest

from command import Command
from ledgers import guard_on, reserved
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.ledger_backup import back_up, restore
from wholegrain.runs.ledger_registry import LedgerRegistry, open_known_ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger that this machine knows, with one round reserved."""
    place = tmp_path / "state" / "ledger.sqlite"
    place.parent.mkdir()
    spend(place, 0)
    return place


def spend(path: Path, round: int) -> None:
    with Ledger.open(path) as ledger, open_known_ledger("patients", ledger):
        guard_on(ledger).reserve(round, {"north": 2}, "start")


def test_a_copy_can_take_the_place_of_a_ledger_that_is_lost(path: Path, tmp_path: Path, wholegrain: Command) -> None:
    before = reserved(path)
    assert wholegrain("ledger", "backup", path, tmp_path / "copy").code == 0
    for file in path.parent.glob("ledger.sqlite*"):
        file.unlink()
    assert wholegrain("ledger", "restore", tmp_path / "copy", path).code == 0
    assert reserved(path) == before
    spend(path, 1)
    assert path.stat().st_mode & 0o077 == 0


def test_a_copy_that_would_forget_a_release_is_refused(path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "copy")
    spend(path, 1)
    with pytest.raises(LedgerError, match="earlier state"):
        restore(tmp_path / "copy", path)
    LedgerRegistry.here().forget("patients")
    with pytest.raises(LedgerError, match="would forget releases"):
        restore(tmp_path / "copy", path)
    assert reserved(path) == {"north": 4}


def test_a_copy_is_not_written_over_another(path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "copy")
    with pytest.raises(LedgerError, match="already exists"):
        back_up(path, tmp_path / "copy")
