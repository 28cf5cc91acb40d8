"""The best of a random number of trials: its law, its price, and the price against the mechanism itself."""

import math

import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, stats

from wholegrain.errors import SpecError
from wholegrain.privacy.accountants import DEFAULT, SELECTION
from wholegrain.privacy.events import gaussian, repeat, sampled_gaussian, worst_of
from wholegrain.privacy.ledger_entries import BestTrial, step_record
from wholegrain.privacy.renyi import MANY_ORDERS, curve, renyi_epsilon
from wholegrain.privacy.trial_count import TrialCount

DELTA = 1e-5
POISSON, GEOMETRIC = TrialCount(10.0), TrialCount(10.0, 1.0)


def best(trial: object, count: TrialCount) -> RepeatAndSelectDpEvent:
    return RepeatAndSelectDpEvent(trial, count.mean, count.shape)


# Golden values.


@pytest.mark.parametrize("sigma", [1.5, 3.0, 8.0])
@pytest.mark.parametrize("count", [GEOMETRIC, TrialCount(10.0, 0.5), TrialCount(30.0, 2.0)], ids=str)
def test_the_truncated_negative_binomial_costs_what_dp_accounting_says(sigma: float, count: TrialCount) -> None:
    theirs = RdpAccountant()
    theirs.compose(best(gaussian(sigma), count))
    assert renyi_epsilon(best(gaussian(sigma), count), DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=0.01)


@pytest.mark.parametrize("sigma", [1.5, 3.0, 8.0])
def test_poisson_costs_less_than_dp_accounting_says_because_delta_is_taken_from_the_losses(sigma: float) -> None:
    """Their δ̂ comes from the Rényi curve alone; the theorem takes any."""
    theirs = RdpAccountant()
    theirs.compose(best(gaussian(sigma), POISSON))
    ours = renyi_epsilon(best(gaussian(sigma), POISSON), DELTA)
    assert 0.7 * theirs.get_epsilon(DELTA) < ours < theirs.get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("trial", "count", "expected"),
    [
        (gaussian(3.0), POISSON, 2.583),
        (gaussian(3.0), GEOMETRIC, 2.879),
        (repeat(sampled_gaussian(0.1, 2.0), 100), POISSON, 4.481),
    ],
)
def test_prices_stay_what_they_are(trial: object, count: TrialCount, expected: float) -> None:
    assert DEFAULT.epsilon(best(trial, count), DELTA) == pytest.approx(expected, abs=0.01)
    assert DEFAULT.way(best(trial, count)) == SELECTION


# The price against the mechanism: a trial is N(0, σ²), or N(1, σ²) with the person, and the largest wins.


def exact_delta(epsilon: float, sigma: float, mean: float, *, added: bool) -> float:
    """δ at ε of the best of Poisson(mean) such trials, from its density m·φ·exp(−m(1 − Φ)); 0 trials have no winner."""

    points = np.linspace(-10 * sigma, 12 * sigma, 20_001)

    def density(shift: float) -> np.ndarray:
        places = (points - shift) / sigma
        return mean * stats.norm.pdf(places) / sigma * np.exp(-mean * stats.norm.sf(places))

    one, other = (density(1.0), density(0.0)) if added else (density(0.0), density(1.0))
    return float(integrate.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), points))


@pytest.mark.parametrize("sigma", [1.0, 2.0, 4.0])
def test_the_exact_law_of_the_best_is_within_its_price(sigma: float) -> None:
    delta = 1e-3
    priced = renyi_epsilon(best(gaussian(sigma), POISSON), delta)
    assert exact_delta(priced, sigma, POISSON.mean, added=True) <= delta
    assert exact_delta(priced, sigma, POISSON.mean, added=False) <= delta
    # And the best of ten does reveal more than one of them: without a price for it, the promise would be false.
    alone = DEFAULT.epsilon(gaussian(sigma), delta)
    assert max(exact_delta(alone, sigma, POISSON.mean, added=added) for added in (True, False)) > delta


def draw_best(shift: float, sigma: float, count: TrialCount, runs: int, seed: int) -> np.ndarray:
    """What repeat-and-select gives, simulated as it is done: a number of trials, and the largest of their scores."""
    draws = np.random.default_rng(seed)
    numbers = np.array([count.count_at(u) for u in draws.uniform(size=2_000)])
    numbers = draws.choice(numbers, runs)
    scores = [draws.normal(shift, sigma, n).max() if n else -math.inf for n in numbers]
    return np.asarray(scores)


@pytest.mark.parametrize("count", [POISSON, GEOMETRIC], ids=str)
def test_the_measured_epsilon_of_a_simulated_selection_stays_below_the_priced_one(count: TrialCount) -> None:
    sigma, delta, runs = 1.0, 1e-3, 20_000
    priced = renyi_epsilon(best(gaussian(sigma), count), delta)
    without, present = draw_best(0.0, sigma, count, runs, 1), draw_best(1.0, sigma, count, runs, 2)
    measured = 0.0
    for threshold in np.quantile(without, [0.5, 0.9, 0.99, 0.999]):
        hits, alarms = int((present > threshold).sum()), int((without > threshold).sum())
        low = stats.beta.ppf(0.001, hits, runs - hits + 1)
        high = stats.beta.ppf(0.999, alarms + 1, runs - alarms)
        measured = max(measured, math.log(max((low - delta) / high, 1.0)))
    assert 0.5 < measured < priced


# Laws.


@pytest.mark.parametrize("count", [POISSON, GEOMETRIC, TrialCount(5.0, 0.5), TrialCount(4.0, 3.0)], ids=str)
def test_the_number_of_trials_has_its_law(count: TrialCount) -> None:
    uniforms = (np.arange(2_000) + 0.5) / 2_000
    drawn = np.array([count.count_at(u) for u in uniforms])
    assert drawn.mean() == pytest.approx(count.mean, rel=0.02)
    if count.is_poisson:
        expected = stats.poisson(count.mean).pmf(np.arange(5))
    else:
        whole = stats.nbinom(count.shape, count.parameter).pmf(np.arange(5))
        expected = np.concatenate([[0.0], whole[1:] / (1 - whole[0])])
    found = np.bincount(drawn, minlength=5)[:5] / len(drawn)
    np.testing.assert_allclose(found, expected, atol=1 / 1_000)


@pytest.mark.parametrize(
    "text",
    ["10", "poisson", "poisson()", "poisson(0.5)", "poisson(10, 2)", "poisson(inf)", "binomial(10)",
     "negative_binomial(10)", "negative_binomial(mean=10, shape=0)", "poisson(mean=10, mean=10)", "poisson(ten)"],
)  # fmt: skip
def test_what_is_no_law_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        TrialCount.parse(text)


# What is written down, and what composes.


def test_a_selection_survives_the_ledger() -> None:
    trial = worst_of([repeat(sampled_gaussian(0.1, 2.0), 10), repeat(gaussian(4.0), 3)])
    event = best(trial, GEOMETRIC)
    record = step_record(event)
    assert isinstance(record, BestTrial)
    again = BestTrial.model_validate_json(record.model_dump_json()).event()
    assert renyi_epsilon(again, DELTA) == renyi_epsilon(event, DELTA)


def test_the_worst_of_several_settings_is_what_a_trial_costs() -> None:
    one, other = repeat(sampled_gaussian(0.5, 3.0), 5), gaussian(2.0)
    worst = np.maximum(curve(one, MANY_ORDERS), curve(other, MANY_ORDERS))
    np.testing.assert_allclose(curve(worst_of([one, other]), MANY_ORDERS), worst)
    alone = [renyi_epsilon(best(each, POISSON), DELTA) for each in (one, other)]
    assert renyi_epsilon(best(worst_of([one, other]), POISSON), DELTA) >= max(alone)


def test_an_account_adds_up_selections_by_a_filter() -> None:
    event = best(gaussian(20.0), POISSON)
    account = DEFAULT.as_filter(4.0)
    once, twice = (account.epsilon(repeat(event, times), DELTA) for times in (1, 2))
    assert DEFAULT.epsilon(event, DELTA) < once < twice < 3 * once


def test_a_trial_that_protects_nobody_costs_everything() -> None:
    assert renyi_epsilon(best(gaussian(0.0), POISSON), DELTA) == math.inf
