"""What travels between the round loop and the silos, and who carries it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

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


Answer = SiloUpdate | SumUpdate | SiloFault


class Engine(Protocol):
    """Carries a task to silos and brings their answers back; it knows nothing of privacy."""

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """One answer for each silo of the task; of a secure sum, one for all silos that are in it."""
        ...
