"""Noise and coins for releases that leave a silo: keyed by the operating system, and whole steps of a public grid.

A sum of floating-point numbers plus Gaussian floating-point noise is no Gaussian mechanism: its last bits tell sums
apart [Mironov 2012; Holohan and Braghin 2021]. Here, with C the clip norm, d the number of values and z the noise
multiplier:

    g = the largest power of two with g·√d ≤ C·2⁻¹³        the grid, from public numbers alone
    k = round(total / g)                                   exact, for g is a power of two
    n = round(N(0, (s/g)²)) + jitter,  whole numbers, with s = z·C·(1 + SLACK)·(1 + 2⁻¹³)
    result = g·(k + n)                                     exact in float64, then rounded to the vector's precision

Why this is the Gaussian mechanism that was priced: adding a whole number commutes with rounding, so k + round(N) is
round(k + N), a Gaussian mechanism on k and something done to its result; jitter, which is independent of the sum, and
the change of precision are more that is done to it. Rounding brings two sums at most g·√d ≤ C·2⁻¹³ further apart, and
s is larger by what that can be at most: every event is priced with moves of C or more, if the sums differ at all.

What jitter is for: a normal value that is computed in float64 is off by 2⁻⁴⁶ σ at most. Rounded to a grid as fine as
2⁻²⁵ σ, each result's probability would be off by a part in a million, which adds up over millions of values. Averaged
over W neighbouring results, W·g between σ/128 and σ/64, the errors at the results between cancel.

What remains, beside the assumption that AES-256 in counter mode cannot be told from chance:
- The probability of each result is off by a factor of 1 ± 2⁻³⁸ at most. So whatever is done with a release of d values,
  this changes the probability of what comes out by no more than √d·2⁻³⁸: 10⁻⁸ for 6.6 million values.
- Normal values are made in pairs, their radius from 63 bits and their angle from 64: the tail ends at 9.42 σ, which a
  true normal value exceeds with probability 5·10⁻²¹, and beyond 5 σ the radius gets coarser. Over all that happens with
  a pair this makes a difference of 2⁻⁵² at most: 10⁻⁹ for 6.6 million values.
- The numbers are those of the mathematics, not of a clock: how long they take is not claimed to be independent of them.
- Sums are taken to move by what was priced times 1 + SLACK: what floating point does to them before they get here is
  bounded by that (clipping/rounding.py), and the noise is larger by as much.

Never to be added here: a seed, a way to get at a key, a log of what was drawn.
"""

import math
import secrets
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

from wholegrain import _check
from wholegrain.clipping import devices
from wholegrain.clipping.rounding import SLACK
from wholegrain.data.draws import Draws, SecureDraws
from wholegrain.errors import RunError, SpecError
from wholegrain.silo.noise import NoiseStream

MARGIN = 2.0**-13
"""How much further apart, in units of C, the grid may bring two sums, and how much larger the noise is for it."""
MOST_STD = 2.0**38
"""Standard deviation in steps of the grid up to which 32 bits of jitter are enough."""
MOST_STEPS = 2.0**52
"""A sum of so many steps, and noise of at most 10·MOST_STD, add up exactly in float64."""
BLOCK = 1 << 16
"""Values drawn at a time. With fewer, the calls cost more than they save by staying in the cache."""


@dataclass(frozen=True)
class SecureNoise:
    """Noise and coins that nobody can repeat: for releases that leave a silo.

    Guarantee: every stream has a key of its own, 256 bits from the operating system, which nothing keeps but the stream
    itself. Noise is on a grid, as this module's docstring has it.

    Asked twice with the same round and silo it gives different noise, so that the two are two releases, and both are to
    be paid for. A copy in another process has the same identity and draws other numbers.
    """

    identity: str = field(default_factory=lambda: f"secure:{secrets.token_hex(16)}", init=False)
    """Random, and no part of any key: no other source has the same."""

    @property
    def repeats(self) -> bool:
        """Never."""
        return False

    @property
    def name(self) -> str:
        """`secure (AES-256, keyed by the operating system, on a grid)`."""
        return "secure (AES-256, keyed by the operating system, on a grid)"

    def coins(self, round: int, silo: str) -> Draws:
        """Coins from AES-256 under a fresh key, other ones at each call.

        Nobody can know or guess who is in a batch: amplification by sampling rests on that.
        """
        return SecureDraws(secrets.token_bytes(32))

    def step_key(self, round: int, silo: str, step: int) -> int:
        """Bits from the operating system, other ones at each call."""
        return secrets.randbits(128)

    def stream(self, round: int, silo: str) -> NoiseStream:
        """Noise under a fresh key. A stream belongs to one process: a fork of it would draw the same again."""
        return GridNoise(Keystream(secrets.token_bytes(32)))


class Keystream:
    """AES-256 in counter mode: the bits that a message would be masked with."""

    def __init__(self, key: bytes, counter: bytes = bytes(16)) -> None:
        self._encryptor = Cipher(AES256(key), CTR(counter)).encryptor()

    def fill(self, buffer: memoryview) -> None:
        """Overwrite bytes with the next bits."""
        self._encryptor.update_into(ZEROS[: len(buffer)], buffer)


class GridNoise:
    """A stream of noise on the grid, made from a stream of bits."""

    def __init__(self, bits: Keystream) -> None:
        self._noise = WholeNormals(bits)

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        """Put the sum on the grid and add the next noise, in place; without noise it stays as it is.

        The grid is made for `least_norm`: in a silo where a subject counts less, rounding counts less in the same
        measure.

        Guarantee: a Gaussian mechanism of noise multiplier `multiplier` for sums that differ by C·(1 + SLACK) or a
        multiple, up to what the module's docstring says to remain.
        Private: `total`. After an error it is neither the sum nor a release.
        """
        if _check.non_negative("noise_multiplier", multiplier) == 0 or total.numel() == 0:
            return
        step = grid(least_norm or clip_norm, total.numel())
        self.add_steps_to(total, multiplier, clip_norm, step)
        total.mul_(step)

    def add_steps_to(self, total: Tensor, multiplier: float, clip_norm: float, step: float) -> None:
        """Replace a sum by whole steps of a grid and add the next noise, in place.

        Private: `total`, as in `add_to`.
        """
        std = multiplier * clip_norm * (1 + SLACK) * (1 + MARGIN) / step
        if not std <= MOST_STD:
            raise SpecError(f"noise_multiplier = {multiplier:g} is too large for {total.numel():,} parameters.")
        size = _part(total.numel())
        self._noise.hold(size)
        with torch.inference_mode():
            for part in torch.split(total, size):
                snap(part, step)
                part.copy_(self._noise.draw(std)[: part.numel()].to(part.device).add_(part))


@lru_cache
def grid(clip_norm: float, size: int) -> float:
    """The largest power of two g with g·√size ≤ clip_norm·2⁻¹³.

    >>> grid(1.0, 4) == 2**-14
    True
    """
    square = (Fraction(_check.positive("clip_norm", clip_norm)) * Fraction(MARGIN)) ** 2 / size
    step = Fraction(2) ** (math.frexp(clip_norm * MARGIN / math.sqrt(size))[1] - 1)
    # The quotient may have been rounded up to a power of two.
    return float(step if step**2 <= square else step / 2)


def snap(total: Tensor, step: float) -> None:
    """Replace a sum by the number of steps in it, to the nearest whole one; exact in every precision.

    Guarantee: beyond 2⁵² steps a value is held there, so that noise can be added exactly. That brings no two sums
    further apart; a refusal would tell, without noise, on which side of the bound a sum is. What is not finite is no
    sum of clipped gradients, and is refused.
    """
    low, high = devices.to_host(torch.stack(torch.aminmax(total.mul_(1 / step).round_()))).tolist()
    # What is not a number must not pass either.
    if not (low > -math.inf and high < math.inf):
        raise RunError("A sum of clipped gradients is not finite, so nothing of it is released.")
    total.clamp_(-MOST_STEPS, MOST_STEPS)


class WholeNormals:
    """Normal values in steps of a grid, rounded and jittered, made in buffers that are used again."""

    def __init__(self, bits: Keystream) -> None:
        self._bits = bits
        self._size = 0

    def hold(self, size: int) -> None:
        """From now on draw so many values at a time."""
        if size == self._size:
            return
        self._size, pairs = size, (size + 1) // 2
        random = torch.empty(16 * pairs + 4 * size, dtype=torch.uint8)
        self._random = random.numpy().data
        self._words = random[: 16 * pairs].view(torch.int64).view(2, pairs)
        self._jitter = random[16 * pairs :].view(torch.int32)
        self._radius = torch.empty(pairs, dtype=torch.float64)
        self._values = torch.empty(2, pairs, dtype=torch.float64)

    def draw(self, std: float) -> Tensor:
        """The next values, which hold until others are drawn."""
        self._bits.fill(self._random)
        normal_pairs(self._words, std, self._radius, self._values)
        values = self._values.round_().view(-1)[: self._size]
        width = jitter_bits(std)
        return values.add_(self._jitter.bitwise_right_shift_(32 - width)) if width else values


def normal_pairs(words: Tensor, std: float, radius: Tensor, values: Tensor) -> None:
    """Box and Muller's normal values [2, pair] from random 64-bit words [2, pair], with room for radii [pair].

    The radius is √(−2 ln u) with u = |j + ½|·2⁻⁶³: a word j and −1−j give the same, so that 63 bits count. Small u,
    which make the tail, have all digits.
    """
    cosine, sine = values
    radius.copy_(words[0]).mul_(2.0**-63).add_(2.0**-64).abs_().log_().mul_(-2 * std * std).sqrt_()
    sine.copy_(words[1]).mul_(math.tau * 2.0**-64)
    torch.cos(sine, out=cosine)
    sine.sin_()
    values.mul_(radius)


def jitter_bits(std: float) -> int:
    """Jitter is uniform on 2^bits whole numbers around 0, the most that is at most std/64; 0 where that is none.

    It makes the standard deviation larger by a part in 98,000 at most. Below 128 steps no jitter is needed: the error
    that it is to spread is then small beside one step.
    """
    return max(0, math.frexp(std)[1] - 7)


def _part(size: int) -> int:
    """The length of parts, equal but for the last, of at most a block each."""
    return math.ceil(size / math.ceil(size / BLOCK))


# What is masked with the key stream, so that the stream itself comes out: up to 12 bytes for each value of a block.
ZEROS = memoryview(bytes(12 * BLOCK + 16))
