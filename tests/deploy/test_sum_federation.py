"""Secure sums between real processes, over TLS: what the server sees, and what happens when silos are killed.

One set of silos serves all tests; every test plays a run of its own, and starts again what others have killed.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from scipy import stats

from deployment import as_toml
from loopback import Federation, free_port
from summing import ITEMS, SILOS, SUBJECTS, charter, simulated, training, write_tables
from wholegrain.deploy.fleet_grid import FleetGrid
from wholegrain.deploy.fleet_server import open_door
from wholegrain.deploy.scaffold import FederationDraft, write_federation
from wholegrain.deploy.server import serve
from wholegrain.deploy.server_folder import open_folder
from wholegrain.engines import wire
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.roster import read_roster, write_roster
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.run_result import RunResult

pytestmark = [pytest.mark.slow, pytest.mark.exact_prices, pytest.mark.timeout(3600)]

Watch = Callable[[str, Message], None]


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Five silos that look for their server; keys of all are in the charters, as `federation init` writes them."""
    folder = tmp_path_factory.mktemp("sums")
    write_tables(folder / "data")
    (folder / "home").mkdir()
    made = Federation(folder, free_port(), {})
    requests = write_federation(FederationDraft(SILOS, "127.0.0.1", made.port), folder / "federation")
    keys = {name: request.key for name, request in requests.items()}
    roster = read_roster(made.server / "roster.toml")
    for name in SILOS:
        roster = roster.with_silo(name, {"items": ITEMS, "subjects": SUBJECTS, "items_per_subject": 4})
        link = {"address": f"127.0.0.1:{made.port}", "certificates": "ca.crt"}
        agreed = charter(folder / "data", name, keys, link=link, limit={"epsilon": 100.0})
        (made.silo(name) / "silo.toml").write_text(as_toml(agreed))
    write_roster(roster, made.server / "roster.toml")
    try:
        yield made
    finally:
        for process in made.processes:
            made.end(process)


@pytest.fixture
def federation(silos: Federation) -> Federation:
    """With all silos running."""
    for name in SILOS:
        if name not in silos.silos or silos.silos[name].poll() is not None:
            silos.start_silo(name)
    return silos


def play(federation: Federation, out: Path, rounds: int, watch: Watch) -> RunResult:
    """The server's run in this process, so that every message that reaches it can be looked at."""
    shape = {"roster": "roster.toml", "shape": [3], "classes": 2, "patience": 600.0}
    spec = {**training(rounds={"count": rounds}, privacy={"epsilon": 12.0}), "federation": shape}
    (federation.server / "spec.toml").write_text(as_toml(spec))
    folder = open_folder(federation.server)
    with open_door(replace(folder.door, port=federation.port)) as (grid, keys), watching(grid, watch):
        return serve(folder.spec, out, grid, keys)


@contextlib.contextmanager
def watching(grid: FleetGrid, watch: Watch) -> Iterator[None]:
    pull = grid.pull_messages

    def pulled(ids: list[str]) -> list[Message]:
        found = list(pull(ids))
        for reply in found:
            watch(reply.metadata.message_type, reply)
        return found

    grid.pull_messages = pulled  # type: ignore[method-assign,assignment]
    yield


def expected(federation: Federation, rounds: int) -> bytes:
    return simulated(federation.folder / "data", rounds={"count": rounds}, privacy={"epsilon": 12.0})


def reserved(federation: Federation, out: Path) -> list[int]:
    """Steps that each silo has paid for in this run."""
    run, found = RunFolder.open(out).run, []
    for name in SILOS:
        with Ledger.open(federation.silo(name) / "ledger.sqlite", create=False) as ledger:
            runs = [each for key, each in ledger.state.runs.items() if key.partition("/")[0] == run]
        found.append(sum(sum(each.reserved.values()) for each in runs))
    return found


def test_the_servers_view_of_masked_vectors_is_uniform_and_the_model_that_of_a_simulation(
    federation: Federation, tmp_path: Path
) -> None:
    masked: list[np.ndarray] = []
    kinds: set[str] = set()

    def watch(kind: str, reply: Message) -> None:
        kinds.add(kind)
        content = wire.read_masked(reply)
        if content:
            masked.append(np.frombuffer(content, np.uint8))
        else:
            assert not reply.content.array_records

    run = play(federation, tmp_path / "run", 12, watch)
    assert [done.faults for done in run.rounds] == [()] * 12
    assert run.vector.numpy().tobytes() == expected(federation, 12)
    assert kinds == {"query", "train.keys", "train.mask", "train.survivors", "train.open"}
    assert len(masked) == 12 * len(SILOS)
    assert stats.chisquare(np.bincount(np.concatenate(masked), minlength=256)).pvalue > 1e-6
    bits = np.unpackbits(np.concatenate(masked))
    assert stats.binomtest(int(bits.sum()), len(bits)).pvalue > 1e-6
    assert reserved(federation, tmp_path / "run") == [12] * len(SILOS)


def killer(federation: Federation, names: set[str]) -> Watch:
    """Kill these silos as soon as their masked vectors are there."""

    def watch(kind: str, reply: Message) -> None:
        name = str(wire.read_answer(reply).get("silo")) if kind == "train.mask" and reply.has_content() else ""
        if name in names:
            names.discard(name)
            federation.end(federation.silos[name])

    return watch


def test_a_silo_killed_after_masking_is_in_the_sum_to_the_bit(federation: Federation, tmp_path: Path) -> None:
    run = play(federation, tmp_path / "run", 1, killer(federation, {"north"}))
    assert not run.rounds[0].failed
    assert run.rounds[0].faults == ()
    assert run.vector.numpy().tobytes() == expected(federation, 1)


def test_when_more_are_killed_than_may_nothing_is_opened_and_everybody_has_paid(
    federation: Federation, tmp_path: Path
) -> None:
    opened: list[str] = []
    kill = killer(federation, {"north", "south"})

    def watch(kind: str, reply: Message) -> None:
        kill(kind, reply)
        if kind == "train.open" and reply.has_content():
            opened.append(kind)

    run = play(federation, tmp_path / "run", 1, watch)
    assert run.rounds[0].failed
    assert {fault.silo for fault in run.rounds[0].faults} == set(SILOS)
    assert opened == []
    assert reserved(federation, tmp_path / "run") == [1] * len(SILOS)
