"""Where a silo's randomness comes from: its noise, and the coins that decide who is in a batch.

Both decide the guarantee, and both must stay unknown to whoever sees the updates: noise that is known can be taken away
again, and a sampling that is known hides nobody. So their source is part of a run's record. The seeded source is
reproducible and therefore for simulation only.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import shake_256
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wholegrain._random import Purpose, derive, generator
from wholegrain.data.sampling import Source
from wholegrain.silo.counter_coins import CounterCoins
from wholegrain.silo.counter_noise import CounterNoise
from wholegrain.silo.seeded_coins import seeded_coins


class NoiseStream(Protocol):
    """The noise of one silo in one round, step after step."""

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        """Add the next N(0, (multiplier·clip_norm)² I) to a sum of contributions of that norm at most, in place.

        Where some of them are clipped to less, `least_norm` is the least of their norms.
        """
        ...

    def add_steps_to(self, total: Tensor, multiplier: float, clip_norm: float, step: float) -> None:
        """The same on a public grid: the sum, in double precision, becomes a whole number of steps, in place."""
        ...


class NoiseSource(Protocol):
    """Independent noise and coins for each silo and round."""

    @property
    def name(self) -> str:
        """How a report calls this source."""
        ...

    @property
    def identity(self) -> str:
        """What tells this source's numbers from another's."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether the same keys give the same numbers again; where they do not, asking again is another release."""
        ...

    def stream(self, round: int, silo: str) -> NoiseStream:
        """The noise of this silo in this round."""
        ...

    def coins(self, round: int, silo: str) -> Source:
        """What decides who is in the batches of this silo in this round."""
        ...

    def step_key(self, round: int, silo: str, step: int) -> int:
        """128 bits for the coins of dropout in one step."""
        ...


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible noise, a pure function of seed, round, silo and step: for simulation.

    Guarantee: for distinct rounds or silos the streams are seeded independently; no part of a stream is ever used for
    two releases of a run. Two runs with one seed share their noise, which is one more reason why it is for simulation
    only.

    `in_c`: the numbers of `CounterNoise` and `CounterCoins`, which are others, and which the C program makes faster.
    """

    seed: int
    in_c: bool = False

    @property
    def name(self) -> str:
        """`seeded (simulation)`."""
        return "seeded (simulation)"

    @property
    def identity(self) -> str:
        """The seed, and which generator it seeds."""
        return f"seeded:{self.seed}:counter" if self.in_c else f"seeded:{self.seed}"

    @property
    def repeats(self) -> bool:
        """To the last bit."""
        return True

    def coins(self, round: int, silo: str) -> Source:
        """Coins that depend on nothing but the seed and these keys."""
        if self.in_c:
            return CounterCoins(derive(self.seed, Purpose.SAMPLING, round, silo))
        return seeded_coins(generator(self.seed, Purpose.SAMPLING, round, silo))

    def step_key(self, round: int, silo: str, step: int) -> int:
        """Bits that depend on nothing but the seed and these keys."""
        return derive(self.seed, Purpose.DROPOUT, round, silo, step)

    def stream(self, round: int, silo: str) -> NoiseStream:
        """Noise that depends on nothing but the seed, these keys and how often it was asked."""
        key = derive(self.seed, Purpose.NOISE, round, silo)
        return CounterNoise(key) if self.in_c else _Twister(_seed_generator(key))


class _Twister:
    """Torch's generator, more than twice as fast as numpy's.

    Its float32 normals are made from 24 bits: none is beyond 5.8 standard deviations. Fit for a simulation. They are
    made on the host for every device: a logarithm or a cosine of another device would differ in its last bits.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        """Some values at a time: they stay in the cache, and no second vector is needed."""
        std = multiplier * clip_norm
        if std == 0:
            return
        # In single precision whatever the sum is in: the same seed gives the same noise, however the sum was made.
        some = torch.empty(min(BLOCK, total.numel()))
        if total.numel() <= BLOCK:
            total.add_(some.normal_(0, std, generator=self._generator).to(total.device))
            return
        for part in torch.split(total, BLOCK):
            part.add_(some[: part.shape[0]].normal_(0, std, generator=self._generator).to(total.device, total.dtype))

    def add_steps_to(self, total: Tensor, multiplier: float, clip_norm: float, step: float) -> None:
        """The same noise, rounded to the grid together with the sum."""
        self.add_to(total, multiplier, clip_norm)
        total.div_(step).round_()


def _seed_generator(seed: int) -> torch.Generator:
    """A generator whose whole state is drawn from a wide seed.

    `manual_seed` would take 32 bits on CPU, so that two silos could share their noise.
    """
    state = _first_state().clone()
    words = shake_256(seed.to_bytes(16)).digest(4 * WORDS)
    state.numpy()[HEAD : HEAD + 8 * WORDS].view(np.uint64)[:] = np.frombuffer(words, np.uint32)
    return torch.Generator().set_state(state)


@cache
def _first_state() -> Tensor:
    return torch.Generator().get_state()


# The Mersenne twister's words in torch's saved state: eight bytes for each, after seed, counters and position.
WORDS, HEAD = 624, 24
# Values drawn at a time: 256 kB of float32.
BLOCK = 1 << 16
