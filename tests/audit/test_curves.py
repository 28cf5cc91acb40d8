"""A proof's curve: what it allows must be allowed, and what it forbids must be found."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, get_epsilon_gaussian
from scipy import stats

from simulated_audits import rejected_at_most
from wholegrain.audit.confidence_bounds import Counts, Rates, rates
from wholegrain.audit.curves import curve, refuted_by_rates, refuted_epsilon, scale_noise
from wholegrain.privacy import events

MU, DELTA = 1.25, 1e-5
EVENT = GaussianDpEvent(1 / MU)


@pytest.mark.parametrize("alarms", [1e-4, 0.01, 0.1, 0.5, 0.9])
def test_a_gaussians_curve_is_its_trade_off(alarms: float) -> None:
    exact = float(stats.norm.cdf(stats.norm.ppf(alarms) + MU))
    assert exact <= curve(EVENT).most_hits(alarms) < exact + 0.01 * min(exact, 1 - exact) + 1e-3


def test_nothing_is_forbidden_to_what_hides_nothing_and_all_to_what_shows_nothing() -> None:
    assert curve(NonPrivateDpEvent()).most_hits(0.0) == 1.0
    assert curve(NoOpDpEvent()).most_hits(0.3) == pytest.approx(0.3, abs=1e-6)


def test_trials_on_the_event_itself_are_rarely_refuted() -> None:
    draws, runs, n = np.random.default_rng(0), 400, 200
    refuted = 0
    for _ in range(runs):
        hits, alarms = (draws.normal(MU, size=n) > 0.8).sum(), (draws.normal(size=n) > 0.8).sum()
        refuted += refuted_by_rates(curve(EVENT), rates(Counts(int(hits), n, int(alarms), n), 0.05))
    assert rejected_at_most(refuted, runs, 0.05)


def test_half_the_noise_is_found_out() -> None:
    draws, n = np.random.default_rng(3), 300
    for mu, found_out in ((MU, False), (2 * MU, True)):
        hits, alarms = (draws.normal(mu, size=n) > mu / 2).sum(), (draws.normal(size=n) > mu / 2).sum()
        assert refuted_by_rates(curve(EVENT), rates(Counts(int(hits), n, int(alarms), n), 0.01)) is found_out


def test_bounds_by_the_curve_come_close() -> None:
    draws, n = np.random.default_rng(4), 2000
    true = float(get_epsilon_gaussian(1 / MU, DELTA))
    hits, alarms = (draws.normal(MU, size=n) > 0.6).sum(), (draws.normal(size=n) > 0.6).sum()
    found = rates(Counts(int(hits), n, int(alarms), n), 0.05)
    assert 0.8 * true < refuted_epsilon(EVENT, DELTA, lambda each: refuted_by_rates(each, found)) < true


def test_nothing_seen_refutes_nothing() -> None:
    blind = Rates(hits=0.0, alarms=1.0)
    assert refuted_epsilon(EVENT, DELTA, lambda each: refuted_by_rates(each, blind)) == 0.0


def test_events_are_scaled_to_the_last_part() -> None:
    event = events.compose([events.repeat(events.sampled_gaussian(0.1, 2.0), 5), events.group_by_poisson(0.1, 3, 2.0)])
    twice = events.compose([events.repeat(events.sampled_gaussian(0.1, 4.0), 5), events.group_by_poisson(0.1, 3, 4.0)])
    assert scale_noise(event, 2.0) == twice
