"""The one loop: reserved before trained, refused before asked, and resumed as if it had never stopped."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from wholegrain.data.subjects import SubjectData
from wholegrain.engines.inprocess import InProcess
from wholegrain.errors import BudgetError, RunError
from wholegrain.federation.messages import RoundTask, SiloUpdate
from wholegrain.federation.rounds import RoundRecord, State, rounds
from wholegrain.gradients import vectorised
from wholegrain.gradients.engine import BookKeeping
from wholegrain.gradients.parameters import flatten
from wholegrain.gradients.reference import ClippedSum
from wholegrain.models.catalog import build
from wholegrain.policies.catalog import CATALOG, Settings
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Entry, MemoryLedger
from wholegrain.privacy.units import Budget
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Silo, Trainer

SILOS = ("a", "b", "c")
HORIZON = Horizon(silos=SILOS, rounds=4, steps=5)
PLAIN = dict.fromkeys(SILOS, 1.0)


@dataclass
class Recording:
    """An engine and a ledger that write down, in one list, when they are called; every silo adds 1."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    fails_in: int | None = None
    account: MemoryLedger = field(default_factory=MemoryLedger)

    def run(self, task: RoundTask) -> Iterator[SiloUpdate]:
        self.calls.append(("train", (task.round, task.silos, task.steps)))
        for name in task.silos:
            if task.round == self.fails_in and name == task.silos[-1]:
                raise OSError("the line is dead")
            yield SiloUpdate(name, task.vector + 1)

    def reserve(self, entries: tuple[Entry, ...]) -> None:
        self.calls.append(("reserve", entries))
        self.account.reserve(entries)

    def releases(self) -> Mapping[str, int]:
        return self.account.releases()


def play(recording: Recording, guard: Guard, horizon: Horizon = HORIZON, start: int = 0) -> list[RoundRecord]:
    return list(rounds(State(start, torch.zeros(2)), horizon, recording, guard, PLAIN))


def total_steps(releases: Mapping[str, int]) -> float:
    return float(sum(releases.values()))


def test_each_round_is_reserved_and_then_trained() -> None:
    recording = Recording()
    records = play(recording, Guard(recording, total_steps, None))
    expected: list[tuple[str, Any]] = []
    for number in range(4):
        expected.append(("reserve", tuple(Entry(number, silo, 5) for silo in SILOS)))
        expected.append(("train", (number, SILOS, 5)))
    assert recording.calls == expected
    assert [record.state.round for record in records] == [1, 2, 3, 4]
    assert [record.state.vector.tolist() for record in records] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]
    assert [record.epsilon for record in records] == [15, 30, 45, 60]
    assert all(record.cohort == SILOS for record in records)


def test_cohorts_are_what_the_horizon_says() -> None:
    recording, horizon = Recording(), Horizon(silos=SILOS, rounds=6, steps=2, cohort_size=2, seed=3)
    records = play(recording, Guard(recording, total_steps, None), horizon)
    assert [record.cohort for record in records] == [horizon.cohort(number) for number in range(6)]
    assert recording.releases() == horizon.releases()


def test_a_refused_round_asks_no_silo() -> None:
    recording = Recording()
    guard = Guard(recording, total_steps, Budget(epsilon=30.0, delta=1e-5))
    playing = rounds(State(0, torch.zeros(2)), HORIZON, recording, guard, PLAIN)
    assert [next(playing).epsilon, next(playing).epsilon] == [15, 30]
    with pytest.raises(BudgetError, match="Round 2"):
        next(playing)
    assert [kind for kind, _ in recording.calls] == ["reserve", "train"] * 2
    assert total_steps(recording.releases()) == 30


def test_a_ledger_that_cannot_be_written_lets_nothing_train() -> None:
    class Full(Recording):
        def reserve(self, entries: tuple[Entry, ...]) -> None:
            raise RunError("the disk is full")

    recording = Full()
    with pytest.raises(RunError, match="disk is full"):
        play(recording, Guard(recording, total_steps, None))
    assert recording.calls == []


def test_a_round_that_fails_stays_spent() -> None:
    recording = Recording(fails_in=1)
    with pytest.raises(OSError, match="line is dead"):
        play(recording, Guard(recording, total_steps, None))
    assert total_steps(recording.releases()) == 30
    assert recording.calls[-1][0] == "train"


def test_a_round_starts_only_when_it_is_asked_for() -> None:
    recording = Recording()
    playing = rounds(State(0, torch.zeros(2)), HORIZON, recording, Guard(recording, total_steps, None), PLAIN)
    assert recording.calls == []
    next(playing)
    assert len(recording.calls) == 2


def test_a_finished_run_has_no_more_rounds() -> None:
    recording = Recording()
    assert play(recording, Guard(recording, total_steps, None), start=4) == []
    assert recording.calls == []


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
        seed=5,
    )
    return InProcess(silos, Rows(rows), trainer), flatten(model)


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("stopped_after", [1, 2, 5])
@pytest.mark.parametrize("cohort", [None, 2], ids=["all silos", "cohorts"])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(stopped_after: int, cohort: int | None, gradients: str) -> None:
    horizon = Horizon(silos=SILOS, rounds=6, steps=3, cohort_size=cohort, seed=9)
    carrier, start = engine(gradients)
    unbroken = list(rounds(State(0, start), horizon, carrier, Guard(MemoryLedger(), total_steps, None), PLAIN))
    saved = unbroken[stopped_after - 1].state
    afresh, _ = engine(gradients)
    resumed = list(rounds(saved, horizon, afresh, Guard(MemoryLedger(), total_steps, None), PLAIN))
    assert [record.state.round for record in resumed] == list(range(stopped_after + 1, 7))
    for record, before in zip(resumed, unbroken[stopped_after:], strict=True):
        assert torch.equal(record.state.vector, before.state.vector)
        assert record.cohort == before.cohort


def test_later_rounds_leave_earlier_states_alone() -> None:
    carrier, start = engine()
    kept = start.clone()
    copies, states = [], []
    for record in rounds(State(0, start), HORIZON, carrier, Guard(MemoryLedger(), total_steps, None), PLAIN):
        states.append(record.state.vector)
        copies.append(record.state.vector.clone())
    assert torch.equal(start, kept)
    assert all(torch.equal(state, copy) for state, copy in zip(states, copies, strict=True))
    assert not torch.equal(states[0], states[1])
