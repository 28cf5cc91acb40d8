"""The real rounds, played for an audit: the run's own plan, step, engine and server, watched as the server sees them.

Nothing is released and nothing is paid for: what an audit trains is thrown away. It reads raw data, and what it reports
is not private.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from wholegrain._random import Purpose, derive
from wholegrain.errors import RunError
from wholegrain.federation.messages import Answer, Engine, RoundTask, SiloFault, SiloUpdate, SumUpdate
from wholegrain.federation.rounds import State, rounds
from wholegrain.policies.policy import Policy, PublicDivisor, SiloFacts
from wholegrain.privacy.guard import Reservation
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import aggregation_for, in_process
from wholegrain.silo.noise import NoiseSource, SeededNoise


@dataclass(frozen=True, eq=False)
class ObservedUpdate:
    """One silo's update as the server sees it: where the round started, and how far it went."""

    round: int
    row: tuple[Policy, SiloFacts]
    start: Tensor
    moved: Tensor
    learning_rate: float

    def in_clip_norms(self, part: Tensor) -> Tensor:
        """A part of what was moved as the sum of releases that it is, in clip norms.

        A divisor that is read off the batch is not known; then the unit is unknown, too.
        """
        policy, _ = self.row
        divisor = policy.divisor.value if isinstance(policy.divisor, PublicDivisor) else 1.0
        return part * (-divisor / (self.learning_rate * policy.clip.norm))


Watcher = Callable[[ObservedUpdate], None]
NoiseOf = Callable[[int], NoiseSource]
"""The noise of each of an audit's runs, by the run's number."""


def ignore_updates(seen: ObservedUpdate) -> None:
    """The watcher of what nobody watches."""


def noise_like(prepared: PreparedRun, seed: int = 0) -> NoiseOf:
    """The kind of noise that the run itself would use, other numbers in every run of every audit."""
    if not isinstance(prepared.noise, SeededNoise):
        return lambda run: prepared.noise
    own = prepared.noise
    return lambda run: replace(own, seed=derive(own.seed, Purpose.NOISE, "audit", seed, run))


@dataclass(frozen=True, eq=False)
class WatchedEngine:
    """An engine whose answers are shown to a watcher on their way; a silo that fails ends the audit."""

    engine: Engine
    rows: Mapping[str, tuple[Policy, SiloFacts]]
    learning_rate: float
    watch: Watcher

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """The inner engine's answers."""
        for answer in self.engine.run(task):
            if isinstance(answer, SiloFault):
                raise RunError(f"Silo '{answer.silo}' failed in round {task.round} of the audit: {answer.reason}.")
            if isinstance(answer, SumUpdate):
                raise RunError("A secure sum shows no silo's own update, which this audit looks at.")
            moved = answer.vector - task.vector
            self.watch(ObservedUpdate(task.round, self.rows[answer.silo], task.vector, moved, self.learning_rate))
            yield answer


@dataclass(frozen=True, eq=False)
class SomeSilos:
    """An engine in which only some silos train; the others answer with what they were given."""

    engine: Engine
    moving: frozenset[str]

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """The inner engine's answers, and those of the silos that stand still."""
        yield from self.engine.run(replace(task, silos=tuple(name for name in task.silos if name in self.moving)))
        yield from (SiloUpdate(name, task.vector) for name in task.silos if name not in self.moving)


class Unpaid:
    """Who answers for what is thrown away: nothing is reserved, in no ledger."""

    def reserve(self, round: int, steps: Mapping[str, int], start: str) -> Reservation:
        """Nothing is spent."""
        return Reservation((), 0.0)

    def confirm(self, reservation: Reservation, silos: Iterable[str]) -> None:
        """Nothing has left."""


def simulate_run(
    prepared: PreparedRun, vector: Tensor, watch: Watcher, moving: Iterable[str] | None = None
) -> Iterator[Tensor]:
    """The parameters after each round, from `vector`, as the run's server shows them: its own step and average.

    Where `moving` is given, all other silos stand still.
    """
    rows = {silo.name: (policy, silo) for policy, silo in prepared.plan.rows}
    engine: Engine = in_process(prepared)
    engine = engine if moving is None else SomeSilos(engine, frozenset(moving))
    engine = WatchedEngine(engine, rows, prepared.spec.rounds.learning_rate, watch)
    averaged = aggregation_for(prepared)
    for played in rounds(State(0, vector), prepared.plan.horizon, engine, Unpaid(), averaged):
        yield averaged.server.choose_parameters(played.state.vector, played.state.memory)


def final_parameters(vectors: Iterator[Tensor]) -> Tensor:
    """The parameters after all rounds."""
    return deque(vectors, maxlen=1).pop()
