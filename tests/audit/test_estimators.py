"""Guesses and lines that never look at the coins they are about."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from simulated_audits import rejected_at_most
from wholegrain.audit.estimators import (
    AttackEvidence,
    curve_bound,
    observed_rates,
    one_run_bound,
    trials_bound,
)

MU, DELTA = 1.0, 1e-5
EVENT = GaussianDpEvent(1 / MU)


def evidence(mu: float, canaries: int, draws: np.random.Generator, line: float | None = None) -> AttackEvidence:
    coins = draws.random(canaries) < 0.5
    return AttackEvidence(coins, draws.normal(size=canaries) + mu * (coins - 0.5), DELTA, EVENT, line)


@pytest.mark.slow
@pytest.mark.parametrize("line", [None, 0.0])
def test_bounds_under_the_curve_hold_and_come_close(line: float | None) -> None:
    draws = np.random.default_rng(0)
    found = [curve_bound(evidence(MU, 1000, draws, line), 0.05) for _ in range(30)]
    assert rejected_at_most(sum(bound.refutes for bound in found), 30, 0.05)
    assert np.median([bound.epsilon for bound in found]) > 2.2  # of 4.38


def test_bounds_in_one_run_hold() -> None:
    draws = np.random.default_rng(1)
    found = [one_run_bound(evidence(MU, 500, draws), 0.05).epsilon for _ in range(200)]
    assert rejected_at_most(sum(epsilon > 4.38 for epsilon in found), 200, 0.05)
    assert np.median(found) > 0.5


def test_trials_without_a_curve_find_half_of_a_gaussians_epsilon() -> None:
    found = trials_bound(evidence(MU, 100_000, np.random.default_rng(4)), 0.01).epsilon
    assert 0.5 * 4.38 < found < 4.38


def test_nothing_is_found_where_nothing_is() -> None:
    """A line drawn on the trials that it is used on would find something now and then."""
    draws = np.random.default_rng(2)
    found = [trials_bound(evidence(0.0, 60, draws), 0.05).epsilon for _ in range(200)]
    assert rejected_at_most(sum(epsilon > 0 for epsilon in found), 200, 0.05)


def test_more_than_was_proved_is_refuted() -> None:
    draws = np.random.default_rng(3)
    assert curve_bound(evidence(3 * MU, 300, draws), 0.01).refutes
    assert trials_bound(evidence(6 * MU, 2000, draws), 0.01).epsilon > 4.38
    assert one_run_bound(evidence(6 * MU, 2000, draws), 0.01).epsilon > 4.38


def test_scores_that_are_all_alike_tell_nothing() -> None:
    blind = AttackEvidence(np.array([True, False] * 50), np.zeros(100), DELTA, EVENT)
    assert trials_bound(blind, 0.05).epsilon == 0.0
    assert one_run_bound(blind, 0.05).epsilon == 0.0


def test_a_given_line_uses_every_trial() -> None:
    coins = np.array([True] * 100 + [False] * 100)
    found = observed_rates(AttackEvidence(coins, coins - 0.5, DELTA, line=0.0), 0.05, lambda rates: 0.0)
    assert found.hits == pytest.approx(0.9638, abs=1e-4)
