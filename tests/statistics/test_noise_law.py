"""Seeded noise is Gaussian with its stated scale, independent within and between streams, and the same again for the
same seed, round and silo.

Torch draws fewer than 16 values one by one, more of them in rows of 16, and `add_to` takes more than a block in blocks:
each law is asked of all three.
"""

from hashlib import shake_256
from itertools import combinations, product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from effort import amount
from wholegrain._random import Purpose, derive, generator
from wholegrain.data.draws import as_draws
from wholegrain.silo import noise as noise_module
from wholegrain.silo.noise import BLOCK, HEAD, WORDS, NoiseStream, SeededNoise

FAR = 6.5
RARE = 1e-7
Values = NDArray[np.float64]
# The names that the tests below give to the three ways of drawing.
SIZES = {"one by one": 7, "rows": 20, "rows and a part": 83, "blocks": 2 * BLOCK + 5}

every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())


def part(stream: NoiseStream, size: int, std: float = 1.0, dtype: torch.dtype = torch.float32) -> Values:
    """The next values of a stream; half of twice a number is that number, to the last bit."""
    total = torch.zeros(size, dtype=dtype)
    stream.add_to(total, 2 * std, 0.5)
    return total.double().numpy()


def first(size: int, round: int = 3, silo: str = "north", seed: int = 0) -> Values:
    """The values with which a stream begins."""
    return part(SeededNoise(seed).stream(round, silo), size)


def parts(size: int, count: int) -> Values:
    """Successive parts of one stream [part, value]."""
    stream = SeededNoise(0).stream(3, "north")
    return np.array([part(stream, size) for _ in range(count)])


def check_normal(values: Values) -> None:
    n = values.size
    assert abs(values.mean()) < FAR / np.sqrt(n)
    assert abs(values.var() - 1) < FAR * np.sqrt(2 / n)
    assert stats.kstest(values.ravel(), "norm").pvalue > RARE


def check_uncorrelated(rows: Values) -> None:
    """Columns of [draw, value], their squares too: values that share a radius would be alike in size."""
    for columns in (rows, rows**2):
        correlations = np.corrcoef(columns.T)[np.triu_indices(rows.shape[1], 1)]
        assert np.abs(correlations).max() * np.sqrt(len(rows)) < FAR


# The law of one stream.


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [1e-3, 1.0, 250.0])
@pytest.mark.parametrize(
    ("size", "count"),
    [(1, amount(20_000, quick=5_000)), (7, 3_000), (16, 2_000), (83, 1_000), (BLOCK, 3), (BLOCK + 1, 3), (200_000, 1)],
)
def test_noise_is_normal_with_its_stated_scale(size: int, count: int, std: float, dtype: torch.dtype) -> None:
    stream = SeededNoise(0).stream(3, "north")
    check_normal(np.array([part(stream, size, std, dtype) for _ in range(count)]) / std)


@pytest.mark.parametrize(("multiplier", "clip_norm"), [(0.7, 0.5), (1e-3, 40.0), (250.0, 1e-2)])
def test_the_scale_is_multiplier_times_clip_norm(multiplier: float, clip_norm: float) -> None:
    values = torch.zeros(50_000, dtype=torch.float64)
    SeededNoise(0).stream(3, "north").add_to(values, multiplier, clip_norm)
    check_normal(values.numpy() / (multiplier * clip_norm))


def test_a_scale_holds_for_the_values_that_it_is_asked_with() -> None:
    """Of values drawn in pairs, an odd number leaves one for the next part, which may ask for another scale."""
    stream = SeededNoise(0).stream(3, "north")
    values = [(part(stream, 3, 1e-3), part(stream, 3, 250.0), part(stream, 20, 2.0)) for _ in range(3000)]
    for number, std in enumerate((1e-3, 250.0, 2.0)):
        check_normal(np.array([drawn[number] for drawn in values]) / std)


@pytest.mark.parametrize("size", [2, 7, 16, 20, 83])
def test_values_of_one_part_are_independent(size: int) -> None:
    check_uncorrelated(parts(size, 5000))


@pytest.mark.parametrize(("size", "count"), [(1, 20_001), (7, 5_001), (20, 5_001), (83, 2_001)])
def test_successive_parts_of_one_stream_are_independent(size: int, count: int) -> None:
    rows = parts(size, count)
    assert len(np.unique(rows)) > 0.99 * rows.size
    check_uncorrelated(np.hstack([rows[:-1], rows[1:]]))


def test_successive_long_parts_of_one_stream_are_independent() -> None:
    rows = parts(BLOCK + 50, 4)
    check_uncorrelated(rows.T)


def test_parts_of_different_lengths_are_independent() -> None:
    """From one way of drawing to another and back."""
    stream = SeededNoise(0).stream(3, "north")
    lengths = (5, 20, 3, 40)
    check_uncorrelated(np.array([np.hstack([part(stream, size) for size in lengths]) for _ in range(4000)]))


# Blocks.


@pytest.mark.thorough
@pytest.mark.parametrize("size", [40, 41, 55, 56, 59])
def test_where_a_block_ends_cannot_be_seen(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 20, so that whole vectors can be compared; the last has from 1 to 20 values."""
    monkeypatch.setattr(noise_module, "BLOCK", 20)
    rows = parts(size, amount(5000, quick=1000))
    check_uncorrelated(rows)
    check_normal(rows)
    for position in (0, 4, 19, 20, 24, 39, size - 1):
        check_normal(rows[:, position])


@pytest.mark.parametrize("size", [2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1])
def test_no_block_repeats_another(size: int) -> None:
    values = first(size)
    for lag in (1, 8, 16, BLOCK - 1, BLOCK, BLOCK + 1):
        one, other = values[:-lag], values[lag:]
        assert abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(len(one)) < FAR
        assert (one == other).mean() < 1e-3


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 15])
def test_every_value_gets_its_noise(size: int) -> None:
    values = first(size)
    assert values.shape == (size,)
    # Float32 noise is exactly zero once in millions of values, and not in all of the last ones.
    assert (values == 0).sum() <= 2
    assert size == 0 or (values[-3:] != 0).any()


@every_size
def test_noise_is_added_to_what_is_there(size: int) -> None:
    total = torch.linspace(-3.0, 5.0, size)
    expected = total + torch.from_numpy(first(size)).float()
    SeededNoise(0).stream(3, "north").add_to(total, 1.0, 1.0)
    assert torch.equal(total, expected)


@every_size
def test_a_slice_of_a_larger_vector_is_all_that_is_changed(size: int) -> None:
    larger = torch.zeros(size + 9)
    SeededNoise(0).stream(3, "north").add_to(larger[4 : 4 + size], 1.0, 1.0)
    assert torch.equal(larger[4 : 4 + size], torch.from_numpy(first(size)).float())
    assert not larger[:4].any()
    assert not larger[4 + size :].any()


# Many streams.


@pytest.mark.parametrize("size", [7, 20])
def test_the_first_values_of_neighbouring_streams_are_independent(size: int) -> None:
    """Streams whose keys differ by one must not be alike at their beginning."""
    begun = np.array([first(size, round=number) for number in range(3001)])
    check_normal(begun)
    check_uncorrelated(np.hstack([begun[:-1], begun[1:]]))


@pytest.mark.parametrize("size", [7, 20])
def test_the_first_values_of_silos_are_independent(size: int) -> None:
    begun = np.array([first(size, silo=f"silo-{number}") for number in range(3001)])
    check_normal(begun)
    check_uncorrelated(np.hstack([begun[:-1], begun[1:]]))


def test_streams_of_distinct_rounds_silos_and_seeds_are_independent() -> None:
    n = 100_000
    keys = [(3, "north"), (4, "north"), (3, "south"), (31, "north"), (3, "1north")]
    draws = [first(n, *key) for key in keys] + [first(n, seed=1)]
    for a, b in combinations(draws, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(n) < FAR


@every_size
def test_a_stream_does_not_notice_the_others(size: int) -> None:
    """What it gives depends on how often it was asked, not on who was asked in between."""
    source = SeededNoise(0)
    north, south = source.stream(3, "north"), source.stream(3, "south")
    mixed = [part(stream, size) for _ in range(3) for stream in (north, south)]
    for silo, given in (("north", mixed[::2]), ("south", mixed[1::2])):
        alone = source.stream(3, silo)
        assert all((part(alone, size) == values).all() for values in given)


@every_size
def test_noise_is_a_pure_function_of_seed_round_and_silo(size: int) -> None:
    torchs, numpys = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    again = first(size)
    torch.rand(3)
    assert (first(size) == again).all()
    torch.random.set_rng_state(torchs)
    first(size)
    assert torch.equal(torch.random.get_rng_state(), torchs)
    assert (np.random.get_state()[1] == numpys).all()


def test_no_two_releases_of_a_run_share_their_noise() -> None:
    source = SeededNoise(0)
    streams = [source.stream(*key) for key in product(range(12), [f"silo-{number}" for number in range(16)])]
    seen = {part(stream, 8).tobytes() for stream in streams for _ in range(10)}
    assert len(seen) == 12 * 16 * 10


# The seed of a stream.


@pytest.mark.parametrize("bit", [0, 31, 32, 62, 63, 64, 127])
@pytest.mark.parametrize("size", [7, 32])
def test_every_bit_of_a_streams_seed_counts(size: int, bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's `manual_seed`, for one, looks at 32 bits: then two of 80,000 streams are likely to share their noise."""
    draws = []
    for seed in (5, 5 ^ (1 << bit)):
        monkeypatch.setattr(noise_module, "derive", lambda *keys, seed=seed: seed)
        draws.append(first(size))
    assert not (draws[0] == draws[1]).any()


def test_a_streams_seed_is_wide_and_depends_on_every_key() -> None:
    """128 bits: with 2⁴⁰ streams two of them collide with a chance below 2⁻⁴⁸."""
    seeds = [derive(seed, Purpose.NOISE, round, silo) for seed, round, silo in product(range(4), range(2), ["a", "b"])]
    assert len(set(seeds)) == 16
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == 16
    assert max(seed.bit_length() for seed in seeds) > 120


def words_of(generator: torch.Generator) -> NDArray[np.uint64]:
    return generator.get_state().numpy()[HEAD : HEAD + 8 * WORDS].view(np.uint64)


@pytest.mark.parametrize("seed", [0, 1, 5489, 2**32 - 1])
def test_torch_keeps_the_twisters_words_where_they_are_replaced(seed: int) -> None:
    """Right after `manual_seed` they are those of the twister's own definition, beginning with the seed itself."""
    expected = [seed]
    for number in range(1, WORDS):
        last = expected[-1]
        expected.append((1812433253 * (last ^ (last >> 30)) + number) % 2**32)
    assert words_of(torch.Generator().manual_seed(seed)).tolist() == expected


@pytest.mark.parametrize("seed", [0, 5, 2**128 - 1])
def test_a_stream_is_the_twister_of_words_drawn_from_its_seed(seed: int) -> None:
    """numpy's twister, given the same words, gives the same bits: none is overlooked, none is left of torch's own."""
    words = np.frombuffer(shake_256(seed.to_bytes(16)).digest(4 * WORDS), np.uint32)
    generator = noise_module._seed_generator(seed)
    assert words_of(generator).tolist() == words.tolist()
    other = np.random.MT19937()
    other.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": WORDS}}
    bits = torch.empty(3 * WORDS, dtype=torch.int32).random_(generator=generator)
    assert bits.tolist() == (other.random_raw(3 * WORDS) & 0x7FFFFFFF).tolist()


# What a stream leaves alone.


@pytest.mark.parametrize("size", [3, BLOCK + 3])
def test_no_noise_changes_nothing(size: int) -> None:
    total = torch.linspace(-1.0, 1.0, size, dtype=torch.float64)
    kept = total.clone()
    SeededNoise(0).stream(3, "north").add_to(total, 0.0, 1.0)
    assert torch.equal(total, kept)


@every_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_the_same_in_every_precision(size: int, dtype: torch.dtype) -> None:
    """How a sum was made decides on its precision, and must not decide on the noise of a simulation."""
    total, single = torch.zeros(size, dtype=dtype), torch.zeros(size)
    for each in (total, single):
        SeededNoise(0).stream(3, "north").add_to(each, 1.0, 1.0)
    assert total.dtype is dtype
    assert torch.equal(total.float(), single)


def test_coins_are_a_stream_of_their_own_by_seed_round_and_silo() -> None:
    """Not that of the noise, and the same again for the same keys."""
    keys = [(0, 3, "north"), (1, 3, "north"), (0, 4, "north"), (0, 3, "south")]
    sources = [SeededNoise(seed).coins(round, silo) for seed, round, silo in keys]
    others = [generator(0, purpose, 3, "north") for purpose in (Purpose.SAMPLING, Purpose.NOISE)]
    tossed = [as_draws(each).subset(1000, 0.5, shuffled=True).tolist() for each in (*sources, *others)]
    assert len({tuple(coins) for coins in tossed[: len(keys)]}) == len(keys)
    assert tossed[0] == tossed[-2]
    assert tossed[0] != tossed[-1]


def test_the_identity_tells_seeds_apart_and_nothing_else() -> None:
    """A ledger takes releases of one identity for the same, which they are."""
    assert SeededNoise(0).identity == SeededNoise(0).identity != SeededNoise(1).identity


def test_seeded_noise_says_that_it_is_for_simulation() -> None:
    assert "simulation" in SeededNoise(0).name
