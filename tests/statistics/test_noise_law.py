"""Seeded noise is Gaussian with its stated scale, independent between releases, the same again for the same keys."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy import stats

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


@pytest.mark.parametrize(
    ("one", "other"),
    [((314, "a", 97), (607, "a", 141)), ((304, "a", 45), (647, "a", 193)), ((168, "a", 59), (911, "a", 128))],
)
def test_all_bits_of_a_seed_count(one: Keys, other: Keys) -> None:
    """These keys' 63-bit seeds have their low 32 bits in common, which is all that torch's CPU generator looks at."""
    assert not (noise(32, keys=one) == noise(32, keys=other)).any()


def test_no_noise_is_zero_and_like_its_model() -> None:
    like = torch.zeros(3, dtype=torch.float64)
    silent = SeededNoise(0).gaussian(like, 0.0, KEYS)
    assert torch.equal(silent, like)
    assert SeededNoise(0).gaussian(like, 1.0, KEYS).dtype is torch.float64


def test_seeded_noise_says_that_it_is_for_simulation() -> None:
    assert "simulation" in SeededNoise(0).name
