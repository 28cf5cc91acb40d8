"""The one loop: reserved before trained, refused before asked, and resumed as if it had never stopped.

Whoever fails in it has paid, is left out of the mean, and is on record.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import vmap_sum
from accounts import confirmed, equal_terms, open_guard, spent
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.subjects import SubjectData
from wholegrain.engines import inprocess
from wholegrain.engines.inprocess import InProcess
from wholegrain.errors import BudgetError, LedgerError, RunError
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate
from wholegrain.federation.rounds import Aggregation, RoundResult, State, rounds
from wholegrain.federation.server_optimiser import Memory, Momentum, Server, ServerOptimiser
from wholegrain.federation.server_settings import Average, ServerSettings
from wholegrain.models.model_catalog import build
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Silo, Trainer

SILOS = ("a", "b", "c")
HORIZON = Horizon(silos=SILOS, rounds=4, steps=5)
PLAIN = Aggregation(dict.fromkeys(SILOS, 1.0))
TERMS = equal_terms(SILOS)


@dataclass(frozen=True)
class Asked:
    """What an engine was asked, and what the ledger held at that moment."""

    round: int
    silos: tuple[str, ...]
    steps: int
    reserved: Mapping[str, int]
    released: Mapping[str, int]


@dataclass
class Recording:
    """An engine that notes what it is asked and what is paid for by then; every silo adds 1."""

    guard: Guard
    asked: list[Asked] = field(default_factory=list)
    fails_in: int | None = None

    def run(self, task: RoundTask) -> Iterator[SiloUpdate]:
        paid = dict(spent(self.guard)), dict(confirmed(self.guard))
        self.asked.append(Asked(task.round, task.silos, task.steps, *paid))
        for name in task.silos:
            if task.round == self.fails_in and name == task.silos[-1]:
                raise OSError("the line is dead")
            yield SiloUpdate(name, task.vector + 1)


def recording(epsilon: float | None = None, **changes: int) -> Recording:
    """An engine beside a guard of its own."""
    return Recording(open_guard(epsilon, terms=TERMS), **changes)


def play(engine: Recording, horizon: Horizon = HORIZON, start: int = 0) -> list[RoundResult]:
    return list(rounds(State(start, torch.zeros(2)), horizon, engine, engine.guard, PLAIN))


def each(steps: int, silos: tuple[str, ...] = SILOS) -> dict[str, int]:
    return dict.fromkeys(silos, steps) if steps else {}


def test_each_round_is_reserved_and_then_trained() -> None:
    engine = recording()
    records = play(engine)
    assert engine.asked == [Asked(n, SILOS, 5, each(5 * n + 5), each(5 * n)) for n in range(4)]
    assert [played.state.round for played in records] == [1, 2, 3, 4]
    assert [played.state.vector.tolist() for played in records] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]
    assert [played.record.epsilon for played in records] == [15, 30, 45, 60]
    assert all(played.record.cohort == SILOS for played in records)
    assert not any(played.record.failed or played.record.faults for played in records)
    assert spent(engine.guard) == confirmed(engine.guard) == HORIZON.releases()


def test_what_a_round_costs_is_on_disk_before_any_silo_is_asked(tmp_path: Path) -> None:
    """Whoever opens the file while silos train finds the round paid for: so does the run after a crash."""
    found = []

    class Looking(Recording):
        def run(self, task: RoundTask) -> Iterator[SiloUpdate]:
            with Ledger.open(tmp_path / "ledger", create=False) as afresh:
                found.append(dict(afresh.state.runs["first"].reserved))
            yield from super().run(task)

    with Ledger.open(tmp_path / "ledger") as ledger:
        play(Looking(open_guard(ledger=ledger, terms=TERMS)))
    assert found == [each(5), each(10), each(15), each(20)]


def test_cohorts_are_what_the_horizon_says() -> None:
    engine, horizon = recording(), Horizon(silos=SILOS, rounds=6, steps=2, cohort_size=2, seed=3)
    records = play(engine, horizon)
    assert [played.record.cohort for played in records] == [horizon.cohort(number) for number in range(6)]
    assert [asked.silos for asked in engine.asked] == [played.record.cohort for played in records]
    assert spent(engine.guard) == confirmed(engine.guard) == horizon.releases()


def test_a_refused_round_asks_no_silo() -> None:
    engine = recording(epsilon=30.0)
    playing = rounds(State(0, torch.zeros(2)), HORIZON, engine, engine.guard, PLAIN)
    assert [next(playing).record.epsilon, next(playing).record.epsilon] == [15, 30]
    with pytest.raises(BudgetError, match="Round 2"):
        next(playing)
    assert len(engine.asked) == 2
    assert spent(engine.guard) == each(10)


def test_a_ledger_that_cannot_be_written_lets_nothing_train() -> None:
    engine = recording()
    engine.guard.ledger._database.execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerError, match="attempt to write a readonly database"):
        play(engine)
    assert engine.asked == []


def test_a_round_that_dies_with_its_engine_stays_spent() -> None:
    engine = recording(fails_in=1)
    with pytest.raises(OSError, match="line is dead"):
        play(engine)
    assert spent(engine.guard) == each(10)
    assert confirmed(engine.guard) == each(5)
    assert len(engine.asked) == 2


def test_a_round_starts_only_when_it_is_asked_for() -> None:
    engine = recording()
    playing = rounds(State(0, torch.zeros(2)), HORIZON, engine, engine.guard, PLAIN)
    assert spent(engine.guard) == Counter()
    next(playing)
    assert len(engine.asked) == 1
    assert spent(engine.guard) == each(5)


def test_a_finished_run_has_no_more_rounds() -> None:
    engine = recording()
    assert play(engine, start=4) == []
    assert engine.asked == []
    assert spent(engine.guard) == Counter()


# Silos that fail. Every one of them has paid; what did not arrive was not released.


FAULTS: dict[str, tuple[Callable[[str, Tensor], SiloUpdate | SiloFault], str, bool]] = {
    # what the silo answers, how it is told, and whether something has left the silo
    "fails": (lambda silo, vector: SiloFault(silo, "out of memory"), "out of memory", False),
    "not a number": (lambda silo, vector: SiloUpdate(silo, vector * math.nan), "not all finite", True),
    "infinite": (lambda silo, vector: SiloUpdate(silo, vector - math.inf), "not all finite", True),
    "shape": (lambda silo, vector: SiloUpdate(silo, vector[:1]), "the shape [1], not [2]", True),
}
every_fault = pytest.mark.parametrize(("answer", "reason", "arrives"), FAULTS.values(), ids=FAULTS.keys())


@dataclass
class Failing(Recording):
    """The silo of each name answers otherwise in the rounds that are given; all others add 1."""

    answer: Callable[[str, Tensor], SiloUpdate | SiloFault] = FAULTS["fails"][0]
    fails: Mapping[str, Container[int]] = field(default_factory=dict)

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        for update in super().run(task):
            wrong = task.round in self.fails.get(update.silo, ())
            yield self.answer(update.silo, task.vector) if wrong else update


def failing(
    answer: Callable[[str, Tensor], SiloUpdate | SiloFault], epsilon: float | None = None, **fails: Container[int]
) -> Failing:
    return Failing(open_guard(epsilon, terms=TERMS), answer=answer, fails=fails)


@every_fault
def test_a_silo_that_gives_nothing_usable_is_left_out_recorded_and_has_paid(
    answer: Callable[[str, Tensor], SiloUpdate | SiloFault], reason: str, arrives: bool
) -> None:
    engine = failing(answer, b={1})
    records = play(engine)
    assert [len(played.record.faults) for played in records] == [0, 1, 0, 0]
    (fault,) = records[1].record.faults
    assert fault.silo == "b"
    assert reason in fault.reason
    assert not any(played.record.failed for played in records)
    assert [played.state.vector.tolist() for played in records] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]
    assert [played.record.epsilon for played in records] == [15, 30, 45, 60]
    assert spent(engine.guard) == each(20)
    assert confirmed(engine.guard) == each(20) | {"b": 20 if arrives else 15}


def test_the_mean_is_that_of_the_others_by_their_weights() -> None:
    """1·1 and 3·9 over 4; the silo of weight 100 does not count."""

    class Different(Recording):
        def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
            yield SiloUpdate("a", torch.tensor([1.0, 1.0]))
            yield SiloFault("b", "gone")
            yield SiloUpdate("c", torch.tensor([9.0, 9.0]))

    engine = Different(open_guard(terms=TERMS))
    by_weight = Aggregation({"a": 1.0, "b": 100.0, "c": 3.0})
    (played,) = rounds(State(3, torch.zeros(2)), HORIZON, engine, engine.guard, by_weight)
    assert played.state.vector.tolist() == [7.0, 7.0]
    assert not played.record.failed


@every_fault
@pytest.mark.parametrize(("fewest", "failed"), [(1, False), (2, True), (3, True)])
def test_a_round_with_too_few_fails_stays_where_it_was_and_the_run_goes_on(
    answer: Callable[[str, Tensor], SiloUpdate | SiloFault], reason: str, arrives: bool, fewest: int, failed: bool
) -> None:
    """Two silos fail in round 1: one usable update is left."""
    engine = failing(answer, a={1}, b={1})
    averaged = Aggregation(PLAIN.weights, fewest)
    records = list(rounds(State(0, torch.zeros(2)), HORIZON, engine, engine.guard, averaged))
    assert [played.record.failed for played in records] == [False, failed, False, False]
    assert [fault.silo for fault in records[1].record.faults] == ["a", "b"]
    assert [played.state.round for played in records] == [1, 2, 3, 4]
    values = [1.0, 1.0, 2.0, 3.0] if failed else [1.0, 2.0, 3.0, 4.0]
    assert [played.state.vector.tolist() for played in records] == [[n, n] for n in values]
    # A failed round is paid for like any other, and whatever arrived is released, used or not.
    assert [played.record.epsilon for played in records] == [15, 30, 45, 60]
    assert spent(engine.guard) == each(20)
    here = 20 if arrives else 15
    assert confirmed(engine.guard) == {"a": here, "b": here, "c": 20}


def test_a_round_in_which_nobody_answers_fails_even_if_none_was_needed() -> None:
    engine = failing(FAULTS["fails"][0], a={0}, b={0}, c={0})
    averaged = Aggregation(PLAIN.weights, fewest=0)
    first = next(rounds(State(0, torch.ones(2)), HORIZON, engine, engine.guard, averaged))
    assert first.record.failed
    assert first.state.vector.tolist() == [1.0, 1.0]
    assert (spent(engine.guard), confirmed(engine.guard)) == (each(5), {})


def test_an_engine_that_answers_for_nobody_makes_a_failed_round() -> None:
    class Silent(Recording):
        def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
            return iter(())

    engine = Silent(open_guard(terms=TERMS))
    first = next(rounds(State(0, torch.ones(2)), HORIZON, engine, engine.guard, PLAIN))
    assert first.record.failed
    assert first.record.faults == ()
    assert (spent(engine.guard), confirmed(engine.guard)) == (each(5), {})


@dataclass
class Uninvited(Recording):
    """An engine that brings one answer more than was asked for."""

    extra: str = "a"

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        yield from super().run(task)
        yield SiloUpdate(self.extra, task.vector + 100)


@pytest.mark.parametrize("silo", ["a", "c"], ids=["twice", "not of the cohort"])
def test_an_answer_that_was_not_asked_for_is_not_used(silo: str) -> None:
    """A late one, say, of another round: it is not paid for in this one."""
    horizon = Horizon(silos=SILOS, rounds=1, steps=5, cohort_size=2, seed=0)
    assert horizon.cohort(0) == ("a", "b")
    (played,) = play(Uninvited(open_guard(terms=TERMS), extra=silo), horizon)
    assert played.state.vector.tolist() == [1.0, 1.0]


LONG = Horizon(silos=SILOS, rounds=9, steps=5)


@every_fault
@pytest.mark.parametrize("since", [0, 2])
def test_three_failed_rounds_in_a_row_end_the_run(
    answer: Callable[[str, Tensor], SiloUpdate | SiloFault], reason: str, arrives: bool, since: int
) -> None:
    always = range(since, 9)
    engine = failing(answer, a=always, b=always, c=always)
    playing = rounds(State(0, torch.zeros(2)), LONG, engine, engine.guard, PLAIN)
    records = [next(playing) for _ in range(since + 3)]
    assert [played.record.failed for played in records] == [False] * since + [True] * 3
    with pytest.raises(RunError, match=f"Rounds {since} to {since + 2} failed one after the other") as end:
        next(playing)
    assert "silo 'a' failed: " in str(end.value)
    assert reason in str(end.value)
    assert len(engine.asked) == since + 3
    assert spent(engine.guard) == each(5 * (since + 3))
    assert confirmed(engine.guard) == each(5 * (since + 3 if arrives else since))


def test_failed_rounds_that_are_not_in_a_row_do_not_end_the_run() -> None:
    often = {0, 1, 3, 4, 6, 7}
    engine = failing(FAULTS["fails"][0], a=often, b=often, c=often)
    records = play(engine, LONG)
    assert [played.record.failed for played in records] == [True, True, False] * 3
    assert records[-1].state.vector.tolist() == [3.0, 3.0]
    assert spent(engine.guard) == each(5 * 9)
    assert confirmed(engine.guard) == each(5 * 3)


def test_a_run_whose_last_rounds_fail_still_comes_to_its_end() -> None:
    late = {2, 3}
    engine = failing(FAULTS["fails"][0], a=late, b=late, c=late)
    assert [played.record.failed for played in play(engine)] == [False, False, True, True]


def test_a_failed_round_tried_again_from_the_same_parameters_is_another_round() -> None:
    """The parameters stay, but the next round has noise of its own: it is paid for by itself."""
    engine = failing(FAULTS["fails"][0], epsilon=30.0, a={0}, b={0}, c={0})
    playing = rounds(State(0, torch.zeros(2)), HORIZON, engine, engine.guard, PLAIN)
    assert [next(playing).record.epsilon, next(playing).record.epsilon] == [15, 30]
    with pytest.raises(BudgetError, match="Round 2"):
        next(playing)


def test_faults_in_cohorts_are_paid_by_the_cohort_alone() -> None:
    horizon = Horizon(silos=SILOS, rounds=6, steps=2, cohort_size=2, seed=3)
    engine = failing(FAULTS["fails"][0], a=range(6))
    records = play(engine, horizon)
    assert [[fault.silo for fault in played.record.faults] for played in records] == [
        ["a"] if "a" in played.record.cohort else [] for played in records
    ]
    assert spent(engine.guard) == horizon.releases()
    assert confirmed(engine.guard) == {silo: n for silo, n in horizon.releases().items() if silo != "a"}


def test_an_interrupted_round_is_paid_and_not_released() -> None:
    class Interrupted(Recording):
        def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
            yield SiloUpdate("a", task.vector + 1)
            raise KeyboardInterrupt

    engine = Interrupted(open_guard(terms=TERMS))
    with pytest.raises(KeyboardInterrupt):
        play(engine)
    assert (spent(engine.guard), confirmed(engine.guard)) == (each(5), {})


# Resuming, with real silos and real noise.


@dataclass(frozen=True)
class Rows:
    """As much of a plan as an engine looks at."""

    rows: dict[str, Policy]

    def policy_for(self, silo: str) -> Policy:
        return self.rows[silo]


GRADIENTS: dict[str, Callable[..., ClippedSum]] = {
    "book-keeping": BookKeeping,
    "vectorised": partial(partial, vmap_sum.clipped_sum),
}


def engine(gradients: str = "book-keeping") -> tuple[InProcess, Tensor]:
    draws = np.random.default_rng(0)
    silos, rows = {}, {}
    for name in SILOS:
        data = SubjectData(
            draws.normal(size=(40, 3)).astype(np.float32), draws.integers(2, size=40), draws.integers(12, size=40)
        )
        facts = SiloFacts(name=name, items=40, subjects=data.subject_count, items_per_subject=10)
        silos[name] = Silo(facts, data)
        rows[name] = CATALOG["subject_dp"].row(PolicySettings(rate=0.3), facts).with_noise(0.8)
    model = build("mlp", 3, 2, seed=0, options={"hidden": (4,)})
    trainer = Trainer(
        clipped_sum=GRADIENTS[gradients](model, cross_entropy),
        noise=SeededNoise(5),
        learning_rate=0.5,
    )
    return InProcess(silos, Rows(rows), trainer), flatten(model)


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("stopped_after", [1, 2, 5])
@pytest.mark.parametrize("cohort", [None, 2], ids=["all silos", "cohorts"])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(stopped_after: int, cohort: int | None, gradients: str) -> None:
    horizon = Horizon(silos=SILOS, rounds=6, steps=3, cohort_size=cohort, seed=9)
    carrier, start = engine(gradients)
    unbroken = list(rounds(State(0, start), horizon, carrier, open_guard(terms=TERMS), PLAIN))
    saved = unbroken[stopped_after - 1].state
    afresh, _ = engine(gradients)
    resumed = list(rounds(saved, horizon, afresh, open_guard(terms=TERMS), PLAIN))
    assert [played.state.round for played in resumed] == list(range(stopped_after + 1, 7))
    for played, before in zip(resumed, unbroken[stopped_after:], strict=True):
        assert torch.equal(played.state.vector, before.state.vector)
        assert played.record.cohort == before.record.cohort


@pytest.mark.parametrize("most", [1, 2])
def test_however_many_silos_are_begun_at_a_time_their_answers_are_the_same(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, start = engine()
    task = RoundTask(3, SILOS, 4, start)
    together = list(carrier.run(task))
    assert [answer.silo for answer in together] == list(SILOS)
    monkeypatch.setattr(inprocess, "MOST_AHEAD", most)
    for apart in (list(carrier.run(task)), [carrier.answer(name, task) for name in SILOS]):
        for one, other in zip(together, apart, strict=True):
            assert isinstance(one, SiloUpdate)
            assert isinstance(other, SiloUpdate)
            assert one.silo == other.silo
            assert torch.equal(one.vector, other.vector)


def test_a_silo_that_cannot_begin_fails_alone() -> None:
    carrier, start = engine()
    whole = list(carrier.run(RoundTask(3, SILOS, 2, start)))
    fewer = replace(carrier, silos={name: silo for name, silo in carrier.silos.items() if name != SILOS[1]})
    found = list(fewer.run(RoundTask(3, SILOS, 2, start)))
    assert found[1] == SiloFault(SILOS[1], "KeyError")
    for k in (0, 2):
        one, other = found[k], whole[k]
        assert isinstance(one, SiloUpdate)
        assert isinstance(other, SiloUpdate)
        assert torch.equal(one.vector, other.vector)


def test_later_rounds_leave_earlier_states_alone() -> None:
    carrier, start = engine()
    kept = start.clone()
    copies, states = [], []
    for played in rounds(State(0, start), HORIZON, carrier, open_guard(terms=TERMS), PLAIN):
        states.append(played.state.vector)
        copies.append(played.state.vector.clone())
    assert torch.equal(start, kept)
    assert all(torch.equal(state, copy) for state, copy in zip(states, copies, strict=True))
    assert not torch.equal(states[0], states[1])


# Silos that fail, in the engine that a run uses.


def test_a_silo_that_raises_is_a_fault_and_the_others_train_as_ever() -> None:
    carrier, start = engine()
    broken = Silo(carrier.silos["b"].facts, replace(carrier.silos["b"].data, targets=np.full(40, 7)))
    limping = replace(carrier, silos={**carrier.silos, "b": broken})
    guard = open_guard(terms=TERMS)
    (played,) = rounds(State(3, start), HORIZON, limping, guard, PLAIN)
    (fault,) = played.record.faults
    assert fault.silo == "b"
    assert fault.reason == "RuntimeError"  # and not what it says: that may name private values
    alone = replace(HORIZON, silos=("a", "c"))
    (expected,) = rounds(State(3, start), alone, carrier, open_guard(terms=TERMS), PLAIN)
    assert torch.equal(played.state.vector, expected.state.vector)
    assert spent(guard) == each(5)
    assert confirmed(guard) == each(5, ("a", "c"))


class Huge:
    """Every silo answers with values near the end of the numbers; in the second round nobody does."""

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        for silo in task.silos:
            if task.round == 1:
                yield SiloFault(silo, "it is away")
            else:
                yield SiloUpdate(silo, torch.full((2,), 1e38 if task.round == 2 else 1.0))


def test_a_round_that_fails_leaves_what_the_server_remembers_and_one_that_overflows_fails() -> None:
    server = Server(optimiser=Momentum(), settings=ServerSettings(learning_rate=10.0, average=Average.EXPONENTIAL))
    averaged = Aggregation(PLAIN.weights, server=server)
    playing = list(rounds(State(0, torch.zeros(2)), HORIZON, Huge(), open_guard(terms=TERMS), averaged))
    assert [played.record.failed for played in playing] == [False, True, True, False]
    kept = [played.state.memory for played in playing[:3]]
    assert kept[0].keys() == {"speed", "average", "averages"}
    for memory in kept[1:]:
        assert all(torch.equal(memory[name], value) for name, value in kept[0].items())


@pytest.mark.parametrize("kept", [torch.tensor(1.0), torch.ones(2, 2), torch.tensor([True]), torch.ones(1) * 1j])
def test_a_server_may_remember_tensors_of_any_shape_and_kind(kept: Tensor) -> None:
    class Remembering(ServerOptimiser):
        def step(self, vector: Tensor, mean: Tensor, state: Memory, pace: float) -> tuple[Tensor, Memory]:
            return vector, {"kept": kept}

    averaged = Aggregation(PLAIN.weights, server=Server(optimiser=Remembering()))
    first = next(iter(rounds(State(0, torch.zeros(2)), HORIZON, Huge(), open_guard(terms=TERMS), averaged)))
    assert not first.record.failed
    assert first.state.memory["kept"] is kept
