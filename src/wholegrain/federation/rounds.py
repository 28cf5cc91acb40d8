"""The only round loop. Reserve, train, average, record: in this order, for every policy on every engine."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from wholegrain.federation.aggregation import average
from wholegrain.federation.messages import Engine, RoundTask
from wholegrain.policies.horizon import Horizon
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Entry


@dataclass(frozen=True, eq=False)
class State:
    """Where a run stands: the next round and the parameters to start it from."""

    round: int
    vector: Tensor


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What a finished round left: the new state, who trained, ε spent so far, and how long it took."""

    state: State
    cohort: tuple[str, ...]
    epsilon: float
    seconds: float


def rounds(
    state: State, horizon: Horizon, engine: Engine, guard: Guard, weights: Mapping[str, float]
) -> Iterator[RoundRecord]:
    """Play the rounds from `state` to the horizon.

    Guarantee: a round's releases are in the ledger before any silo is asked to train for it.
    """
    for number in range(state.round, horizon.rounds):
        started = time.perf_counter()
        cohort = horizon.cohort(number)
        epsilon = guard.reserve(tuple(Entry(number, silo, horizon.steps) for silo in cohort))
        task = RoundTask(number, cohort, horizon.steps, state.vector)
        state = State(number + 1, average(engine.run(task), weights))
        yield RoundRecord(state, cohort, epsilon, time.perf_counter() - started)
