"""Faults of the server's and the silo's machine: no descriptor, no room, no memory. They fail a round, and no run."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from deployment import write_charter
from grids import Clock, within_a_server_app
from served import grid_of, reserved, rounds_of, spec, two_silos
from wholegrain._machine_faults import is_passing
from wholegrain.deploy import fleet_link
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.server import serve
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines import silo_heads
from wholegrain.engines.silo_heads import SiloHeads
from wholegrain.errors import LedgerError
from wholegrain.federation import rounds
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.checkpoints import Checkpoints
from wholegrain.runs.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("coarse_prices")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return within_a_server_app(monkeypatch)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, SiloService]]:
    with two_silos(tmp_path) as opened:
        yield opened


def fails(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception, at: range) -> list[int]:
    """Make these calls of a function fail; the calls that were made are counted."""
    honest, calls = getattr(owner, name), []

    def call(*arguments: Any, **more: Any) -> Any:
        calls.append(len(calls))
        if calls[-1] in at:
            raise error
        return honest(*arguments, **more)

    monkeypatch.setattr(owner, name, call)
    return calls


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
NO_FILES = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("error", [FULL, NO_FILES, BROKEN], ids=str)
@pytest.mark.parametrize(
    ("owner", "name", "first"), [(Checkpoints, "add", 2), (RunFolder, "seal", 1), (RunFolder, "finish", 0)]
)
def test_a_record_that_cannot_be_written_is_written_later(
    hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, owner, name: str, first: int, error: OSError
) -> None:
    with monkeypatch.context() as patch:
        calls = fails(patch, owner, name, error, range(first, first + 4))
        serve(spec(hosts), tmp_path / "run", grid_of(hosts))
    assert len(calls) > first + 4
    assert [line["round"] for line in rounds_of(tmp_path / "run")] == [0, 1, 2]
    assert clock.now > 2 + 4 + 8
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert reserved(ledger) == {"north": 6, "south": 6}, "and no round was paid for twice"


@pytest.mark.parametrize("first", range(3, 9))
def test_a_ledger_that_cannot_be_written_is_written_later(
    hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    served = tmp_path / "run" / "ledger.sqlite"
    bear, calls = Ledger._bear_witness, []

    def bear_witness(ledger: Ledger) -> None:
        if ledger.path == served:
            calls.append(len(calls))
            if first <= calls[-1] < first + 5:
                raise FULL
        bear(ledger)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_bear_witness", bear_witness)
        serve(spec(hosts), tmp_path / "run", grid_of(hosts))
    assert [line["failed"] for line in rounds_of(tmp_path / "run")] == [False] * 3
    with Ledger.open(served) as ledger:
        assert reserved(ledger) == {"north": 6, "south": 6}


def test_what_silos_said_of_their_ledgers_is_kept_when_there_is_room_again(
    hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = SiloHeads(tmp_path / "heads.json")
    with monkeypatch.context() as patch:
        fails(patch, silo_heads, "write_whole", FULL, range(4))
        serve(spec(hosts), tmp_path / "run", grid_of(hosts), heads=heads)
    assert [line["failed"] for line in rounds_of(tmp_path / "run")] == [False] * 3
    assert (tmp_path / "heads.json").exists()


def test_a_round_for_which_there_is_no_memory_fails_and_the_run_goes_on(
    hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, rounds, "average", MemoryError(), range(1, 2))
    serve(spec(hosts), tmp_path / "run", grid_of(hosts))
    lines = rounds_of(tmp_path / "run")
    assert [line["failed"] for line in lines] == [False, True, False]
    assert "MemoryError" in lines[1]["faults"][0]["reason"]


def raised(error: Exception, cause: Exception | None) -> Exception:
    error.__cause__ = cause
    return error


def locked() -> sqlite3.Error:
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN | (1 << 8)  # type: ignore[misc]
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (raised(LedgerError("x"), NO_FILES), True),
        (raised(LedgerError("x"), locked()), True),
        (raised(LedgerError("x"), raised(LedgerError("y"), MemoryError())), True),
        (raised(LedgerError("x"), LedgerError("entry 3 was changed")), False),
        (raised(LedgerError("x"), PermissionError(errno.EACCES, "x")), False),
        (ValueError("x"), False),
    ],
    ids=repr,
)
def test_only_what_passes_is_waited_for(error: Exception, passes: bool) -> None:
    assert is_passing(error) is passes


def test_a_ledger_that_cannot_be_trusted_still_ends_the_run(
    hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(
        monkeypatch, rounds, "digest", LedgerError("The ledger 'x' cannot be trusted: entry 3 was changed."), range(1)
    )
    with pytest.raises(LedgerError, match="entry 3 was changed"):
        serve(spec(hosts), tmp_path / "run", grid_of(hosts))


@pytest.mark.parametrize("error", [NO_FILES, MemoryError()], ids=repr)
def test_a_silo_without_descriptors_or_memory_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    for name in ("ca.crt", "key"):
        (tmp_path / name).write_text("x")
    link = {"address": "127.0.0.1:1", "certificates": "ca.crt", "key": "key"}
    charter = load_charter(write_charter(tmp_path, link=link))
    tries: list[int] = []

    def connect(*_: object) -> None:
        tries.append(1)
        raise KeyboardInterrupt if len(tries) == 4 else error

    for name, put in (
        ("_connect", connect),
        ("AGAIN", 0.0),
        ("open_silo", lambda charter: ExitStack()),
        ("watch_silo", lambda host: (host, None)),
    ):
        monkeypatch.setattr(fleet_link, name, put)
    monkeypatch.setattr(fleet_link.signal, "signal", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        fleet_link.run_silo(charter)
    assert len([line for line in caplog.messages if "this machine cannot reach 127.0.0.1:1 now" in line]) == 1


def test_a_line_that_was_added_once_is_not_added_twice(hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fails(patch, RunFolder, "seal", BROKEN, range(1, 3))
        serve(spec(hosts), tmp_path / "run", grid_of(hosts))
    text = (tmp_path / "run" / "rounds.jsonl").read_text()
    assert text.endswith("\n")
    assert text.count("\n") == 3
