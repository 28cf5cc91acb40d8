"""The server of a federation whose silos are in this process: the same rounds, the same record, and no data."""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from backbones import public_model, write_backbone
from deployment import table, write_charter
from grids import Clock, FakeGrid, Node, within_a_server_app
from loopback import write_tables
from served import grid_of, node, reserved, rounds_of, spec, two_silos
from wholegrain.deploy import server
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.public_reasons import FAILED
from wholegrain.deploy.server import prepare_server, serve
from wholegrain.deploy.silo_answers import open_silo
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines import wire
from wholegrain.errors import RunError, SpecError
from wholegrain.privacy.ledger import Ledger
from wholegrain.report.run_reader import read_run
from wholegrain.report.wording import conditions
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

pytestmark = pytest.mark.usefixtures("coarse_prices")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return within_a_server_app(monkeypatch)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, SiloService]]:
    with two_silos(tmp_path) as opened:
        yield opened


def test_a_run_leaves_the_same_record_as_any_other_and_every_silo_has_paid(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = serve(spec(hosts), out, grid_of(hosts))
    assert {path.name for path in out.iterdir()} >= {"spec.json", "plan.json", "model.safetensors", "summary.json"}
    assert [line["faults"] for line in rounds_of(out)] == [[]] * 3
    assert run.guarantee.epsilon <= 4.0
    with Ledger.open(out / "ledger.sqlite") as ledger:
        assert reserved(ledger) == {"north": 6, "south": 6}
    for name, host in hosts.items():
        assert reserved(host.ledger) == {name: 6}


# A public start: the same parameters as in one process, with a backbone that no message carries.


@pytest.fixture(params=[("head", None), ("low_rank", 2), ("all", None)], ids=lambda param: param[0])
def public(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, SiloService], dict[str, Any]]]:
    """Silos that agree to a public start, each by a copy of its own, and the model as the server names it."""
    train, rank = request.param
    sizes = write_tables(tmp_path / "data")
    with ExitStack() as stack:
        hosts = {}
        for name in sizes:
            write_backbone(tmp_path / name / "b.safetensors")
            path = write_charter(
                tmp_path / name,
                silo=name,
                data={"table": table(str(tmp_path / "data" / f"{name}.csv"))},
                limit={"noise": "seeded", "smallest_noise": 0.5},
                allow={"models": [public_model("b.safetensors", train, rank)]},
            )
            hosts[name] = stack.enter_context(open_silo(load_charter(path)))
        write_backbone(tmp_path / "server" / "b.safetensors")
        yield hosts, public_model(str(tmp_path / "server" / "b.safetensors"), train, rank)


def public_spec(hosts: dict[str, SiloService], model: dict[str, Any]) -> RunSpec:
    silos = [{"items_per_subject": 4, **only(host, "name", "items", "subjects")} for host in hosts.values()]
    return spec(hosts, model=model, federation={"silos": silos})


def only(host: SiloService, *names: str) -> dict[str, Any]:
    return {name: getattr(host.silo.facts, name) for name in names}


def test_silos_that_start_from_their_copies_train_the_model_of_one_process(public, tmp_path: Path) -> None:
    hosts, model = public
    asked, out = public_spec(hosts, model), tmp_path / "run"
    grid = grid_of(hosts)
    run = serve(asked, out, grid)
    own = {**table(str(tmp_path / "data" / "all.csv")), "silo": "clinic"}
    sizes = {name: only(host, "items", "subjects") for name, host in hosts.items()}
    alone = prepare(
        RunSpec.of(
            asked.model_dump(exclude={"federation", "data", "silos", "evaluation"})
            | {"data": {"table": own}, "silos": {"items_per_subject": 4, "sizes": sizes}, "evaluation": {"test": 0.0}}
        )
    )
    with open_guard(alone, "alone") as guard:
        expected = execute(alone, guard)
    assert torch.equal(run.vector, expected.vector)
    assert all(torch.equal(run.model.state_dict()[name], value) for name, value in expected.model.state_dict().items())
    assert [line["faults"] for line in rounds_of(out)] == [[]] * 3
    sent = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert {wire.read_vector(message).numel() for message in sent} == {alone.public.trained_parameters}
    assert all(set(message.content) == {wire.TASK, wire.PARAMETERS} for message in sent)
    assert {wire.read_task(message).start for message in sent} == {wire.start_task(alone.public)}
    words = dict(conditions(read_run(out, "run")))["Public"]
    for part in (alone.public.digest[:16], "made up for a test", "the copy that its own charter names"):
        assert part in words


@pytest.mark.parametrize("public", [("head", None)], indirect=True)
@pytest.mark.parametrize("change", [{"seed": 12}, {"train": "all"}, {"train": "low_rank"}, {"start": None}], ids=str)
def test_what_silos_would_refuse_to_start_from_is_not_asked_of_them(public, tmp_path: Path, change) -> None:
    hosts, model = public
    digest = write_backbone(Path(model["start"]), seed=change.pop("seed", 11))
    model = {**model, **change}
    if model["start"] is None:
        model["train"] = "all"
    heads = {name: host.ledger.head for name, host in hosts.items()}
    grid = grid_of(hosts)
    asked = f"the backbone {digest} (train '{model['train']}'" if model["start"] else "no backbone"
    said = f"is not what the spec says: its charter does not agree to the model 'mlp' from {asked}"
    with pytest.raises(RunError, match=re.escape(said)):
        serve(public_spec(hosts, model), tmp_path / "run", grid)
    assert not grid.asked("train")
    assert {name: host.ledger.head for name, host in hosts.items()} == heads
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", create=False) as ledger:
        assert all(not run.reserved for run in ledger.state.runs.values())


def test_a_run_that_stopped_goes_on_where_it_was(hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = serve(spec(hosts), tmp_path / "whole", grid_of(hosts))
    grid, out = grid_of(hosts), tmp_path / "run"

    def stop(event: object) -> None:
        if getattr(event, "scores", None) is not None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(server, "_tell", stop)
        with pytest.raises(KeyboardInterrupt):
            serve(spec(hosts), out, grid)
    assert len(rounds_of(out)) == 1
    serve(spec(hosts), out, grid_of(hosts))
    assert len(rounds_of(out)) == 3
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert len(whole.rounds) == 3


def test_a_run_that_is_at_its_end_stays_as_it_is(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    serve(spec(hosts), out, grid_of(hosts))
    before = (out / "model.safetensors").read_bytes(), rounds_of(out)
    grid = grid_of(hosts)
    serve(spec(hosts), out, grid)
    assert ((out / "model.safetensors").read_bytes(), rounds_of(out)) == before
    assert not grid.asked("train")


def test_another_spec_is_another_run(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    serve(spec(hosts), out, grid_of(hosts))
    with pytest.raises(RunError, match="was started with another spec"):
        serve(spec(hosts, rounds={"count": 4}), out, grid_of(hosts))


def test_a_silo_that_refuses_is_on_record_with_its_rule(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "north" / "silo.toml").unlink()
    strict = write_charter(tmp_path / "strict", silo="north", limit={"smallest_noise": 50.0})
    with open_silo(load_charter(strict)) as host:
        serve(spec(hosts), out, grid_of({"north": host, "south": hosts["south"]}))
    for line in rounds_of(out):
        (fault,) = line["faults"]
        assert fault["silo"] == "north"
        assert fault["reason"].startswith("it refuses: [limit.smallest_noise] the noise multiplier is smaller")
        assert not line["failed"]


def test_rounds_that_fail_end_the_run_but_not_at_once(hosts, tmp_path: Path, clock: Clock) -> None:
    """A machine that is started again, or a disk that is full, has some time to come back."""
    failing = {11: node(hosts["north"]), 12: failing_at("train", hosts["south"])}
    with pytest.raises(RunError, match="Rounds 0 to 2 failed one after the other"):
        serve(spec(hosts, rounds={"fewest_silos": 2}), tmp_path / "run", FakeGrid(failing))
    assert [line["failed"] for line in rounds_of(tmp_path / "run")] == [True] * 3
    assert clock.now > 70


def failing_at(kind: str, host: SiloService) -> Node:
    """A silo that says who it is, and fails at tasks of one kind."""
    honest = node(host)

    def reply(message: Message) -> RecordDict:
        if message.metadata.message_type == kind:
            return wire.packed_answer({"silo": host.charter.silo, "refused": FAILED})
        return honest(message)

    return reply


class Timetable(FakeGrid):
    """Nodes that are connected, and nodes that answer, from and until certain times on."""

    def __init__(self, clock: Clock, nodes: dict[int, Node], away: dict[int, tuple[float, float]]) -> None:
        super().__init__({number: self._awake(number, each) for number, each in nodes.items()})
        self.clock, self.away = clock, away
        self.deaf: dict[int, tuple[float, float]] = {}

    def get_node_ids(self) -> Iterable[int]:
        return [number for number in self.nodes if not self._is_within(self.away.get(number))]

    def _is_within(self, time: tuple[float, float] | None) -> bool:
        return time is not None and time[0] <= self.clock.now < time[1]

    def _awake(self, number: int, node: Node) -> Node:
        return lambda message: None if self._is_within(self.deaf.get(number)) else node(message)


def timetable(hosts: dict[str, SiloService], clock: Clock, **away: tuple[float, float]) -> Timetable:
    numbers = dict(zip(hosts, range(11, 20), strict=False))
    absent = {numbers[name]: time for name, time in away.items()}
    return Timetable(clock, {numbers[name]: node(host) for name, host in hosts.items()}, absent)


@pytest.mark.parametrize("fewest", [1, 2])
def test_nothing_is_paid_for_while_nobody_is_connected(
    hosts, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, fewest: int
) -> None:
    """All silos are away at the start, for longer than the patience; a round takes as many as the spec says."""
    grid = timetable(hosts, clock, north=(0, 100), south=(0, 300))
    serve(spec(hosts, rounds={"fewest_silos": fewest}), tmp_path / "run", grid)
    lines = rounds_of(tmp_path / "run")
    assert [line["failed"] for line in lines] == [False] * 3
    assert clock.now > (100 if fewest == 1 else 300)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert reserved(ledger) == {"north": 6, "south": 6}
    said = [line for line in caplog.messages if "waiting for" in line]
    assert "waiting for 'north', 'south'" in said[0]
    assert f"round 0 waits: it takes {fewest} silos that answer, and there are 0" in caplog.text
    assert clock.now / 30 < len(said) < clock.now / 10, "calm, and not silent"


def test_a_silo_that_is_connected_and_does_not_answer_is_waited_for(hosts, tmp_path: Path, clock: Clock) -> None:
    """One that was killed counts as connected for half a minute; one at work on an earlier round answers nothing."""
    grid = timetable(hosts, clock)
    introduced = [False]

    def begin(event: object) -> None:
        if not introduced[0] and getattr(event, "scores", None) is not None:
            introduced[0] = True
            grid.deaf = {11: (clock.now, clock.now + 200)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_tell", begin)
        serve(spec(hosts, rounds={"count": 8, "fewest_silos": 2}), tmp_path / "run", grid)
    lines = rounds_of(tmp_path / "run")
    assert [line["failed"] for line in lines].count(True) == 1, "the round in which it fell silent, and no other"
    assert len(lines) == 8
    assert clock.now > 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": None}, r"needs the section \[federation\]"),
        ({"policy": {"name": "fedavg"}, "privacy": {"epsilon": None}}, "adds no noise; silos would refuse it"),
        ({"policy": {"as_printed": True, "rate": None, "batch_size": 8}}, "nobody who holds no data can plan them"),
        ({"rounds": {"fewest_silos": 3}}, "fewest_silos = 3 is more than the 2 silos"),
        ({"rounds": {"fewest_silos": 2, "cohort": 1}}, "fewest_silos = 2 is more than the 1 silos"),
        ({"rounds": {"learning_rate": 0.0}}, "learning_rate"),
        ({"privacy": {"epsilon": -1.0}}, "epsilon"),
        ({"model": {"name": "logistik"}}, "did you mean 'logistic'"),
        ({"compute": {"ranks_per_silo": 2}}, r"trains in one process: leave out compute\.ranks_per_silo"),
    ],
    ids=str,
)
def test_what_cannot_be_played_is_refused_before_a_folder_is_made(
    hosts, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        serve(spec(hosts, **changes), tmp_path / "run", grid_of(hosts))
    assert not (tmp_path / "run").exists()


def test_a_server_has_no_data(hosts) -> None:
    prepared = prepare_server(spec(hosts))
    assert prepared.silos == {}
    assert prepared.scored == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"items": 9999}, "Silo 'north' is not what the spec says: it has items = "),
        ({"items_per_subject": 3}, "it has items_per_subject = 4, and the plan was made for 3"),
    ],
    ids=str,
)
def test_a_plan_made_for_other_facts_is_not_played(hosts, tmp_path: Path, change: dict[str, int], said: str) -> None:
    tree = spec(hosts).model_dump(mode="json")
    tree["federation"]["silos"][0] |= change
    grid = grid_of(hosts)
    with pytest.raises(RunError, match=said):
        serve(RunSpec.of(tree), tmp_path / "run", grid)
    assert not grid.asked("train")
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", create=False) as ledger:
        assert all(not run.reserved for run in ledger.state.runs.values())


def test_a_model_for_another_shape_is_not_played(hosts, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="it has features = 3, and the plan was made for 4"):
        serve(spec(hosts, federation={"shape": [2, 2]}), tmp_path / "run", grid_of(hosts))
