"""The reference values of the design page, to the last printed digit or a thousandth, whichever is more."""

from functools import partial

import pytest

from wholegrain.policies.as_printed import group_noise, higradavg_noise, item_noise, user_ldp_condition, user_noise
from wholegrain.privacy.accountants import PldAccountant, RdpAccountant
from wholegrain.privacy.calibration import calibrate_noise
from wholegrain.privacy.definitions import Budget
from wholegrain.privacy.events import (
    gaussian,
    group_by_poisson,
    presence,
    repeat,
    sampled_gaussian,
    sum_over_silos,
)

DELTA = 1e-5
FOUR = Budget(4.0, DELTA)
FEMNIST = 512 / 25375  # q: batches of 512 out of a silo's 25375 items
LOTS = 5000  # 100 rounds of 50 steps
SIGMA_1, SIGMA_3 = 1.8143769, 5.327  # the printed noise for groups of 1 and of 3 in that geometry
RDP, PLD = RdpAccountant(), PldAccountant()


def printed(figure):
    """What a printed figure stands for."""
    decimals = len(figure.partition(".")[2])
    return pytest.approx(float(figure), rel=1e-3, abs=0.5 * 10**-decimals)


def poisson(q, sigma, steps):
    return repeat(sampled_gaussian(q, sigma), steps)


def mixture(q, items, sigma, steps):
    return repeat(group_by_poisson(q, items, sigma), steps)


def higradavg(q, items, sigma, steps):
    return repeat(sampled_gaussian(presence(q, items), sigma), steps)


def summed(rate, sigma, rounds, silos, *, shared=False):
    return repeat(sum_over_silos(sigma, [1 - rate, rate], silos, shared=shared), rounds)


def slow(*values):
    """More of what stands beside it, in seconds each."""
    return pytest.param(*values, marks=pytest.mark.slow)


EPSILONS = [
    # accountant, event, ε at δ = 1e-5
    (RDP, poisson(0.01, 1.0, 1000), "2.1014"),
    (PLD, poisson(0.01, 1.0, 1000), "1.8282"),
    (RDP, poisson(0.02, 1.5, 2500), "3.5194"),
    (PLD, poisson(0.02, 1.5, 2500), "3.2320"),
    (PLD, mixture(0.01, 1, 4.0, 1000), "0.2722"),
    (PLD, mixture(0.01, 4, 4.0, 1000), "1.2399"),
    (PLD, mixture(0.01, 8, 4.0, 1000), "2.6859"),
    (PLD, mixture(0.01, 20, 4.0, 1000), "7.7998"),
    (PLD, higradavg(0.01, 4, 2.0, 1000), "2.8263"),
    (PLD, higradavg(0.01, 8, 2.0, 1000), "6.1067"),
    (PLD, repeat(gaussian(100 / 2), 1000), "2.5944"),  # UserLDP, proved: the sensitivity is 2C
    (PLD, repeat(gaussian(100.0), 1000), "1.1994"),  # UserLDP, claimed: C
    (RDP, poisson(FEMNIST, SIGMA_1, 16 * 25 * 50), "8.878"),  # the first way of horizontal composition
    (PLD, poisson(FEMNIST, SIGMA_1, 16 * 25 * 50), "8.255"),
    (PLD, mixture(FEMNIST, 7, SIGMA_3, LOTS), "9.39"),  # σ_3, and subjects with more than 3 items in the silo
    (PLD, mixture(FEMNIST, 20, SIGMA_3, LOTS), "37.2"),
    (PLD, summed(1.0, 15.0, 60, 1), "2.0663"),  # secure sums: spans known, or everybody in one silo
    (PLD, summed(1.0, 15.0, 60, 12, shared=True), "2.0663"),
    (PLD, summed(0.1, 1.5, 200, 1), "5.054"),
    (PLD, summed(0.1, 2 * 1.5, 200, 2), "4.408"),  # weights 1/m: the same as m times the noise
    slow(PLD, summed(0.1, 4 * 1.5, 200, 4), "4.215"),  # and, without weights, M = 4 at σ = 6
    slow(PLD, summed(0.1, 8 * 1.5, 200, 8), "4.145"),
    (PLD, summed(0.1, 16 * 1.5, 200, 16), "4.115"),
    (PLD, summed(0.5, 5.0, 100, 1), "4.488"),
    slow(PLD, summed(0.5, 2 * 5.0, 100, 2), "4.430"),
    slow(PLD, summed(0.5, 4 * 5.0, 100, 4), "4.403"),
    slow(PLD, summed(0.5, 8 * 5.0, 100, 8), "4.390"),
    (PLD, summed(0.5, 16 * 5.0, 100, 16), "4.383"),
]

PRINTED_NOISE = [
    # the paper's own calibration for ε = 4, by the moments accountant
    (partial(item_noise, FOUR, FEMNIST, LOTS), "1.8144"),
    (partial(group_noise, FOUR, FEMNIST, LOTS, 1), "1.8144"),
    (partial(group_noise, FOUR, FEMNIST, LOTS, 2), "3.5552"),
    (partial(group_noise, FOUR, FEMNIST, LOTS, 3), "5.3270"),
    (partial(group_noise, FOUR, FEMNIST, LOTS, 6), "10.689"),
    (partial(higradavg_noise, FOUR, FEMNIST, LOTS, 7), "11.604"),
    (partial(higradavg_noise, FOUR, FEMNIST, LOTS, 20), "33.058"),
    (partial(user_noise, FOUR, LOTS), "81.852"),
    (partial(user_ldp_condition, FOUR), "182.7"),
]

PROVED_NOISE = [
    # σ by PLD for ε = 4 in the same geometry
    (mixture, 7, "10.85"),
    (mixture, 20, "30.9"),
    (higradavg, 7, "10.21"),
    (higradavg, 20, "25.6"),
]


@pytest.mark.parametrize(("accountant", "event", "epsilon"), EPSILONS)
def test_epsilon(accountant, event, epsilon):
    assert accountant.epsilon(event, DELTA) == printed(epsilon)


@pytest.mark.parametrize(("calibrate", "noise"), PRINTED_NOISE)
def test_noise_as_the_paper_calibrates_it(calibrate, noise):
    assert calibrate() == printed(noise)


@pytest.mark.parametrize(("event_of", "items", "noise"), PROVED_NOISE)
def test_noise_that_meets_the_budget(event_of, items, noise):
    found = calibrate_noise(lambda sigma: event_of(FEMNIST, items, sigma, LOTS), FOUR, PLD)
    assert found == printed(noise)
