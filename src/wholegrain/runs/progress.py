"""What a run tells whoever watches it: plain values, no terminal code."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from wholegrain.federation.messages import Engine, RoundTask, SiloUpdate
from wholegrain.runs.evaluation import Score


@dataclass(frozen=True)
class SiloDone:
    """One silo of a round has returned its update."""

    round: int
    silo: str


@dataclass(frozen=True)
class RoundDone:
    """A round is averaged and scored."""

    round: int
    cohort: tuple[str, ...]
    epsilon: float
    seconds: float
    scores: Mapping[str, Score]


Observer = Callable[[SiloDone | RoundDone], None]


def ignore(event: SiloDone | RoundDone) -> None:
    """The observer that does nothing."""


@dataclass(frozen=True, eq=False)
class Observed:
    """An engine that tells an observer of each update that passes through it."""

    engine: Engine
    observe: Observer

    def run(self, task: RoundTask) -> Iterator[SiloUpdate]:
        """The inner engine's updates, told as they come."""
        for update in self.engine.run(task):
            self.observe(SiloDone(task.round, update.silo))
            yield update
