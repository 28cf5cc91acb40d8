"""Where noise comes from.

Noise decides the guarantee, so its source is part of a run's record. The seeded source is reproducible and therefore
for simulation only: whoever knows the seed can take the noise away again.
"""

from dataclasses import dataclass
from hashlib import shake_256
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wholegrain._random import Purpose, derive

class NoiseStream(Protocol):
    """The noise of one silo in one round, step after step."""

    def gaussian(self, like: Tensor, std: float) -> Tensor:
        """The next N(0, std² I) in the shape of `like`."""
        ...


class NoiseSource(Protocol):
    """Independent noise for each silo and round."""

    @property
    def name(self) -> str:
        """How a report calls this source."""
        ...

    def stream(self, round: int, silo: str) -> NoiseStream:
        """The noise of this silo in this round."""
        ...


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible noise, a pure function of seed, round, silo and step: for simulation.

    Guarantee: for distinct rounds or silos the streams are seeded independently; no part of a stream is ever used for
    two releases of a run. Two runs with one seed share their noise, which is one more reason why it is for simulation
    only.
    """

    seed: int

    @property
    def name(self) -> str:
        """`seeded (simulation)`."""
        return "seeded (simulation)"

    def stream(self, round: int, silo: str) -> NoiseStream:
        """Noise that depends on nothing but the seed, these keys and how often it was asked."""
        return _Twister(_seeded(derive(self.seed, Purpose.NOISE, round, silo)))


@dataclass(frozen=True, eq=False)
class _Twister:
    """Torch's generator, three times as fast as numpy's."""

    generator: torch.Generator

    def gaussian(self, like: Tensor, std: float) -> Tensor:
        """The next noise."""
        if std == 0:
            return torch.zeros_like(like)
        return torch.empty_like(like).normal_(0, std, generator=self.generator)


def _seeded(seed: int) -> torch.Generator:
    """A generator whose whole state is drawn from a wide seed.

    `manual_seed` would take 32 bits on CPU, so that two silos could share their noise.
    """
    stream = torch.Generator()
    state = stream.get_state()
    words = shake_256(seed.to_bytes(16)).digest(4 * WORDS)
    state.numpy()[HEAD : HEAD + 8 * WORDS].view(np.uint64)[:] = np.frombuffer(words, np.uint32)
    return stream.set_state(state)


# The Mersenne twister's words in torch's saved state: eight bytes for each, after seed, counters and position.
WORDS, HEAD = 624, 24
