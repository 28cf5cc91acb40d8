"""Coins that belong to subjects: what is random about somebody's data depends on that person's data alone.

Which items survive a cap, who is held out, where a synthetic partition puts an item: each is a keyed function of
(key, purpose, the subject's own id, the item's rank among that subject's own items), never of a position in a file or
of how many others there are. So when one subject leaves the file, nothing changes for anybody else, and neighbouring
files become neighbouring silos.

The function is AES-256 of the block id ‖ rank, under a key of its own for every purpose: without the key its values
cannot be told from chance. The key comes from the seed in a simulation; in a release it is a secret of the machine
that holds the data (`_secrets`). Never to be added here: a draw that counts subjects or positions.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import ArrayLike, NDArray

from wholegrain._random import Purpose

KEY = 32  # bytes
AT_ONCE = 1 << 12  # subjects whose orders are drawn at once, to hold few numbers
_HALF_STEP = 2.0**-54

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Coins:
    """Random numbers for each subject and each of its items, for one key and one purpose.

    >>> coins = Coins.seeded(0).of(Purpose.CAP, "north")
    >>> together, alone = coins.words([7, 9], [0, 0]), coins.words([9], [0])
    >>> bool((together[1] == alone[0]).all())
    True

    Private: the key of a release. It is not shown, and goes into no record.
    """

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY:
            raise ValueError(f"A key has {KEY} bytes, not {len(self.key)}.")

    @staticmethod
    def seeded(seed: int) -> "Coins":
        """Coins that can be tossed again: for simulations, and for data that is public."""
        return Coins(blake2b(str(seed).encode(), digest_size=KEY, person=b"seeded coins").digest())

    def of(self, purpose: Purpose, *names: int | str) -> "Coins":
        """Coins for this purpose under these names, independent of those for any other."""
        text = "\x1f".join([purpose, *map(str, names)])
        return Coins(blake2b(text.encode(), key=self.key, digest_size=KEY, person=b"coins of").digest())

    def name(self, *of: int | str) -> str:
        """What tells these coins, tossed for this, from others; it says nothing about how they fall."""
        return self.of(Purpose.SPLIT, "name", *of).key.hex()[:16]

    def words(self, subjects: ArrayLike, ranks: ArrayLike = 0) -> Words:
        """[..., 2] words of 64 random bits for each pair of a subject and a rank."""
        given = np.broadcast_arrays(np.asarray(subjects, np.int64), np.asarray(ranks, np.int64))
        blocks = np.stack(given, axis=-1).astype("<i8", copy=False)
        cipher = Cipher(AES256(self.key), ECB()).encryptor()  # no block is there twice, unless its coins are the same
        return np.frombuffer(cipher.update(blocks.tobytes()), "<u8").reshape(blocks.shape).astype(np.uint64, copy=False)

    def uniforms(self, subjects: ArrayLike, ranks: ArrayLike = 0) -> Floats:
        """A number strictly between 0 and 1 for each pair, with 53 random bits."""
        return _uniform(self.words(subjects, ranks)[..., 0])

    def below(self, chance: float, subjects: ArrayLike, ranks: ArrayLike = 0) -> NDArray[np.bool_]:
        """True with this probability, for each pair by itself."""
        fell: NDArray[np.bool_] = self.uniforms(subjects, ranks) < chance
        return fell

    def normals(self, subjects: ArrayLike, ranks: ArrayLike = 0) -> Floats:
        """A standard normal number for each pair, by Box and Muller's formula."""
        words = self.words(subjects, ranks)
        radius: Floats = np.sqrt(-2 * np.log(_uniform(words[..., 0])))
        return radius * np.cos(2 * np.pi * _uniform(words[..., 1]))

    def orders(self, subjects: ArrayLike, count: int, first: int | None = None) -> NDArray[np.int64]:
        """[subject, count] the numbers from 0 to count − 1 in an order of each subject's own, or the `first` few."""
        given = np.asarray(subjects, np.int64)[:, None]
        some = [given[start : start + AT_ONCE] for start in range(0, max(1, len(given)), AT_ONCE)]
        keys = (self.words(each, np.arange(count))[..., 0] for each in some)
        return np.concatenate([np.argsort(each, axis=1, kind="stable")[:, :first] for each in keys])


def _uniform(words: Words) -> Floats:
    # The half step keeps 0 and 1 out; for the largest words, it is lost to rounding, and 1 − 2⁻⁵³ comes out.
    drawn: Floats = np.minimum((words >> np.uint64(11)) * 2.0**-53 + _HALF_STEP, 1 - 2.0**-53)
    return drawn
