"""The real rounds, played for an audit: the run's own plan, step, engine and average, watched as the server sees them.

Nothing is released and nothing is paid for: what an audit trains is thrown away. It reads raw data, and what it reports
is not private.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from wholegrain._random import Purpose, derive
from wholegrain.errors import RunError
from wholegrain.federation.aggregation import Averaging, weights
from wholegrain.federation.messages import Engine, RoundTask, SiloFault, SiloUpdate
from wholegrain.federation.rounds import Averaged, State, rounds
from wholegrain.gradients.reference import ClippedSum
from wholegrain.policies.policy import Policy, PublicDivisor, SiloFacts
from wholegrain.privacy.guard import Guard, Reservation
from wholegrain.runs.runner import Prepared, in_process
from wholegrain.silo.noise import NoiseSource, SeededNoise
from wholegrain.silo.training import Silo


@dataclass(frozen=True, eq=False)
class Seen:
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


Watcher = Callable[[Seen], None]
NoiseOf = Callable[[int], NoiseSource]
"""The noise of each of an audit's runs, by the run's number."""


def noise_like(prepared: Prepared) -> NoiseOf:
    """The kind of noise that the run itself would use, other numbers in every run."""
    if not isinstance(prepared.noise, SeededNoise):
        return lambda run: prepared.noise
    seed = prepared.noise.seed
    return lambda run: SeededNoise(derive(seed, Purpose.NOISE, "audit", run))


@dataclass(frozen=True, eq=False)
class Watched:
    """An engine whose answers are shown to a watcher on their way; a silo that fails ends the audit."""

    engine: Engine
    rows: Mapping[str, tuple[Policy, SiloFacts]]
    learning_rate: float
    watch: Watcher

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        """The inner engine's answers."""
        for answer in self.engine.run(task):
            if isinstance(answer, SiloFault):
                raise RunError(f"Silo '{answer.silo}' failed in round {task.round} of the audit: {answer.reason}.")
            moved = answer.vector - task.vector
            self.watch(Seen(task.round, self.rows[answer.silo], task.vector, moved, self.learning_rate))
            yield answer


class Unpaid(Guard):
    """The guard of what is thrown away: it reserves nothing, in no ledger."""

    def __init__(self) -> None:
        pass

    def reserve(self, round: int, steps: Mapping[str, int], start: str) -> Reservation:
        """Nothing is spent."""
        return Reservation((), 0.0)

    def confirm(self, reservation: Reservation, silos: object) -> None:
        """Nothing has left."""


def play(
    prepared: Prepared,
    vector: Tensor,
    silos: Mapping[str, Silo],
    clipped_sum: ClippedSum,
    noise: NoiseSource,
    watch: Watcher,
) -> Tensor:
    """The parameters after all rounds, from `vector`, on these silos."""
    actual = replace(prepared, silos=silos, clipped_sum=clipped_sum, noise=noise)
    rows = {silo.name: (policy, silo) for policy, silo in prepared.plan.rows}
    settings = prepared.spec.rounds
    engine = Watched(in_process(actual), rows, settings.learning_rate, watch)
    averaged = Averaged(weights([facts for _, facts in rows.values()], Averaging(settings.averaging)))
    for played in rounds(State(0, vector), prepared.plan.horizon, engine, Unpaid(), averaged):
        vector = played.state.vector
    return vector
