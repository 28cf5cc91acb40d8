"""The one loop: reserved before trained, refused before asked, and resumed as if it had never stopped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from accounts import confirmed, equal_terms, open_guard, spent
from wholegrain.data.subjects import SubjectData
from wholegrain.engines.inprocess import InProcess
from wholegrain.errors import BudgetError, LedgerError
from wholegrain.federation.messages import RoundTask, SiloUpdate
from wholegrain.federation.rounds import Averaged, RoundRecord, State, rounds
from wholegrain.gradients import vectorised
from wholegrain.gradients.engine import BookKeeping
from wholegrain.gradients.parameters import flatten
from wholegrain.gradients.reference import ClippedSum
from wholegrain.models.catalog import build
from wholegrain.policies.catalog import CATALOG, Settings
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Silo, Trainer

SILOS = ("a", "b", "c")
HORIZON = Horizon(silos=SILOS, rounds=4, steps=5)
PLAIN = Averaged(dict.fromkeys(SILOS, 1.0))
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


def play(engine: Recording, horizon: Horizon = HORIZON, start: int = 0) -> list[RoundRecord]:
    return list(rounds(State(start, torch.zeros(2)), horizon, engine, engine.guard, PLAIN))


def each(steps: int, silos: tuple[str, ...] = SILOS) -> dict[str, int]:
    return dict.fromkeys(silos, steps) if steps else {}


def test_each_round_is_reserved_and_then_trained() -> None:
    engine = recording()
    records = play(engine)
    assert engine.asked == [Asked(n, SILOS, 5, each(5 * n + 5), each(5 * n)) for n in range(4)]
    assert [record.state.round for record in records] == [1, 2, 3, 4]
    assert [record.state.vector.tolist() for record in records] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]
    assert [record.epsilon for record in records] == [15, 30, 45, 60]
    assert all(record.cohort == SILOS for record in records)
    assert not any(record.failed or record.faults for record in records)
    assert spent(engine.guard) == confirmed(engine.guard) == HORIZON.releases()


def test_what_a_round_costs_is_on_disk_before_any_silo_is_asked(tmp_path: Path) -> None:
    """Whoever opens the file while silos train finds the round paid for: so does the run after a crash."""
    found = []

    class Looking(Recording):
        def run(self, task: RoundTask) -> Iterator[SiloUpdate]:
            with Ledger.open(tmp_path / "ledger", create=False) as afresh:
                found.append(dict(afresh.book.runs["first"].reserved))
            yield from super().run(task)

    with Ledger.open(tmp_path / "ledger") as ledger:
        play(Looking(open_guard(ledger=ledger, terms=TERMS)))
    assert found == [each(5), each(10), each(15), each(20)]


def test_cohorts_are_what_the_horizon_says() -> None:
    engine, horizon = recording(), Horizon(silos=SILOS, rounds=6, steps=2, cohort_size=2, seed=3)
    records = play(engine, horizon)
    assert [record.cohort for record in records] == [horizon.cohort(number) for number in range(6)]
    assert [asked.silos for asked in engine.asked] == [record.cohort for record in records]
    assert spent(engine.guard) == confirmed(engine.guard) == horizon.releases()


def test_a_refused_round_asks_no_silo() -> None:
    engine = recording(epsilon=30.0)
    playing = rounds(State(0, torch.zeros(2)), HORIZON, engine, engine.guard, PLAIN)
    assert [next(playing).epsilon, next(playing).epsilon] == [15, 30]
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


# Resuming, with real silos and real noise.


@dataclass(frozen=True)
class Rows:
    """As much of a plan as an engine looks at."""

    rows: dict[str, Policy]

    def policy_for(self, silo: str) -> Policy:
        return self.rows[silo]


GRADIENTS: dict[str, Callable[..., ClippedSum]] = {
    "book-keeping": BookKeeping,
    "vectorised": partial(partial, vectorised.clipped_sum),
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
        rows[name] = CATALOG["subject_dp"].row(Settings(rate=0.3), facts).with_noise(0.8)
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
    assert [record.state.round for record in resumed] == list(range(stopped_after + 1, 7))
    for record, before in zip(resumed, unbroken[stopped_after:], strict=True):
        assert torch.equal(record.state.vector, before.state.vector)
        assert record.cohort == before.cohort


def test_later_rounds_leave_earlier_states_alone() -> None:
    carrier, start = engine()
    kept = start.clone()
    copies, states = [], []
    for record in rounds(State(0, start), HORIZON, carrier, open_guard(terms=TERMS), PLAIN):
        states.append(record.state.vector)
        copies.append(record.state.vector.clone())
    assert torch.equal(start, kept)
    assert all(torch.equal(state, copy) for state, copy in zip(states, copies, strict=True))
    assert not torch.equal(states[0], states[1])
