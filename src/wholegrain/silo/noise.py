"""Where noise comes from.

Noise decides the guarantee, so its source is part of a run's record. The seeded source is reproducible and therefore
for simulation only: whoever knows the seed can take the noise away again.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wholegrain._random import Purpose, derive

Keys = tuple[int, str, int]
"""Round, silo and step: what makes a release one of its kind."""


class NoiseSource(Protocol):
    """Independent Gaussian noise for each (round, silo, step)."""

    @property
    def name(self) -> str:
        """How a report calls this source."""
        ...

    def gaussian(self, like: Tensor, std: float, keys: Keys) -> Tensor:
        """N(0, std² I) in the shape of `like`."""
        ...


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible noise, a pure function of seed and keys: for simulation.

    Guarantee: for distinct keys the streams are seeded independently; no stream is ever used for two releases of a
    run. Two runs with one seed share their noise, which is one more reason why it is for simulation only.
    """

    seed: int

    @property
    def name(self) -> str:
        """`seeded (simulation)`."""
        return "seeded (simulation)"

    def gaussian(self, like: Tensor, std: float, keys: Keys) -> Tensor:
        """Noise that depends on nothing but its arguments and the seed."""
        if std == 0:
            return torch.zeros_like(like)
        # Not torch's own generator: on CPU it takes 32 bits of a seed, so that two releases could share their noise.
        stream = np.random.Generator(np.random.SFC64(derive(self.seed, Purpose.NOISE, *keys)))
        kind = np.float64 if like.dtype is torch.float64 else np.float32
        standard = torch.from_numpy(stream.standard_normal(like.numel(), dtype=kind))
        return standard.view_as(like).to(like.dtype).mul_(std)
