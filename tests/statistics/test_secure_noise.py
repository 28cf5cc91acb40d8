"""Secure noise is Gaussian with its stated scale, on its grid whatever the sum, and never the same twice.

The operating system keys it, so that every run of these tests sees other numbers. Each law is therefore a p-value,
exact or nearly so, and compared with `RARE`; there are fewer than a hundred, so that one run in ten million fails by
chance. That each of them can fail is tested too, on values with a planted fault, which none gets past by chance either.

What statistics cannot see (a part in 8,000 of the scale, a bit in the tail) is tested to the bit under a known key,
against the definition in many digits.
"""

import copy
import math
import pickle
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from wholegrain.clipping.rounding import SLACK
from wholegrain.errors import RunError, SpecError
from wholegrain.silo import secure_noise
from wholegrain.silo.noise import NoiseSource, NoiseStream
from wholegrain.silo.secure_noise import (
    BLOCK,
    MARGIN,
    MOST_STEPS,
    Keystream,
    SecureNoise,
    grid,
    jitter_bits,
    normal_pairs,
    snap,
)

RARE = 1e-9
Values = NDArray[np.float64]
KEY = bytes(range(32))
INFINITE = float("inf")
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream has the same key, and so the same noise."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: KEY[:size])


def stream(round: int = 3, silo: str = "north") -> NoiseStream:
    return SecureNoise().stream(round, silo)


def part(stream: NoiseStream, size: int, z: float = 1.0, C: float = 1.0, dtype: torch.dtype = torch.float64) -> Values:
    """The next values of a stream, in units of what their standard deviation should be."""
    total = torch.zeros(size, dtype=dtype)
    stream.add_to(total, z, C)
    return total.double().numpy() / (z * C * (1 + SLACK) * (1 + MARGIN))


def released(total: torch.Tensor, z: float = 1.0, C: float = 1.0) -> torch.Tensor:
    """A sum with the first noise of a stream."""
    noisy = total.clone()
    stream().add_to(noisy, z, C)
    return noisy


# p-values.


def least(chances: Iterable[float]) -> float:
    """The p-value of the worst of several tests."""
    every = list(chances)
    return min(1.0, len(every) * min(every))


def of_mean(values: Values) -> float:
    return float(2 * stats.norm.sf(abs(values.mean()) * math.sqrt(values.size)))


def of_spread(values: Values) -> float:
    law, square = stats.chi2(values.size), float((values**2).sum())
    return float(2 * min(law.cdf(square), law.sf(square)))


def of_shape(values: Values) -> float:
    return float(stats.kstest(values.ravel(), "norm").pvalue)


def of_tail(beyond: int, among: int, limit: float) -> float:
    return float(stats.binomtest(beyond, among, 2 * stats.norm.sf(limit)).pvalue)


def of_largest(correlations: Values, among: int) -> float:
    """Of the largest correlation between independent normal values, so many of each."""
    largest = min(float(np.abs(correlations).max()), 1 - 1e-15)
    strength = largest * math.sqrt((among - 2) / (1 - largest**2))
    return min(1.0, correlations.size * 2 * float(stats.t(among - 2).sf(strength)))


def sizes_of(values: Values) -> Values:
    """Absolute values, as normal values of their own: those that share a radius are alike in size."""
    # On the grid a value is exactly zero now and then.
    return np.asarray(stats.norm.isf(2 * stats.norm.sf(np.abs(values).clip(min=1e-6))))


def of_columns(rows: Values) -> float:
    """Of any two columns of [draw, value], and of their sizes."""
    above = np.triu_indices(rows.shape[1], 1)
    return least(of_largest(np.corrcoef(seen.T)[above], len(rows)) for seen in (rows, sizes_of(rows)))


def of_echoes(values: Values) -> float:
    """Of values and later ones: neighbours, halves of a pair, places of a block."""
    lags = (1, 2, 8, 16, BLOCK // 2, BLOCK - 1, BLOCK, BLOCK + 1)

    def echo(seen: Values, lag: int) -> float:
        return of_largest(np.corrcoef(seen[:-lag], seen[lag:])[0, 1:], seen.size - lag)

    return least(echo(seen, lag) for seen in (values, sizes_of(values)) for lag in lags)


def of_law(values: Values) -> float:
    return least([of_mean(values), of_spread(values), of_shape(values)])


# The law of one stream.

MANY = 16 * BLOCK
# The last a little beyond 5: jitter would carry values that are cut there over it.
TAIL_DRAWS, TAIL_LIMITS = 12, (3.0, 4.0, 5.02)


@pytest.fixture(scope="module")
def values() -> Values:
    """Sixteen whole blocks."""
    return part(stream(), MANY)


LAWS: dict[str, Callable[[Values], float]] = {
    "mean": of_mean,
    "spread": of_spread,
    "shape": of_shape,
    "echoes": of_echoes,
}


def repeated(values: Values) -> Values:
    """The third block is the second again."""
    faulty = values.copy()
    faulty[2 * BLOCK : 3 * BLOCK] = faulty[BLOCK : 2 * BLOCK]
    return faulty


def alike_in_size(values: Values) -> Values:
    """The halves of a pair have one radius, but signs of their own."""
    blocks = values.reshape(-1, 2, BLOCK // 2).copy()
    blocks[:, 1] = np.sign(blocks[:, 1]) * np.abs(blocks[:, 0])
    return blocks.ravel()


def triangular(values: Values) -> Values:
    """As the sum of two uniform numbers is."""
    return (stats.norm.cdf(values).reshape(2, -1).sum(0) - 1) * math.sqrt(6)


FAULTS: dict[str, tuple[str, Callable[[Values], Values]]] = {
    "moved by 2 %": ("mean", lambda values: values + 0.02),
    "1 % too wide": ("spread", lambda values: 1.01 * values),
    "1 % too narrow": ("spread", lambda values: 0.99 * values),
    "coarse": ("shape", lambda values: np.round(values * 25) / 25),
    "triangular": ("shape", triangular),
    "a block repeated": ("echoes", repeated),
    "pairs alike in size": ("echoes", alike_in_size),
    "neighbours alike": ("echoes", lambda values: (values + 0.02 * np.roll(values, 1)) / math.hypot(1, 0.02)),
}


@pytest.mark.parametrize("law", LAWS)
def test_noise_is_normal(law: str, values: Values) -> None:
    assert LAWS[law](values) > RARE


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_law_would_be_seen(fault: str, values: Values) -> None:
    law, plant = FAULTS[fault]
    assert LAWS[law](plant(values)) < RARE


@pytest.fixture(scope="module")
def beyond() -> dict[float, int]:
    """How many of fifty million values lie beyond each limit."""
    drawn, counts = stream(), dict.fromkeys(TAIL_LIMITS, 0)
    total = torch.empty(1 << 22)
    for _ in range(TAIL_DRAWS):
        drawn.add_to(total.zero_(), 1.0, 1.0)
        total.abs_().div_((1 + SLACK) * (1 + MARGIN))
        for limit in TAIL_LIMITS:
            counts[limit] += int((total > limit).sum())
    return counts


@pytest.mark.parametrize("limit", TAIL_LIMITS)
def test_tails_have_their_weight(limit: float, beyond: dict[float, int]) -> None:
    assert of_tail(beyond[limit], TAIL_DRAWS << 22, limit) > RARE


@pytest.mark.parametrize("limit", TAIL_LIMITS)
def test_a_tail_that_is_cut_or_doubled_would_be_seen(limit: float, beyond: dict[float, int]) -> None:
    assert of_tail(0, TAIL_DRAWS << 22, limit) < RARE
    assert limit > 5 or of_tail(2 * beyond[limit], TAIL_DRAWS << 22, limit) < RARE


@precisions
@pytest.mark.parametrize(("z", "C"), [(1e-2, 1e-6), (0.7, 3.0), (250.0, 1e4)])
@pytest.mark.parametrize(("size", "count"), [(1, 1500), (7, 600), (83, 300), (BLOCK + 1, 1)])
def test_noise_has_its_scale_at_every_size(size: int, count: int, z: float, C: float, dtype: torch.dtype) -> None:
    drawn = stream()
    assert of_law(np.array([part(drawn, size, z, C, dtype) for _ in range(count)])) > RARE


def test_a_scale_holds_for_the_values_that_it_is_asked_with() -> None:
    drawn = stream()
    scales = (1e-3, 250.0, 2.0)
    rows = np.array([[part(drawn, 3, z) for z in scales] for _ in range(600)])
    assert least(of_law(rows[:, number]) for number in range(3)) > RARE


# Independence.


@pytest.mark.parametrize("size", [2, 7, 20])
def test_values_of_one_step_and_the_next_are_independent(size: int) -> None:
    drawn = stream()
    rows = np.array([part(drawn, size) for _ in range(1001)])
    assert of_columns(np.hstack([rows[:-1], rows[1:]])) > RARE


def test_where_a_block_ends_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 8, so that whole vectors can be compared; of 20 values, the last block has 6."""
    monkeypatch.setattr(secure_noise, "BLOCK", 8)
    drawn = stream()
    rows = np.array([part(drawn, 20) for _ in range(1000)])
    assert of_columns(rows) > RARE
    assert least(of_law(column) for column in rows.T) > RARE


@pytest.mark.parametrize("size", [7, 20_000])
def test_rounds_silos_sources_and_repetitions_are_independent(size: int) -> None:
    """The first two have the same keys."""
    source, other = SecureNoise(), SecureNoise()
    keys = [(3, "north"), (3, "north"), (4, "north"), (3, "south")]

    def row() -> list[Values]:
        return [part(source.stream(*key), size) for key in keys] + [part(other.stream(*keys[0]), size)]

    columns = np.concatenate([np.array(row()).T for _ in range(math.ceil(20_000 / size / 20))])
    assert not (columns[:, 0] == columns[:, 1]).all()
    assert of_columns(columns) > RARE


def test_streams_that_share_their_key_would_be_seen(known_key: None) -> None:
    assert of_columns(np.array([part(stream(round=round), 1000) for round in (3, 4)]).T) < RARE


def test_the_first_values_of_many_streams_are_independent() -> None:
    source = SecureNoise()
    rows = np.array([part(source.stream(round, "north"), 7) for round in range(1001)])
    assert of_law(rows) > RARE
    assert of_columns(np.hstack([rows[:-1], rows[1:]])) > RARE


# The grid.


@given(st.floats(1e-15, 1e15), st.integers(1, 10**12))
def test_the_grid_is_the_largest_power_of_two_that_the_margin_pays_for(clip_norm: float, size: int) -> None:
    step, most = grid(clip_norm, size), (Fraction(clip_norm) * Fraction(MARGIN)) ** 2
    assert math.frexp(step)[0] == 0.5
    assert Fraction(step) ** 2 * size <= most < Fraction(2 * step) ** 2 * size


@pytest.mark.parametrize("size", [1, 4, 2**20, 2**20 - 1, 2**20 + 1, 2**52 - 1, 2**60 + 1])
@pytest.mark.parametrize("clip_norm", [1.0, math.nextafter(1.0, 0), math.nextafter(1.0, 2)])
def test_the_grid_is_right_where_rounding_could_deceive(clip_norm: float, size: int) -> None:
    step, most = grid(clip_norm, size), (Fraction(clip_norm) * Fraction(MARGIN)) ** 2
    assert Fraction(step) ** 2 * size <= most < Fraction(2 * step) ** 2 * size


def steps_in(total: Iterable[float], step: float, dtype: torch.dtype) -> list[int]:
    snapped = torch.tensor(list(total), dtype=dtype)
    snap(snapped, step)
    return [int(value) for value in snapped.tolist()]


@given(st.data(), st.floats(1e-6, 1e6), st.integers(1, 12), st.sampled_from([torch.float32, torch.float64]))
def test_the_grid_brings_sums_no_further_apart_than_the_margin_pays_for(
    data: st.DataObject, scale: float, size: int, dtype: torch.dtype
) -> None:
    """To the last digit, in fractions; values lie near borders between steps as often as anywhere."""
    near = grid(scale, size)
    value = st.one_of(
        st.floats(-50 * scale, 50 * scale),
        st.builds(lambda k, off: (k + 0.5) * near + off * near, st.integers(-99, 99), st.floats(-1e-3, 1e-3)),
    )
    one, other = (torch.tensor(data.draw(st.lists(value, min_size=size, max_size=size)), dtype=dtype) for _ in "ab")
    square = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(one.tolist(), other.tolist(), strict=True))
    clip_norm = max(scale, math.nextafter(math.sqrt(square), INFINITE) * (1 + 1e-15))
    assert square <= Fraction(clip_norm) ** 2
    step = grid(clip_norm, size)
    pairs = zip(steps_in(one.tolist(), step, dtype), steps_in(other.tolist(), step, dtype), strict=True)
    moved = Fraction(step) ** 2 * sum((a - b) ** 2 for a, b in pairs)
    assert moved <= (Fraction(clip_norm) * (1 + Fraction(MARGIN))) ** 2


@given(st.floats(-1e9, 1e9, width=32), st.integers(-40, 40), st.sampled_from([torch.float32, torch.float64]))
def test_snapping_is_rounding_in_fractions(value: float, exponent: int, dtype: torch.dtype) -> None:
    step = 2.0**exponent
    expected = round(Fraction(value) / Fraction(step))
    if abs(expected) < 2**52:
        assert steps_in([value], step, dtype) == [expected]


@precisions
@pytest.mark.parametrize("size", [1, 5, 1000, BLOCK + 3])
def test_a_release_is_on_the_grid(size: int, dtype: torch.dtype) -> None:
    """In float32 where it has the digits for it: with noise this small every number of steps is below 2²⁴."""
    step = grid(3.0, size)
    z = 1.0 if dtype is torch.float64 else 2.0**20 * step / 3
    total = torch.from_numpy(np.random.default_rng(0).normal(0, z, size)).to(dtype)
    noisy = released(total, z, 3.0).double() / step
    assert torch.equal(noisy, noisy.round())


def test_a_release_without_the_grid_would_be_seen() -> None:
    step = grid(1.0, 1000)
    values = torch.randn(1000, dtype=torch.float64) / step
    assert not torch.equal(values, values.round())


@pytest.mark.parametrize("below", [0.0, 0.3, -0.3, 0.499999, 1e-12, -0.5])
def test_what_a_sum_has_below_the_grid_leaves_no_trace(below: float, known_key: None) -> None:
    """The same noise gives the same release, to the bit."""
    step = grid(1.0, 1000)
    whole = step * torch.arange(-500.0, 500.0, dtype=torch.float64)
    even = step * 2 * torch.arange(-500.0, 500.0, dtype=torch.float64)  # a half is rounded to them
    base = even if abs(below) == 0.5 else whole
    assert torch.equal(released(base), released(base + below * step))


def test_noise_does_not_depend_on_the_sum(known_key: None) -> None:
    """The release of a sum that is moved by whole steps is moved by them, exactly."""
    step = grid(1.0, 1000)
    noise = released(torch.zeros(1000, dtype=torch.float64)) / step
    for moved in (1.0, -12_345.0, 2.0**51 - 1):
        total = torch.full((1000,), moved * step, dtype=torch.float64)
        assert torch.equal(released(total) / step - moved, noise)


@pytest.mark.parametrize("below", [0.0, 0.3])
def test_the_last_bits_of_a_release_are_even_chances(below: float) -> None:
    """Remainders by 16 are uniform, whatever the sum has below the grid."""
    size = 200_000
    step = grid(1.0, size)
    noisy = released(torch.full((size,), below * step, dtype=torch.float64)) / step
    assert stats.chisquare(np.bincount(np.mod(noisy.numpy(), 16).astype(int), minlength=16)).pvalue > RARE


@pytest.mark.parametrize(("bits", "even"), [(0, False), (8, True)])
def test_jitter_hides_how_floating_point_rounds(bits: int, even: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a grid far finer than is ever used: there float64 has two binary places, and halves are rounded to even."""
    monkeypatch.setattr(secure_noise, "jitter_bits", lambda std: bits)
    noise = secure_noise.WholeNormals(Keystream(secrets.token_bytes(32)))
    noise.hold(50_000)
    remainders = np.mod(noise.draw(2.0**50).numpy(), 4).astype(int)
    assert bool(stats.chisquare(np.bincount(remainders, minlength=4)).pvalue > RARE) is even


def test_float32_is_float64_rounded(known_key: None) -> None:
    total = torch.from_numpy(np.random.default_rng(0).normal(0, 3, BLOCK + 7)).float()
    assert torch.equal(released(total), released(total.double()).float())


# To the bit, under a known key.


def test_the_key_stream_is_aes_256_in_counter_mode() -> None:
    """The vectors CTR-AES256 of NIST SP 800-38A, F.5.5."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    message = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    masked = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    bits, stream = bytearray(64), Keystream(key, counter)
    for piece in (slice(0, 5), slice(5, 33), slice(33, 64)):
        stream.fill(memoryview(bits)[piece])
    assert bytes(a ^ b for a, b in zip(message, bits, strict=True)) == masked


def defined(total: list[float], z: float, C: float, block: int, steps: int) -> list[list[Fraction]]:
    """Releases of the first steps as the module's docstring defines them, in many digits. Blocks are drawn whole."""
    encryptor = Cipher(AES256(KEY), CTR(bytes(16))).encryptor()
    step = Fraction(2) ** 40
    while step**2 * len(total) > (Fraction(C) / 8192) ** 2:
        step /= 2
    std = Fraction(z) * Fraction(C) * (1 + Fraction(1, 64)) * (1 + Fraction(1, 8192)) / step
    releases = []
    for _ in range(steps):
        noise: list[int] = []
        while len(noise) < len(total):
            noise += block_in_many_digits(encryptor.update(bytes(16 * ((block + 1) // 2) + 4 * block)), block, std)
        releases.append([step * (round(Fraction(x) / step) + n) for x, n in zip(total, noise, strict=False)])
    return releases


def block_in_many_digits(drawn: bytes, block: int, std: Fraction) -> list[int]:
    """Noise in steps of the grid, from the bytes drawn for it."""
    pairs = (block + 1) // 2
    words = struct.unpack_from(f"={2 * pairs}q", drawn)
    jitter = struct.unpack_from(f"={block}i", drawn, 16 * pairs)
    normal = normal_in_many_digits(words[:pairs], words[pairs:])
    scaled = [int(mpmath.nint(x * std.numerator / std.denominator)) for x in normal[:block]]
    bits = math.floor(math.log2(std)) - 6
    return [n + (u >> (32 - bits) if bits > 0 else 0) for n, u in zip(scaled, jitter, strict=True)]


def normal_in_many_digits(first: Iterable[int], second: Iterable[int]) -> list[mpmath.mpf]:
    """All cosines, then all sines."""
    radii = [mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(abs(2 * j + 1)) / 2**64)) for j in first]
    angles = [2 * mpmath.pi * j / 2**64 for j in second]
    return [r * f(a) for f in (mpmath.cos, mpmath.sin) for r, a in zip(radii, angles, strict=True)]


@pytest.fixture
def many_digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


@pytest.mark.parametrize(("size", "block"), [(1, 1), (2, 2), (7, 7), (8, 8), (9, 5), (20, 7)])
@pytest.mark.parametrize(("z", "C"), [(1.0, 1.0), (1e-3, 0.7), (37.5, 1e-3), (1e6, 1e5)])
def test_releases_are_as_defined(
    size: int,
    block: int,
    z: float,
    C: float,
    known_key: None,
    many_digits: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With blocks of 8 at most. This sees the margin in the scale, which no statistics could."""
    monkeypatch.setattr(secure_noise, "BLOCK", 8)
    total = [float(value) for value in np.random.default_rng(size).normal(0, 5 * C, size)]
    drawn, noisy = stream(), []
    for _ in range(3):
        vector = torch.tensor(total, dtype=torch.float64)
        drawn.add_to(vector, z, C)
        noisy.append(vector.tolist())
    assert noisy == defined(total, z, C, block, steps=3)


def pairs_of(words: Values | NDArray[np.int64]) -> list[float]:
    values = torch.empty(words.shape, dtype=torch.float64)
    normal_pairs(torch.from_numpy(words), 1.0, torch.empty(words.shape[1], dtype=torch.float64), values)
    return [float(value) for value in values.ravel()]


def test_normal_values_are_right_to_46_bits(many_digits: None) -> None:
    """Which jitter makes a factor of 1 ± 2⁻³⁸ of."""
    words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (2, 3000), endpoint=True)
    words[0, :1000] >>= np.arange(1000) % 64  # tails
    words[1, 2000:] >>= np.arange(1000) % 64  # small angles
    given, right = pairs_of(words), normal_in_many_digits(*words.tolist())
    assert max(abs(x - y) for x, y in zip(given, right, strict=True)) < 2**-46


def test_the_tail_ends_where_it_is_said_to() -> None:
    least, most = np.array([[0, -1], [0, 0]]), np.array([[2**63 - 1, -(2**63)], [0, 0]])
    assert pairs_of(least)[:2] == pytest.approx([9.4193] * 2, abs=1e-4)
    assert pairs_of(most) == [0.0] * 4
    assert 4.5e-21 < 2 * stats.norm.sf(9.4193) < 5e-21


@given(st.floats(1e-3, secure_noise.MOST_STD))
def test_jitter_is_as_wide_as_it_is_said_to_be(std: float) -> None:
    width = 2 ** jitter_bits(std)
    assert width <= std / 64 < 2 * width or (width == 1 and std < 128)
    assert width <= 2**32


class Fixed(Keystream):
    """Normal values that are all zero, and this jitter."""

    def __init__(self, jitter: list[int]) -> None:
        pairs = (len(jitter) + 1) // 2
        self.bytes = struct.pack(f"={2 * pairs}q{len(jitter)}i", *[2**63 - 1] * pairs, *[0] * pairs, *jitter)

    def fill(self, buffer: memoryview) -> None:
        buffer[:] = self.bytes


@pytest.mark.parametrize("bits", [1, 5, 18, 32])
def test_jitter_is_uniform_around_zero(bits: int) -> None:
    """Its highest bits count, so that all numbers have the same chance."""
    one = 2 ** (32 - bits)
    noise = secure_noise.WholeNormals(Fixed([-(2**31), -one, -1, 0, one - 1, one % 2**31, 2**31 - 1]))
    noise.hold(7)
    expected = [-(2 ** (bits - 1)), -1, -1, 0, 0, (one % 2**31) // one, 2 ** (bits - 1) - 1]
    assert noise.draw(2.0 ** (bits + 6)).tolist() == expected


# What a stream leaves alone, and what it refuses.


@precisions
@pytest.mark.parametrize("size", [0, 1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1])
def test_every_value_gets_its_noise(size: int, dtype: torch.dtype) -> None:
    """Of much noise, none is of no steps at all, but for a chance of 10⁻⁹."""
    values = part(stream(), size, 3e4, dtype=dtype)
    assert values.shape == (size,)
    assert (values == 0).sum() <= 3
    assert size == 0 or values[-3:].any()


@precisions
@pytest.mark.parametrize("size", [7, BLOCK + 5])
def test_a_slice_of_a_larger_vector_is_all_that_is_changed(size: int, dtype: torch.dtype, known_key: None) -> None:
    larger = torch.linspace(-1, 1, size + 9, dtype=dtype)
    kept = larger.clone()
    stream().add_to(larger[4:-5], 1.0, 1.0)
    assert torch.equal(larger[4:-5], released(kept[4:-5]))
    assert torch.equal(larger[:4], kept[:4])
    assert torch.equal(larger[-5:], kept[-5:])


@precisions
@pytest.mark.parametrize("size", [7, BLOCK + 5])
def test_a_vector_may_have_gaps(size: int, dtype: torch.dtype, known_key: None) -> None:
    larger = torch.linspace(-1, 1, 3 * size, dtype=dtype)
    kept = larger.clone()
    stream().add_to(larger[1::3], 1.0, 1.0)
    assert torch.equal(larger[1::3], released(kept[1::3].clone()))
    assert torch.equal(larger[::3], kept[::3])
    assert torch.equal(larger[2::3], kept[2::3])


def test_a_stream_takes_vectors_of_different_lengths() -> None:
    drawn = stream()
    rows = [np.concatenate([part(drawn, size) for size in (5, 300, 2)]) for _ in range(20)]
    assert of_law(np.array(rows)) > RARE


@precisions
@pytest.mark.parametrize("size", [3, BLOCK + 3])
def test_no_noise_changes_nothing(size: int, dtype: torch.dtype) -> None:
    total = torch.linspace(-1, 1, size, dtype=dtype)
    assert torch.equal(released(total, z=0.0), total)


def test_global_generators_are_left_alone() -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    part(stream(), 100)
    SecureNoise().coins(3, "north").subset(100, 0.5, shuffled=True)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_gradients_are_not_followed() -> None:
    total = torch.zeros(10)
    stream().add_to(total, 1.0, 1.0)
    assert not total.is_inference()
    assert not total.requires_grad
    total.mul_(2)


@precisions
@pytest.mark.parametrize("place", [0, 5, BLOCK + 2])
@pytest.mark.parametrize("wrong", [math.nan, INFINITE, -INFINITE])
def test_a_sum_that_is_no_sum_of_clipped_gradients_is_refused(wrong: float, place: int, dtype: torch.dtype) -> None:
    total = torch.zeros(BLOCK + 3, dtype=dtype)
    total[place] = wrong
    with pytest.raises(RunError, match="nothing of it is released"):
        stream().add_to(total, 1.0, 1.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_all_bounds_is_held_there_and_not_refused(sign: int) -> None:
    """Parameters that point everybody in one direction would otherwise make a refusal tell who is there."""
    step = grid(1.0, 3)
    limit = sign * MOST_STEPS * step
    neighbours = [torch.tensor([limit - sign, 0.0, 5.0]).double(), torch.tensor([limit + sign, 0.0, 5.0]).double()]
    held = [total.clone() for total in neighbours]
    for total in held:
        snap(total, step)
    assert held[1][0] == sign * MOST_STEPS
    assert (held[0] - held[1]).abs().max() * step <= (neighbours[0] - neighbours[1]).abs().max()
    stream().add_to(neighbours[1], 1.0, 1.0)
    assert abs(neighbours[1][0].item() - limit) < 12


@pytest.mark.parametrize("multiplier", [-1.0, math.nan, INFINITE, 1e15])
def test_impossible_noise_is_refused(multiplier: float) -> None:
    total = torch.zeros(5)
    with pytest.raises(SpecError, match="noise_multiplier"):
        stream().add_to(total, multiplier, 1.0)
    assert not total.any()


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, INFINITE])
def test_an_impossible_clip_norm_is_refused(clip_norm: float) -> None:
    total = torch.zeros(5)
    with pytest.raises(SpecError, match="clip_norm"):
        stream().add_to(total, 1.0, clip_norm)
    assert not total.any()


# Keys, names and coins.


def test_keys_have_256_bits_of_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = SecureNoise(), []
    monkeypatch.setattr(secrets, "token_bytes", lambda size: asked.append(size) or KEY[:size])
    for _ in range(3):
        source.stream(3, "north")
    assert asked == [32] * 3


def test_nothing_shows_or_keeps_a_key(known_key: None) -> None:
    source = SecureNoise()
    drawn = source.stream(3, "north")
    part(drawn, 3)
    for shown in (repr(source), repr(drawn), repr(vars(source)), repr(vars(drawn)), source.name, source.identity):
        assert not any(form in shown for form in (KEY.hex(), repr(KEY)[2:-1], str(list(KEY))[1:-1]))
    assert KEY not in pickle.dumps(source)
    assert not any(held == KEY for held in everything_in(drawn))


def everything_in(value: object) -> list[object]:
    """What an object's fields hold, and the fields of those."""
    held = list(vars(value).values()) if hasattr(value, "__dict__") else []
    return held + [
        deeper for field in held if type(field).__module__ == secure_noise.__name__ for deeper in everything_in(field)
    ]


@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy])
def test_a_stream_cannot_be_taken_down(take: Callable[[object], object]) -> None:
    """A copy would draw the same noise again."""
    with pytest.raises(TypeError, match="cannot pickle"):
        take(stream())


def test_a_source_may_be_sent_elsewhere_and_draws_other_numbers_there() -> None:
    source = SecureNoise()
    copied = pickle.loads(pickle.dumps(source))
    assert copied == source
    assert not (part(copied.stream(3, "north"), 50) == part(source.stream(3, "north"), 50)).all()


def test_no_two_sources_have_one_identity() -> None:
    sources: list[NoiseSource] = [SecureNoise() for _ in range(100)]
    identities = {source.identity for source in sources}
    assert len(identities) == 100
    assert all(identity.startswith("secure:") and len(identity) == 7 + 32 for identity in identities)
    assert all(source.identity == source.identity for source in sources)
    with pytest.raises(TypeError):
        SecureNoise(identity="secure:mine")  # type: ignore[call-arg]


def test_a_source_says_what_it_is() -> None:
    assert SecureNoise().name.startswith("secure")
    assert "simulation" not in SecureNoise().name


def test_coins_are_fair_and_never_the_same() -> None:
    source = SecureNoise()
    one, other = (set(source.coins(3, "north").subset(20_000, 0.5, shuffled=False).tolist()) for _ in range(2))
    assert least(float(stats.binomtest(len(heads), 20_000).pvalue) for heads in (one, other, one ^ other)) > RARE
