"""Seeded noise from a counter: value k is a function of the stream's key and of k, in C and in numpy to the same bits.

Words are those of Philox 4x32 with ten rounds [Salmon et al. 2011], and two of them make two normals [Box and Muller
1958], in single precision. Every operation is rounded by itself, and logarithm, sine and cosine are written out, so
that neither compiler nor processor nor library decides a bit. A radius takes 31 bits: values reach 6.6 standard
deviations. Reproducible, and therefore for simulation only.

The C program (program/noise.c) makes them faster. What is here in numpy says what it does.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.silo.c_library import load_library

GROUP, COUNTERS = 64, 16
"""Values come in groups of 64, from 16 counters of four words each."""
ROUNDS = 10
FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
STEPS = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)
BLOCK = 1 << 10
"""Groups that numpy makes at a time."""

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]


class CounterNoise:
    """A `NoiseStream` whose numbers are a function of a 128-bit key and of what was asked of it before."""

    def __init__(self, key: int) -> None:
        self._key, self._next = words_of(key), 0
        self._place = self._key.ctypes.data

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        """In single precision whatever the sum is in, as the noise of other seeded runs. Each call begins a group."""
        scale = multiplier * clip_norm
        if scale == 0:
            return
        wide = total.dtype is torch.float64
        if total.is_contiguous() and (wide or total.dtype is torch.float32):
            _add_noise()(self._place, self._next, scale, total.numel(), total.data_ptr(), wide)
        else:
            total.add_(torch.from_numpy(normals(self._key, self._next, total.numel(), scale)).view(total.shape))
        self._next += -(-total.numel() // GROUP)

    def add_steps_to(self, total: Tensor, multiplier: float, clip_norm: float, step: float) -> None:
        """The same noise, rounded to the grid together with the sum."""
        self.add_to(total, multiplier, clip_norm)
        total.div_(step).round_()


@cache
def _add_noise() -> Any:
    function = load_library().wholegrain_add_noise
    function.restype = None
    function.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_float,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
    )
    return function


def words_of(key: int) -> Words:
    """128 bits as four words: two of Philox's key, and the upper two of its counter."""
    return np.array([key >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)], np.uint32)


def normals(key: Words, group: int, count: int, scale: float = 1.0) -> Floats:
    """So many values from a group on, times `scale`, as the C program makes them."""
    groups = -(-count // GROUP)
    parts = [_make_groups(key, group + k, min(BLOCK, groups - k), scale) for k in range(0, groups, BLOCK)]
    return np.concatenate([*parts, np.empty(0, np.float32)])[:count]


def _make_groups(key: Words, first: int, count: int, scale: float) -> Floats:
    counters = np.arange(first * COUNTERS, (first + count) * COUNTERS, dtype=np.uint64)
    drawn = philox(counters, key).reshape(4, count, COUNTERS)
    pairs = [_turn(_radius(drawn[k]) * np.float32(scale), drawn[k + 1]) for k in (0, 2)]
    return np.stack([each for pair in pairs for each in pair], axis=1).reshape(-1)


def philox(counters: NDArray[np.uint64], key: Words) -> Words:
    """The four words [word, counter] of each 64-bit counter.

    >>> [hex(word) for word in philox(np.zeros(1, np.uint64), np.zeros(4, np.uint32))[:, 0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    shift = np.uint64(32)
    w0, w1 = counters & LOW, counters >> shift
    w2, w3 = (np.full_like(counters, word) for word in key[2:])
    k0, k1 = (int(word) for word in key[:2])
    for _ in range(ROUNDS):
        a, b = w0 * FACTORS[0], w2 * FACTORS[1]
        w0, w2 = (b >> shift) ^ w1 ^ np.uint64(k0), (a >> shift) ^ w3 ^ np.uint64(k1)
        w1, w3 = b & LOW, a & LOW
        k0, k1 = (k0 + STEPS[0]) & 0xFFFFFFFF, (k1 + STEPS[1]) & 0xFFFFFFFF
    return np.stack([w0, w1, w2, w3]).astype(np.uint32)


def _radius(word: Words) -> Floats:
    """√(−2 ln u), u from 2⁻³² to 1 by the upper 31 bits of a word; the logarithm's polynomial is that of Cephes."""
    f, root = np.float32, np.int32(0x3F3504F3)
    v = (word >> np.uint32(1)).astype(np.int32).astype(f) + f(0.5)
    above = v.view(np.int32) - (root + np.int32(31 << 23))
    e = (above >> np.int32(23)).astype(f)
    x = ((above & np.int32(0x7FFFFF)) + root).view(f) - f(1)
    z = x * x
    even = (((z * f(7.0376836292e-2) + f(1.1676998740e-1)) * z + f(1.4249322787e-1)) * z + f(2.0000714765e-1)) * z
    odd = ((z * f(-1.1514610310e-1) - f(1.2420140846e-1)) * z - f(1.6668057665e-1)) * z - f(2.4999993993e-1)
    y = (even + f(3.3333331174e-1) + odd * x) * (x * z) + (e * f(-2.12194440e-4) - f(0.5) * z)
    found: Floats = np.sqrt((x + y + e * f(0.693359375)) * f(-2))
    return found


def _turn(r: Floats, word: Words) -> tuple[Floats, Floats]:
    """A radius in a direction: an angle of up to an eighth of a turn by 30 bits, in a quarter that two more name."""
    f = np.float32
    x = (word << np.uint32(2)).view(np.int32).astype(f) * f(3.6572952e-10)
    z = x * x
    sine = (z * f(-1.9515295891e-4) + f(8.3321608736e-3)) * z - f(1.6666654611e-1)
    sine = sine * z * x + x
    cosine = (z * f(2.443315711809948e-5) - f(1.388731625493765e-3)) * z + f(4.166664568298827e-2)
    cosine = cosine * z * z - f(0.5) * z + f(1)
    swap = word >> np.uint32(31) == 1
    r = (r.view(np.uint32) ^ ((word << np.uint32(1)) & np.uint32(0x80000000))).view(f)
    return r * np.where(swap, sine, cosine), r * np.where(swap, cosine, sine)
