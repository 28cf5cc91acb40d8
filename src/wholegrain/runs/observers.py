"""Observers of a run: they get plain values, and there is no terminal code here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wholegrain.federation.messages import Answer, Engine, RoundTask, SumUpdate
from wholegrain.federation.round_record import RoundRecord


@dataclass(frozen=True)
class SiloAnswer:
    """One silo of a round has answered."""

    round: int
    silo: str


Observer = Callable[[SiloAnswer | RoundRecord], None]


def ignore(event: SiloAnswer | RoundRecord) -> None:
    """The observer that does nothing."""


def both(one: Observer, other: Observer) -> Observer:
    """An observer that tells two."""

    def tell(event: SiloAnswer | RoundRecord) -> None:
        one(event)
        other(event)

    return tell


@dataclass(frozen=True, eq=False)
class ObservedEngine:
    """An engine that tells an observer of each answer that passes through it."""

    engine: Engine
    observe: Observer

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """The inner engine's answers, told as they come."""
        for answer in self.engine.run(task):
            for silo in answer.silos if isinstance(answer, SumUpdate) else (answer.silo,):
                self.observe(SiloAnswer(task.round, silo))
            yield answer
