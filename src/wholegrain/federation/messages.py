"""What travels between the round loop and the silos, and who carries it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RoundTask:
    """Train from these parameters, in these silos, for so many steps."""

    round: int
    silos: tuple[str, ...]
    steps: int
    vector: Tensor


@dataclass(frozen=True, eq=False)
class SiloUpdate:
    """A silo's parameters after its steps: noisy, and all that leaves the silo."""

    silo: str
    vector: Tensor


@dataclass(frozen=True, eq=False)
class SumUpdate:
    """The parameters that a secure sum over these silos leads to: no silo's own were ever seen."""

    silos: tuple[str, ...]
    vector: Tensor


@dataclass(frozen=True)
class SiloFault:
    """A silo that gave nothing usable in a round, and why."""

    silo: str
    reason: str


@dataclass(frozen=True, eq=False)
class ScoreTask:
    """Score these parameters privately, in these silos, after a round."""

    round: int
    silos: tuple[str, ...]
    vector: Tensor


@dataclass(frozen=True, eq=False)
class SiloScore:
    """A silo's noisy sum over the people whom it holds out [value], and all that leaves it of them."""

    silo: str
    sums: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SumScore:
    """The noisy sum over the people whom these silos hold out [value]: no silo's own was ever seen."""

    silos: tuple[str, ...]
    sums: NDArray[np.float64]


Answer = SiloUpdate | SumUpdate | SiloFault


class Engine(Protocol):
    """Carries a task to silos and brings their answers back; it knows nothing of privacy."""

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """One answer for each silo of the task; of a secure sum, one for all silos that are in it."""
        ...


class ScoreEngine(Protocol):
    """Carries parameters to silos and brings their noisy scores back."""

    def score(self, task: ScoreTask) -> Iterator[SiloScore | SumScore | SiloFault]:
        """One answer for each silo of the task; of a secure sum, one for all silos that are in it."""
        ...
