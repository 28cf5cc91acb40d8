"""What a run tells whoever watches it: plain values, no terminal code."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from wholegrain.federation.messages import Engine, RoundTask, SiloFault, SiloUpdate
from wholegrain.runs.evaluation import Score


@dataclass(frozen=True)
class SiloDone:
    """One silo of a round has answered."""

    round: int
    silo: str


@dataclass(frozen=True)
class RoundDone:
    """A round is averaged and scored, or has failed because too few silos gave something usable."""

    round: int
    cohort: tuple[str, ...]
    epsilon: float
    seconds: float
    scores: Mapping[str, Score]
    faults: tuple[SiloFault, ...] = ()
    failed: bool = False
    moved: float = 0.0
    """How far the parameters went."""
    noise: float | None = None
    """How far noise alone would be expected to take them; None where private facts set the noise."""


Observer = Callable[[SiloDone | RoundDone], None]


def ignore(event: SiloDone | RoundDone) -> None:
    """The observer that does nothing."""


def both(one: Observer, other: Observer) -> Observer:
    """An observer that tells two."""

    def tell(event: SiloDone | RoundDone) -> None:
        one(event)
        other(event)

    return tell


@dataclass(frozen=True, eq=False)
class ObservedEngine:
    """An engine that tells an observer of each answer that passes through it."""

    engine: Engine
    observe: Observer

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        """The inner engine's answers, told as they come."""
        for answer in self.engine.run(task):
            self.observe(SiloDone(task.round, answer.silo))
            yield answer
