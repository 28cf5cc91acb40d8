"""Secure sums between silos that trust neither the server nor, up to a number, each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from scipy import stats

from deployment import message
from grids import Clock, within_a_server_app
from summing import SILOS, Services, server_spec, services, simulated
from wholegrain.deploy.server import make_task, prepare_server, serve
from wholegrain.deploy.silo_answers import answer
from wholegrain.engines import sum_wire, wire
from wholegrain.engines.flower import Flower
from wholegrain.engines.flower_sums import FlowerSums
from wholegrain.engines.secure_sum_engine import ConsentRequest, KeysRequest, MaskRequest, SecureSums, SumRequest
from wholegrain.federation.masks import unpack
from wholegrain.federation.messages import RoundTask, SiloFault, SumUpdate
from wholegrain.federation.secure_sum import Member, OpenRequest, SessionKeys
from wholegrain.federation.sum_scale import SumScale
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.silo.training import Trainer


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return within_a_server_app(monkeypatch)


@pytest.fixture
def five(tmp_path: Path, coarse_prices: None) -> Iterator[Services]:
    with services(tmp_path) as made:
        yield made


@pytest.fixture
def prepared(coarse_prices: None) -> PreparedRun:
    return prepare_server(server_spec(), accountant("pld"))


def engine_on(five: Services, prepared: PreparedRun) -> SecureSums:
    tasks = {facts.name: make_task(prepared, policy, "run-1") for policy, facts in prepared.plan.rows}
    line = Flower(five.grid(), tasks, 5.0)
    return SecureSums(FlowerSums(line), prepared.plan, prepared.plan.trust, prepared.spec.rounds.learning_rate)


def play(engine: SecureSums, prepared: PreparedRun, round: int = 0) -> list[SumUpdate | SiloFault]:
    return list(engine.run(RoundTask(round, SILOS, 1, prepared.first)))


def reserved(five: Services, name: str) -> int:
    """Steps that a silo has paid for."""
    return sum(sum(run.reserved.values()) for run in five.hosts[name].ledger.state.runs.values())


def test_a_federation_computes_the_same_sum_as_a_simulation(five: Services, tmp_path: Path) -> None:
    run = serve(server_spec(), tmp_path / "run", five.grid())
    assert [done.faults for done in run.rounds] == [(), ()]
    assert run.vector.numpy().tobytes() == simulated(tmp_path / "data")
    assert [reserved(five, name) for name in SILOS] == [2] * 5


def test_the_silos_pay_what_the_plan_says(five: Services, prepared: PreparedRun) -> None:
    engine = engine_on(five, prepared)
    for round in range(2):
        play(engine, prepared, round)
    state = five.hosts["north"].ledger.state
    (run,) = state.runs.values()
    assert run.opening.terms.exposures["subject"].silos.keys() == {"north"}
    planned = prepared.plan.terms.exposures["subject"].steps["north"]
    assert run.terms.exposures["subject"].steps["north"] == planned


@pytest.mark.parametrize("kinds", [{"train.survivors", "train.open"}, {"train.open"}], ids=["before", "after"])
def test_a_silo_that_dies_after_masking_is_in_the_sum(five: Services, prepared: PreparedRun, kinds: set[str]) -> None:
    five.dead_to["north"] = kinds
    (update,) = play(engine_on(five, prepared), prepared)
    assert isinstance(update, SumUpdate)
    assert update.silos == SILOS
    assert torch.equal(update.vector, sum_in_the_open(five, prepared, SILOS))


def test_a_silo_that_dies_before_masking_is_left_out_to_the_bit(five: Services, prepared: PreparedRun) -> None:
    five.dead_to["north"] = {"train.mask"}
    faults = play(engine_on(five, prepared), prepared)
    update = next(each for each in faults if isinstance(each, SumUpdate))
    assert update.silos == ("east", "middle", "south", "west")
    assert torch.equal(update.vector, sum_in_the_open(five, prepared, update.silos))
    assert reserved(five, "north") == 0


def sum_in_the_open(five: Services, prepared: PreparedRun, silos: tuple[str, ...]) -> torch.Tensor:
    """The parameters after round 0, from parts that are simply added up."""
    parts = [open_part(five, prepared, name) for name in silos]
    rows = [row for row in prepared.plan.rows if row[1].name in silos]
    scale = SumScale.of(prepared.plan.rows, prepared.first.numel())
    return scale.move(prepared.first, torch.stack(parts).sum(0).numpy(), rows, prepared.spec.rounds.learning_rate)


def open_part(five: Services, prepared: PreparedRun, name: str) -> torch.Tensor:
    """What a silo masks in round 0, computed in the open: its noise is seeded."""
    host = five.hosts[name]
    trainer = Trainer(clipped_sum=host.agreed[0].gradients, noise=host.fresh_noise(), learning_rate=0.5)
    return trainer.add_to_sum(host.agreed[0].silo, prepared.plan.policy_for(name), prepared.first, 0)


def test_when_too_few_are_left_nothing_is_opened_and_everybody_has_paid(five: Services, prepared: PreparedRun) -> None:
    for name in ("north", "south"):
        five.dead_to[name] = {"train.survivors", "train.open"}
    faults = play(engine_on(five, prepared), prepared)
    assert all(isinstance(each, SiloFault) and "not opened" in each.reason for each in faults)
    assert not any(kind.endswith("open") for _, kind, _ in sent(five))
    assert [reserved(five, name) for name in SILOS] == [1] * 5


def sent(five: Services) -> list[tuple[str, str, RecordDict]]:
    return [(name, asked.metadata.message_type, reply) for name, asked, reply in five.seen]


@pytest.mark.slow
def test_masked_vectors_look_uniform_to_the_server(five: Services) -> None:
    """Byte by byte, over rounds and silos; the same bytes without masks fail the same test at once."""
    rounds = 16
    spec = server_spec(rounds={"count": rounds}, privacy={"epsilon": 12.0})
    ready = prepare_server(spec, accountant("pld"))
    engine = engine_on(five, ready)
    for round in range(rounds):
        play(engine, ready, round)
    seen = [
        np.frombuffer(wire.read_masked(message(reply)), np.uint8)
        for _, kind, reply in sent(five)
        if kind == "train.mask"
    ]
    assert len(seen) == rounds * 5
    assert stats.chisquare(np.bincount(np.concatenate(seen), minlength=256)).pvalue > 1e-6
    # Each bit of a value by itself: one that is the same in two thirds of the values would be found.
    bits = np.unpackbits(np.concatenate(seen)).reshape(len(seen) * ready.first.numel(), -1)
    assert bits.shape == (640, 32)
    assert min(stats.binomtest(int(ones), len(bits)).pvalue for ones in bits.sum(0)) > 1e-8
    bare = open_part(five, ready, "north").numpy().astype("<i8").tobytes()
    assert stats.chisquare(np.bincount(np.frombuffer(bare, np.uint8), minlength=256)).pvalue < 1e-6


class Server:
    """A server that asks one silo whatever it likes."""

    def __init__(self, five: Services, prepared: PreparedRun) -> None:
        self.five, self.prepared = five, prepared
        self.task = make_task(prepared, prepared.plan.rows[0][0], "run-1")

    def ask(self, name: str, request: SumRequest, **changes: object) -> Message:
        asked = self.task.model_copy(update={"round": request.round, **changes})
        vector = request.vector if isinstance(request, MaskRequest) else None
        content = wire.packed_sum_task(asked, sum_wire.write_request(request), vector)
        return answer(message(content, f"train.{sum_wire.KINDS[type(request)]}"), self.five.hosts[name])

    def refusal(self, name: str, request: SumRequest, **changes: object) -> str:
        return str(wire.read_answer(self.ask(name, request, **changes)).get("refused", ""))

    def reply(self, name: str, request: SumRequest) -> Any:
        found = self.ask(name, request)
        facts = wire.read_answer(found)
        assert "refused" not in facts, facts
        return sum_wire.read_reply(
            sum_wire.KINDS[type(request)], request.round, facts["reply"], wire.read_masked(found)
        )

    def keys(self) -> tuple[SessionKeys, ...]:
        return tuple(self.reply(name, KeysRequest(0)) for name in SILOS)

    def mask(self, keys: tuple[SessionKeys, ...], round: int = 0) -> MaskRequest:
        return MaskRequest(round, keys, self.prepared.first, 64)


def test_a_round_is_answered_once_whatever_the_session_and_the_terms(five: Services, prepared: PreparedRun) -> None:
    server = Server(five, prepared)
    server.reply("north", server.mask(server.keys()))
    again = server.keys()
    assert server.refusal("north", server.mask(again)).startswith("[secure_sum]")
    assert reserved(five, "north") == 1
    server.reply("north", server.mask(again, round=1))
    assert reserved(five, "north") == 2
    assert server.refusal("north", KeysRequest(0), noise_multiplier=9.0) == ""
    assert server.refusal("north", server.mask(again), noise_multiplier=9.0).startswith("[secure_sum]")


def test_a_restarted_silo_remembers_that_it_has_answered(tmp_path: Path, prepared: PreparedRun) -> None:
    with services(tmp_path) as five:
        server = Server(five, prepared)
        server.reply("north", server.mask(server.keys()))
        five.hosts["north"].sums.session = None
        assert server.refusal("north", server.mask(server.keys())).startswith("[secure_sum]")


def test_a_server_with_a_key_of_its_own_learns_nothing(five: Services, prepared: PreparedRun) -> None:
    server = Server(five, prepared)
    keys = server.keys()
    own = Member("south", keys[0].terms, prepared.plan.trust, SILOS, keys[3].statement).keys(lambda text: b"mine")
    forged = tuple(own if each.silo == "south" else each for each in keys)
    assert server.refusal("north", server.mask(forged)).startswith("[secure_sum]")
    assert reserved(five, "north") == 0


def test_silos_that_were_asked_on_other_terms_are_refused(five: Services, prepared: PreparedRun) -> None:
    """Else a server could have one silo add less noise, or clip to more, than the others count on."""
    server = Server(five, prepared)
    keys = server.keys()
    found = server.ask("south", KeysRequest(0), noise_multiplier=server.task.noise_multiplier * 0.7)
    other = sum_wire.read_reply("keys", 0, wire.read_answer(found)["reply"], b"")
    mixed = tuple(other if each.silo == "south" else each for each in keys)
    assert server.refusal("north", server.mask(mixed)).startswith("[secure_sum]")


def test_two_lists_of_survivors_are_refused(five: Services, prepared: PreparedRun) -> None:
    server = Server(five, prepared)
    keys = server.keys()
    parts = {name: server.reply(name, server.mask(keys)) for name in SILOS}
    consents = {name: server.reply(name, ConsentRequest(0, SILOS)).signature for name in SILOS}
    assert server.refusal("north", ConsentRequest(0, SILOS[:4])).startswith("[secure_sum]")
    shares = {name: parts[name].shares["north"] for name in SILOS if name != "north"}
    for survivors, signed in ((SILOS[:4], consents), (SILOS, {})):
        request = OpenRequest(0, survivors, signed, shares)
        assert server.refusal("north", request).startswith("[secure_sum]")
    server.reply("north", OpenRequest(0, SILOS, consents, shares))
    assert server.refusal("north", OpenRequest(0, SILOS, consents, shares)).startswith("[secure_sum]")


def test_the_charter_decides_what_sum_there_is(tmp_path: Path, prepared: PreparedRun) -> None:
    changes = {
        "east": {"allow": {"trust": ["local"]}},
        "middle": {"limit": {"most_colluding": 2}},
        "north": {"limit": {"smallest_noise": 50.0}},
        "south": {"link": {"peers": {}}},
        "west": {"limit": {"largest_clip": 0.5}},
    }
    rules = {
        "east": "allow.trust",
        "middle": "limit.most_colluding",
        "north": "limit.smallest_noise",
        "south": "link.peers",
        "west": "limit.largest_clip",
    }
    with services(tmp_path, changes) as five:
        server = Server(five, prepared)
        for name, rule in rules.items():
            assert server.refusal(name, KeysRequest(0)).startswith(f"[{rule}]")


def test_a_silo_for_sums_alone_releases_nothing_by_itself(five: Services, prepared: PreparedRun) -> None:
    server = Server(five, prepared)
    for settings in (server.task.settings, PolicySettings(rate=0.5)):
        content = wire.packed_task(server.task.model_copy(update={"settings": settings}), prepared.first)
        facts = wire.read_answer(answer(message(content), five.hosts["north"]))
        assert facts["refused"].startswith("[allow.trust]")
    assert reserved(five, "north") == 0


def test_masked_numbers_that_are_not_whole_are_a_fault() -> None:
    assert len(unpack(bytes(10), 40)) == 2
    with pytest.raises(Exception, match="not whole"):
        sum_wire.read_reply("mask", 0, '{"silo": "a", "bits": 40, "shares": {}}', bytes(11))
