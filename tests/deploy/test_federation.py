"""A federation of real processes on this machine, over TLS: it trains, and it goes on when something ends.

One set of silos serves all tests of this file; every test starts a server of its own. Who is turned away is in
test_intruders.py.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from loopback import NAMES, PATIENCE, Federation, alive, answers, children, rounds_of, running, simulated, trained
from wholegrain.privacy.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.exact_prices, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three silos that look for their server."""
    with running(tmp_path_factory.mktemp("real")) as made:
        yield made


# What is found afterwards.


def steps(path: Path, run: str) -> tuple[dict[str, int], dict[str, int]]:
    """Steps that a ledger has reserved and released for a run, by silo."""
    reserved: dict[str, int] = {}
    released: dict[str, int] = {}
    with Ledger.open(path, create=False) as ledger:
        for name, account in ledger.state.runs.items():
            if name.partition("/")[0] == run:
                for total, found in ((reserved, account.reserved), (released, account.released)):
                    for silo, count in found.items():
                        total[silo] = total.get(silo, 0) + count
    return reserved, released


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "seconds"}


def run_of(folder: Path) -> str:
    return json.loads((folder / "run.json").read_text())["run"]


def test_a_real_federation_trains_the_same_model_as_a_simulation(federation: Federation, tmp_path: Path) -> None:
    """From the head of a public start, of which every silo has a copy of its own; without one, see below."""
    model = federation.public_model("head")
    run = federation.serve(federation.write_server("first", 2, model))
    assert (run / "summary.json").exists()
    assert trained(run) == simulated(federation, 2, tmp_path, model)
    assert [line["faults"] for line in rounds_of(run)] == [[]] * 2
    reserved, released = steps(run / "ledger.sqlite", run_of(run))
    assert reserved == released == dict.fromkeys(NAMES, 4)
    for name in NAMES:
        own = steps(federation.silo(name) / "ledger.sqlite", run_of(run))
        assert own == ({name: 4}, {name: 4})
        assert not (federation.silo(name) / "refusals.jsonl").exists()


def test_a_run_that_does_not_come_to_its_end_is_no_success(federation: Federation) -> None:
    """`flwr run` would return 0 here."""
    server = federation.write_server("misfit", 1, shape=[4])
    federation.serve(server, code=2)
    assert "is not what the spec says: it has features = 3" in (server / "server.log").read_text()
    assert "Traceback" not in (server / "server.log").read_text()


# What ends, and goes on.


def faults(run: Path, silo: str) -> dict[int, str]:
    """In which rounds a silo gave nothing, and why."""
    return {
        line["round"]: fault["reason"] for line in rounds_of(run) for fault in line["faults"] if fault["silo"] == silo
    }


UNREACHABLE = (
    "it did not answer in time",
    "it is not connected",
    "it failed: Error: Node",
    "it failed: Error: Message",
)


def test_a_silo_that_dies_in_a_run_is_a_fault_until_it_is_back(federation: Federation) -> None:
    server = federation.write_server("dropout", rounds=1000, patience=60.0)
    run = server / "run"
    process = federation.start_server(server)
    federation.wait_until(lambda: len(rounds_of(run)) >= 1, process)
    federation.silos["west"].kill()
    federation.wait_until(lambda: faults(run, "west"), process)
    federation.start_silo("west")
    federation.wait_until(lambda: len(rounds_of(run)) > max(faults(run, "west")) + 2, process)
    process.terminate()
    assert process.wait(PATIENCE) == 130, federation.logs()
    lost = faults(run, "west")
    assert all(reason.startswith(UNREACHABLE) for reason in lost.values()), lost
    reserved, released = steps(run / "ledger.sqlite", run_of(run))
    for name in NAMES:
        own_reserved, own_released = steps(federation.silo(name) / "ledger.sqlite", run_of(run))
        assert released[name] <= own_released[name] <= own_reserved[name] <= reserved[name]
        assert released[name] >= 2 * (len(rounds_of(run)) - len(faults(run, name)))


def test_a_server_that_dies_goes_on_with_its_run_when_it_is_back(federation: Federation, tmp_path: Path) -> None:
    """First it crashes, and its supervisor starts it again; then both are killed, and the command is typed again."""
    server = federation.write_server("restart", rounds=8)
    run = server / "run"
    process = federation.start_server(server)
    federation.wait_until(lambda: len(rounds_of(run)) >= 1, process)
    (worker,) = children(process.pid)
    os.kill(worker, signal.SIGKILL)
    federation.wait_until(lambda: len(rounds_of(run)) >= 2, process)
    assert children(process.pid) != [worker]
    workers = children(process.pid)
    process.kill()
    (worker,) = workers
    federation.wait_until(lambda: not alive(worker))
    before = rounds_of(run)
    federation.wait_until(lambda: not answers(federation.port))
    federation.serve(server)
    assert "it was ended by signal 9 and is started again" in (server / "server.log").read_text()
    # A round whose parameters were not on disk yet is played again: the same, but for the time that it took.
    kept = [untimed(line) for line in rounds_of(run)[: len(before) - 1]]
    assert kept == [untimed(line) for line in before[:-1]]
    assert [line["round"] for line in rounds_of(run)] == list(range(8))
    assert [line["faults"] for line in rounds_of(run)] == [[]] * 8
    assert trained(run) == simulated(federation, 8, tmp_path)
    reserved, released = steps(run / "ledger.sqlite", run_of(run))
    assert reserved == released == dict.fromkeys(NAMES, 16)
    for name in NAMES:
        own = steps(federation.silo(name) / "ledger.sqlite", run_of(run))
        assert own == ({name: 16}, {name: 16})


def test_a_server_that_is_told_to_stop_says_so_and_goes_on_later(federation: Federation) -> None:
    server = federation.write_server("stopped", rounds=30)
    process = federation.start_server(server)
    federation.wait_until(lambda: len(rounds_of(server / "run")) >= 1, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 130, federation.logs()
    assert "the same command goes on with the run" in (server / "server.log").read_text()
    assert not (server / "run" / "summary.json").exists()


def test_a_silo_ends_when_it_is_told_to(federation: Federation) -> None:
    federation.silos["south"].terminate()
    federation.silos["west"].send_signal(signal.SIGINT)
    assert federation.silos["south"].wait(PATIENCE) == 0
    assert federation.silos["west"].wait(PATIENCE) in (0, 130, -signal.SIGINT)
