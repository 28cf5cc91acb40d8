"""Seeded noise is Gaussian with its stated scale, independent between releases, the same again for the same keys."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy import stats

from wholegrain._random import Purpose, derive
from wholegrain.silo import noise as noise_module
from wholegrain.silo.noise import Keys, SeededNoise

FAR = 6.5
RARE = 1e-7
KEYS: Keys = (3, "north", 7)
OTHERS: list[Keys] = [(4, "north", 7), (3, "south", 7), (3, "north", 8), (7, "north", 3)]


def noise(size: int, std: float = 1.0, keys: Keys = KEYS, seed: int = 0, dtype: torch.dtype = torch.float32):
    return SeededNoise(seed).gaussian(torch.zeros(size, dtype=dtype), std, keys).double().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [1e-3, 1.0, 250.0])
def test_noise_is_normal_with_its_stated_scale(std: float, dtype: torch.dtype) -> None:
    n = 200_000
    values = noise(n, std, dtype=dtype)
    assert abs(values.mean()) < FAR * std / np.sqrt(n)
    assert abs(values.var() / std**2 - 1) < FAR * np.sqrt(2 / n)
    assert stats.kstest(values / std, "norm").pvalue > RARE


def test_short_vectors_are_normal_too() -> None:
    """Small models take another path through torch's generator, and start a new stream for each few values."""
    values = np.concatenate([noise(3, 2.0, (0, "north", step)) for step in range(5000)])
    assert abs(values.var() / 4 - 1) < FAR * np.sqrt(2 / len(values))
    assert stats.kstest(values / 2.0, "norm").pvalue > RARE


def test_the_first_values_of_successive_streams_are_independent() -> None:
    """Streams whose keys differ by one must not be alike at their beginning."""
    first = np.array([noise(20, 1.0, (0, "north", step)) for step in range(3000)])
    assert abs(np.corrcoef(first[:-1, 0], first[1:, 0])[0, 1]) * np.sqrt(3000) < FAR
    correlations = np.corrcoef(first.T)[np.triu_indices(20, 1)]
    assert np.abs(correlations).max() * np.sqrt(3000) < FAR


def test_noise_is_independent_across_rounds_silos_steps_and_seeds() -> None:
    n = 100_000
    draws = [noise(n, keys=keys) for keys in [KEYS, *OTHERS]] + [noise(n, seed=1)]
    for a, b in combinations(draws, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(n) < FAR


def test_noise_is_a_pure_function_of_seed_and_keys() -> None:
    state = torch.random.get_rng_state()
    again = noise(100)
    noise(100, keys=OTHERS[0])
    assert (noise(100) == again).all()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_no_two_releases_of_a_run_share_their_noise() -> None:
    keys = list(product(range(12), [f"silo-{number}" for number in range(16)], range(10)))
    assert len({noise(8, keys=key).tobytes() for key in keys}) == len(keys)


@pytest.mark.parametrize("bit", [0, 31, 32, 62, 63, 64, 127])
def test_every_bit_of_a_streams_seed_counts(bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's CPU generator, for one, looks at 32 bits: then two of 80,000 releases are likely to share their noise."""
    draws = []
    for seed in (5, 5 ^ (1 << bit)):
        monkeypatch.setattr(noise_module, "derive", lambda *keys, seed=seed: seed)
        draws.append(noise(32))
    assert not (draws[0] == draws[1]).any()


def test_a_streams_seed_is_wide_and_depends_on_every_key() -> None:
    """128 bits: with 2⁴⁰ releases two of them collide with a chance below 2⁻⁴⁸."""
    keys = product(range(2), range(2), ["a", "b"], range(2))
    seeds = [derive(seed, Purpose.NOISE, round, silo, step) for seed, round, silo, step in keys]
    assert len(set(seeds)) == 16
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == 16
    assert max(seed.bit_length() for seed in seeds) > 120


def test_no_noise_is_zero_and_like_its_model() -> None:
    like = torch.zeros(3, dtype=torch.float64)
    silent = SeededNoise(0).gaussian(like, 0.0, KEYS)
    assert torch.equal(silent, like)
    assert SeededNoise(0).gaussian(like, 1.0, KEYS).dtype is torch.float64


def test_seeded_noise_says_that_it_is_for_simulation() -> None:
    assert "simulation" in SeededNoise(0).name
