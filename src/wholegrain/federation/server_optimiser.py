"""What the server makes of a round's mean. Silos have added their noise by then: nothing here costs privacy.

What the server remembers from round to round is part of a run's state, so that a run goes on to the same bits.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import torch
from torch import Tensor

Memory = Mapping[str, Tensor]
NOTHING: Memory = MappingProxyType({})

# Adam's second moment, and what keeps its step finite.
SECOND, TINY = 0.99, 1e-8


class Step(StrEnum):
    """How the parameters follow the mean."""

    PLAIN = "plain"
    """They become the mean, or go a part of the way."""
    MOMENTUM = "momentum"
    """They keep some of their speed."""
    ADAM = "adam"
    """Each at a pace of its own, by how steadily it was asked to move."""


class Average(StrEnum):
    """Which parameters are shown and kept."""

    NONE = "none"
    """Those after the last round."""
    TAIL = "tail"
    """The mean over the last share of all rounds."""
    EXPONENTIAL = "exponential"
    """A mean in which each earlier round counts less."""


SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""What the learning rate is multiplied by when this share of the rounds is done."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server's own step and average; by default the mean is taken as it is.

    Guarantee: a function of what the silos released, of public settings and of its own past: post-processing.
    """

    step: Step = Step.PLAIN
    learning_rate: float = 1.0
    schedule: str = "constant"
    momentum: float = 0.9
    average: Average = Average.NONE
    tail: float = 0.5
    decay: float = 0.9

    def pace(self, round: int, rounds: int) -> float:
        """The learning rate in this round."""
        return self.learning_rate * SCHEDULES[self.schedule](round / rounds)

    def noise_share(self, round: int, rounds: int) -> float | None:
        """What a round's noise is multiplied by on its way into the parameters; None where the past decides that."""
        return self.pace(round, rounds) if self.step is Step.PLAIN else None

    def move(self, vector: Tensor, mean: Tensor, memory: Memory, round: int, rounds: int) -> tuple[Tensor, Memory]:
        """Parameters after the round, and what to remember."""
        moved, kept = self._moved(vector, mean, memory, self.pace(round, rounds))
        return moved, {**kept, **self._averaged(moved, memory, round, rounds)}

    def shown(self, vector: Tensor, memory: Memory) -> Tensor:
        """The parameters that are scored, and kept in the end."""
        return memory.get("average", vector)

    def _moved(self, vector: Tensor, mean: Tensor, memory: Memory, pace: float) -> tuple[Tensor, Memory]:
        if self.step is Step.PLAIN:
            return (mean, NOTHING) if pace == 1 else (torch.lerp(vector, mean, pace), NOTHING)
        speed = memory.get("speed", torch.zeros_like(vector))
        update = mean - vector
        if self.step is Step.MOMENTUM:
            speed = speed * self.momentum + update
            return vector + speed * pace, {"speed": speed}
        squares = memory.get("squares", torch.zeros_like(vector))
        count = memory.get("count", torch.zeros(1, dtype=torch.int64)) + 1
        speed = torch.lerp(update, speed, self.momentum)
        squares = torch.lerp(update * update, squares, SECOND)
        steady, scale = speed / (1 - self.momentum ** int(count)), squares / (1 - SECOND ** int(count))
        return vector + pace * steady / (scale.sqrt() + TINY), {"speed": speed, "squares": squares, "count": count}

    def _averaged(self, vector: Tensor, memory: Memory, round: int, rounds: int) -> Memory:
        if self.average is Average.NONE or round < self._first(rounds):
            return NOTHING
        before = memory.get("average")
        averages = memory.get("averages", torch.zeros(1, dtype=torch.int64)) + 1
        if before is None:
            return {"average": vector.clone(), "averages": averages}
        share = 1 - self.decay if self.average is Average.EXPONENTIAL else 1 / int(averages)
        return {"average": torch.lerp(before, vector, share), "averages": averages}

    def _first(self, rounds: int) -> int:
        """The first round that counts in the average."""
        return 0 if self.average is Average.EXPONENTIAL else math.ceil(rounds * (1 - self.tail) - 1e-9)


PLAIN = Server()
