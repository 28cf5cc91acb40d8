"""Damaged ledgers, at random: what was spent is still known, or the ledger is not trusted; looking changes nothing."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from damages import Damage, Flip, damages
from effort import examples
from ledgers import bodies, guard_on, witness_of
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_state import LedgerState

ROUNDS = 3
HOUSE = examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, bytes, bytes, list[str]]:
    """A ledger with two runs, its two files, and its entries."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        for run in ("first", "second"):
            guard = guard_on(ledger, run, epsilon=100.0)
            for round in range(ROUNDS):
                reservation = guard.reserve(round, {"north": 2, "south": 1}, f"start-{round}")
                guard.confirm(reservation, ["north"])
    return path, path.read_bytes(), witness_of(path).read_bytes(), bodies(path)


def assert_known_or_refused(path: Path, before: list[str]) -> None:
    files = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    try:
        with Ledger.open(path, create=False) as ledger:
            state = ledger.state
    except LedgerError as error:
        message = str(error)
        assert "\n" not in message
        assert "ledger" in message
    else:
        assert bodies(path) == before
        assert_all_is_counted(state)
    assert {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()} == files


def assert_all_is_counted(state: LedgerState) -> None:
    for run in ("first", "second"):
        assert state.runs[run].reserved == {"north": 2 * ROUNDS, "south": ROUNDS}


Whole = tuple[Path, bytes, bytes, list[str]]


@HOUSE
@given(damage=damages())
def test_a_damaged_database(whole: Whole, damage: Damage) -> None:
    path, database, witness, entries = whole
    path.write_bytes(damage(database))
    witness_of(path).write_bytes(witness)
    assert_known_or_refused(path, entries)


@HOUSE
@given(byte=st.integers(0, 99), mask=st.integers(1, 255))
def test_a_damaged_header_of_the_database(whole: Whole, byte: int, mask: int) -> None:
    """A hundred bytes that decide how all others are read."""
    path, database, witness, entries = whole
    path.write_bytes(Flip(byte / len(database), mask)(database))
    witness_of(path).write_bytes(witness)
    assert_known_or_refused(path, entries)


@HOUSE
@given(damage=damages())
def test_a_damaged_witness(whole: Whole, damage: Damage) -> None:
    path, database, witness, entries = whole
    path.write_bytes(database)
    witness_of(path).write_bytes(damage(witness))
    assert_known_or_refused(path, entries)


@HOUSE
@given(pages=st.integers(0, 8))
def test_whole_pages_that_are_gone(whole: Whole, pages: int) -> None:
    path, database, witness, entries = whole
    path.write_bytes(database[: 4096 * pages])
    witness_of(path).write_bytes(witness)
    assert_known_or_refused(path, entries)


def test_an_earlier_state_of_the_database_is_missed_by_the_witness(tmp_path: Path) -> None:
    """Put back from a copy, whole in itself, at every entry."""
    path, copies = tmp_path / "ledger.sqlite", []
    with Ledger.open(path) as ledger:
        guard = guard_on(ledger, epsilon=100.0)
        for round in range(5):
            guard.reserve(round, {"north": 1}, "start")
            copies.append(path.read_bytes())
    for copy in copies[:-1]:
        path.write_bytes(copy)
        with pytest.raises(LedgerError, match="its witness file knows"):
            Ledger.open(path)
    path.write_bytes(copies[-1])
    with Ledger.open(path) as ledger:
        assert ledger.state.runs["first"].reserved == {"north": 5}
