"""Random draws for samplers: from numpy in a simulation, from AES in counter mode in a release.

Who is in a batch must stay unknown to whoever sees the updates: amplification by sampling rests on that. In a release
the coins are therefore bits of a cipher under a key that nobody keeps, and each law is exact: whole random words are
compared and sorted, never rounded.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Positions = NDArray[np.int64]


class Draws(Protocol):
    """The three things that samplers draw."""

    def subset(self, count: int, rate: float, *, shuffled: bool) -> Positions:
        """Each of the positions below `count` with probability `rate`, independently; if asked, in random order."""
        ...

    def choose(self, count: int, size: int) -> Positions:
        """A uniform choice of `size` positions below `count`, in random order."""
        ...

    def shuffle(self, positions: Positions) -> Positions:
        """The same in random order."""
        ...


@dataclass(frozen=True)
class NumpyDraws:
    """Draws of a numpy generator: fast, repeatable, and predictable from what it drew before. For simulations."""

    generator: np.random.Generator

    def subset(self, count: int, rate: float, *, shuffled: bool) -> Positions:
        """A binomial count and then a uniform subset: the same law as a coin per position, without so many coins."""
        size = self.generator.binomial(count, rate)
        return self.generator.choice(count, size, replace=False, shuffle=shuffled)

    def choose(self, count: int, size: int) -> Positions:
        """A uniform choice without replacement."""
        return self.generator.choice(count, size, replace=False)

    def shuffle(self, positions: Positions) -> Positions:
        """A random permutation."""
        return self.generator.permutation(positions)


class SecureDraws:
    """Draws from AES-256 in counter mode, under the key that is given: one that nobody else has.

    It belongs to one process: a fork of it would draw the same again.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(AES256(key), CTR(bytes(16))).encryptor()

    def subset(self, count: int, rate: float, *, shuffled: bool) -> Positions:
        """A coin of 64 bits per position: heads below ⌊rate·2⁶⁴⌋, so never more often than at the rate."""
        if rate == 1:
            chosen = np.arange(count)
        else:
            # Scaling by a power of two is exact.
            chosen = np.flatnonzero(self._words(count) < np.uint64(int(rate * 2.0**64)))
        return self.shuffle(chosen) if shuffled else chosen

    def choose(self, count: int, size: int) -> Positions:
        """The first so many of a random order."""
        return self.shuffle(np.arange(count))[:size]

    def shuffle(self, positions: Positions) -> Positions:
        """In the order of random words. Given that no two are alike, every order is as likely as any other."""
        while True:
            words = self._words(len(positions))
            order = np.argsort(words)
            if not (np.diff(words[order]) == 0).any():
                return positions[order]

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), np.uint64)


def as_draws(given: "Draws | np.random.Generator") -> Draws:
    """What samplers draw from; a numpy generator is taken for what it is."""
    return NumpyDraws(given) if isinstance(given, np.random.Generator) else given
