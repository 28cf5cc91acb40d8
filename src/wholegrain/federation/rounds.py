"""The only round loop. Reserve, train, average, record: in this order, for every policy on every engine."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from wholegrain import _check
from wholegrain._machine_faults import is_passing
from wholegrain.clipping.rounding import all_finite
from wholegrain.errors import RunError
from wholegrain.federation.aggregation import Mean, average
from wholegrain.federation.messages import Answer, Engine, RoundTask, SiloFault, SumUpdate
from wholegrain.federation.round_record import RoundRecord
from wholegrain.federation.server_optimiser import PLAIN, Memory, Server
from wholegrain.policies.horizon import Horizon
from wholegrain.privacy.guard import Reservation

MOST_FAILED_ROUNDS = 3
"""So many failed rounds in a row end a run: going on would only spend."""


@dataclass(frozen=True, eq=False)
class State:
    """Where a run stands: the next round, the parameters to start it from, and what the server remembers."""

    round: int
    vector: Tensor
    memory: Memory = field(default_factory=dict)


class RoundResult(NamedTuple):
    """What a finished round left: its record, not yet scored, and the new state."""

    record: RoundRecord
    state: State


@dataclass(frozen=True)
class Aggregation:
    """How a round's answers become parameters: each silo's public weight, the fewest silos that make a mean, and what
    the server makes of it.
    """

    weights: Mapping[str, float]
    fewest: int = 1
    server: Server = PLAIN


class Payer(Protocol):
    """Who answers for a round's releases: a `Guard`, wherever anything is released."""

    def reserve(self, round: int, steps: Mapping[str, int], start: str) -> Reservation:
        """Pay for the steps of a round before any silo trains, or refuse."""

    def confirm(self, reservation: Reservation, silos: Iterable[str]) -> None:
        """Note that the releases of these silos have left them."""


def rounds(
    state: State, horizon: Horizon, engine: Engine, guard: Payer, averaged: Aggregation
) -> Iterator[RoundResult]:
    """Play the rounds from `state` to the horizon.

    Guarantee: a round's releases are in the ledger before any silo is asked to train for it; whoever fails has paid.
    """
    failures = 0
    for number in range(state.round, horizon.rounds):
        started = time.perf_counter()
        cohort = horizon.cohort(number)
        reservation = guard.reserve(number, dict.fromkeys(cohort, horizon.steps), digest(state.vector))
        task = RoundTask(number, cohort, horizon.steps, state.vector)
        mean = _mean(task, engine, averaged)
        guard.confirm(reservation, mean.answered)
        after = None
        if mean.vector is not None and len(mean.used) >= averaged.fewest:
            after = _apply_server_step(state, mean.vector, averaged.server, number, horizon.rounds)
        failed = after is None
        vector, memory = after or (state.vector, state.memory)
        moved = float(torch.linalg.vector_norm(vector - state.vector))
        state = State(number + 1, vector, memory)
        record = RoundRecord(
            round=number,
            cohort=cohort,
            spent=reservation.spent,
            seconds=time.perf_counter() - started,
            failed=failed,
            moved=moved,
            faults=mean.faults,
        )
        yield RoundResult(record, state)
        failures = failures + 1 if failed else 0
        if failures == MOST_FAILED_ROUNDS:
            raise RunError(_gave_up(number, mean.faults))


def _mean(task: RoundTask, engine: Engine, averaged: Aggregation) -> Mean:
    """What the silos of a round make together; nothing where the machine itself has no room for it."""
    answers = _first_answers(engine.run(task), task.silos)
    try:
        return average(answers, averaged.weights, task.vector.numel(), task.vector.dtype)
    except (MemoryError, OSError) as error:  # not what a lost process of the run is told by: that ends it
        if not is_passing(error):
            raise
        why = f"its answer was lost here ({type(error).__name__}: {_check.reason(error)})"
        return Mean(None, (), (), tuple(SiloFault(silo, why) for silo in task.silos))


def _apply_server_step(
    state: State, mean: Tensor, server: Server, round: int, rounds: int
) -> tuple[Tensor, Memory] | None:
    """What the server makes of the mean; None where that overflows, as a mean that does is none."""
    vector, memory = server.move(state.vector, mean, state.memory, round, rounds)
    return (vector, memory) if all(map(all_finite, (vector, *memory.values()))) else None


def _first_answers(answers: Iterator[Answer], cohort: tuple[str, ...]) -> Iterator[Answer]:
    """The first answer of each silo of the cohort; any other is not paid for in this round, and is dropped."""
    awaited = set(cohort)
    for answer in answers:
        silos = set(answer.silos if isinstance(answer, SumUpdate) else [answer.silo])
        if silos <= awaited:
            awaited -= silos
            yield answer


def digest(vector: Tensor) -> str:
    """What tells parameters from others, to the last bit."""
    return hashlib.blake2b(vector.contiguous().reshape(-1).view(torch.uint8).numpy().data, digest_size=16).hexdigest()


def _gave_up(round: int, faults: tuple[SiloFault, ...]) -> str:
    why = f"; in the last one silo '{faults[0].silo}' failed: {faults[0].reason}" if faults else ""
    return f"Rounds {round - MOST_FAILED_ROUNDS + 1} to {round} failed one after the other{why}."
