"""The witness file of a ledger: crashes and full disks leave it fit for use, and what only it knows of shows."""

import errno
import os
from pathlib import Path

import pytest

from ledgers import guard_on, reserved, witness_of
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger in which a run has reserved one round."""
    place = tmp_path / "ledger.sqlite"
    with Ledger.open(place) as ledger:
        guard_on(ledger).reserve(0, {"north": 2, "south": 1}, "start")
    return place


def go_on(path: Path) -> None:
    """Another round, by another process."""
    with Ledger.open(path, create=False) as ledger:
        guard_on(ledger).reserve(1, {"north": 2}, "next")


@pytest.mark.parametrize("left", [0, 1, 2, 3, 30, 66])
@pytest.mark.parametrize("filler", [b"", bytes(5)])
def test_a_witness_line_that_was_cut_short_is_dropped_by_the_next(path: Path, left: int, filler: bytes) -> None:
    *lines, last, _ = witness_of(path).read_bytes().split(b"\n")
    witness_of(path).write_bytes(b"".join(line + b"\n" for line in lines) + last[:left] + filler)
    go_on(path)
    assert reserved(path) == {"north": 4, "south": 1}
    assert all(len(line.split()) == 2 for line in witness_of(path).read_text().splitlines())


def test_a_witness_line_for_which_there_is_no_room_is_an_error_and_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with Ledger.open(path) as ledger, monkeypatch.context() as patch:
        guard = guard_on(ledger)
        patch.setattr(os, "write", lambda handle, content: write(handle, content[:5]))
        with pytest.raises(LedgerError, match=os.strerror(errno.ENOSPC)):
            guard.reserve(1, {"north": 2}, "next")
    assert reserved(path)["north"] == 4  # paid for, though nobody will train for it
    go_on(path)
    assert reserved(path)["north"] == 4


def test_a_crash_before_the_first_witness_does_no_harm_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.open(path).close()
    witness_of(path).unlink()  # as after a kill between the first entry and its witness
    bear_witness = Ledger._bear_witness

    def killed_at_the_next(self: Ledger) -> None:
        if self.head.number > 1:
            raise KeyboardInterrupt
        bear_witness(self)

    with Ledger.open(path) as ledger, monkeypatch.context() as patch:
        patch.setattr(Ledger, "_bear_witness", killed_at_the_next)
        with pytest.raises(KeyboardInterrupt):
            guard_on(ledger)
    with Ledger.open(path) as ledger:
        assert "first" in ledger.state.runs


@pytest.mark.parametrize("number", ["9" * 18, "9" * 19, "9" * 20, "9" * 5000, "-1", "٣٣", "0", ""])
def test_a_witness_that_counts_too_far_is_an_error(path: Path, number: str) -> None:
    with witness_of(path).open("a") as file:
        file.write(f"{number} {'0' * 64}\n")
    with pytest.raises(LedgerError, match="witness"):
        Ledger.open(path)
