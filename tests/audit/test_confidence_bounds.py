"""A lower bound must be one (valid), and must be worth something (powerful)."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy import stats

from simulated_audits import gaussian_guesses, rejected_at_most, responses
from wholegrain.audit.confidence_bounds import (
    Counts,
    Guesses,
    Rates,
    at_least,
    one_run_epsilon,
    one_run_p_value,
    rates,
    two_world_epsilon,
)

DELTA = 1e-5


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_one_run_is_valid_and_exact_for_randomized_response(epsilon: float) -> None:
    draws, runs = np.random.default_rng(0), 1000
    found = [Guesses(200, 200, responses(epsilon, 200, draws)) for _ in range(runs)]
    rejections = sum(one_run_p_value(each, epsilon, 0.0) < 0.05 for each in found)
    assert rejected_at_most(rejections, runs, 0.05)
    assert rejections > 0.01 * runs  # randomized response is the worst case: the test is not slack
    assert one_run_epsilon(found[0], 0.0, 0.05) > 0.6 * epsilon - 0.2


@pytest.mark.parametrize(("mu", "made"), [(1.0, 20), (1.0, 200), (3.0, 100)])
def test_one_run_is_valid_for_a_gaussian(mu: float, made: int) -> None:
    draws, runs = np.random.default_rng(1), 300
    epsilon = float(get_epsilon_gaussian(1 / mu, DELTA))
    found = [one_run_p_value(gaussian_guesses(mu, 1000, made, draws), epsilon, DELTA) for _ in range(runs)]
    assert rejected_at_most(sum(p < 0.05 for p in found), runs, 0.05)


def test_one_run_finds_half_of_a_gaussians_epsilon() -> None:
    mu = 0.924  # ε = 4 at δ = 1e-5
    assert float(get_epsilon_gaussian(1 / mu, DELTA)) == pytest.approx(4.0, abs=0.01)
    guesses = gaussian_guesses(mu, 40_000, 400, np.random.default_rng(2))
    assert 2.0 < one_run_epsilon(guesses, DELTA, 0.05) < 4.0


def test_the_correction_for_delta_is_the_papers() -> None:
    """By its own loop [Steinke et al., Appendix D], slowly."""
    guesses, epsilon = Guesses(500, 60, 50), 1.2
    law = stats.binom(60, 1 / (1 + math.exp(-epsilon)))
    alpha = max(sum(law.pmf(50 - j) for j in range(1, i + 1)) / i for i in range(1, 51))
    expected = law.sf(49) + 2 * 500 * DELTA * alpha
    assert one_run_p_value(guesses, epsilon, DELTA) == pytest.approx(expected, rel=1e-9)


def test_guesses_that_are_no_better_than_chance_refute_nothing() -> None:
    assert one_run_epsilon(Guesses(100, 50, 25), DELTA, 0.05) == 0.0
    assert one_run_epsilon(Guesses(100, 50, 0), DELTA, 0.05) == 0.0
    assert one_run_epsilon(Guesses(100, 0, 0), DELTA, 0.05) == 0.0


def test_impossible_guesses_are_refused() -> None:
    with pytest.raises(ValueError, match="impossible"):
        Guesses(10, 20, 5)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_trials_are_valid_for_randomized_response(epsilon: float) -> None:
    draws, runs = np.random.default_rng(3), 1000
    rejections = 0
    for _ in range(runs):
        right, wrong = responses(epsilon, 300, draws), 300 - responses(epsilon, 300, draws)
        bound = two_world_epsilon(rates(Counts(right, 300, wrong, 300), 0.05), 0.0)
        rejections += bound > epsilon
    assert rejected_at_most(rejections, runs, 0.05)


def test_trials_find_what_a_gaussian_gives_away() -> None:
    draws, n, mu = np.random.default_rng(4), 20_000, 2.0
    inside, outside = draws.normal(mu, size=n) > 3.0, draws.normal(size=n) > 3.0
    bound = two_world_epsilon(rates(Counts(int(inside.sum()), n, int(outside.sum()), n), 0.05), DELTA)
    true = math.log(stats.norm.sf(1.0) / stats.norm.sf(3.0))
    assert true - 0.6 < bound < true < float(get_epsilon_gaussian(1 / mu, DELTA))


def test_intervals_are_scipys() -> None:
    expected = stats.binomtest(7, 40, alternative="greater").proportion_ci(0.99, method="exact").low
    assert at_least(7, 40, 0.01) == pytest.approx(expected, abs=1e-6)


def test_opposites_count_too() -> None:
    """A mechanism that betrays who is out is no better."""
    assert two_world_epsilon(Rates(hits=0.999, alarms=0.5), 0.0) == pytest.approx(math.log(0.5 / 0.001))


def test_without_trials_there_is_no_bound() -> None:
    assert two_world_epsilon(rates(Counts(0, 0, 0, 0), 0.05), DELTA) == 0.0
