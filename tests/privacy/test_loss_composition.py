"""Repetitions and ε of privacy loss distributions: the numbers of dp_accounting."""

import math

import numpy as np
import pytest
from dp_accounting import DpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld.pld_pmf import DensePLDPmf, SparsePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_randomized_response

from wholegrain.privacy import loss_composition
from wholegrain.privacy.accountants import LARGE_EPSILON, PldAccountant, _large_epsilon
from wholegrain.privacy.events import repeat, sampled_gaussian
from wholegrain.privacy.loss_composition import DenseStep, delta_curve, find_epsilon, repeat_distribution
from wholegrain.privacy.loss_distributions import loss_distribution

pytestmark = pytest.mark.exact_prices

STEPS: dict[str, tuple[DpEvent, float]] = {
    "much noise": (sampled_gaussian(0.01, 8.0), 1e-4),
    "few losses": (sampled_gaussian(0.125, 40.0), 1e-3),
    "usual": (sampled_gaussian(0.1, 2.0), 1e-3),
    "everybody": (sampled_gaussian(1.0, 10.0), 1e-3),
    "little noise": (sampled_gaussian(0.3, 0.8), 1e-2),
    "mixture": (MixtureOfGaussiansDpEvent(3.0, (0.0, 1.0, 2.0), (0.8, 0.15, 0.05)), 1e-3),
}
each_step = pytest.mark.parametrize("name", STEPS)


def distribution(name: str) -> PrivacyLossDistribution:
    return loss_distribution(*STEPS[name])


def dense(found: PrivacyLossDistribution) -> list[DensePLDPmf]:
    return [found._pmf_remove.to_dense_pmf(), found._pmf_add.to_dense_pmf()]


@each_step
@pytest.mark.parametrize("times", [1, 2, 20, 333, 4000])
def test_repetitions_are_those_of_the_library(name: str, times: int) -> None:
    found, wanted = repeat_distribution(distribution(name), times), distribution(name).self_compose(times)
    for own, theirs in zip(dense(found), dense(wanted), strict=True):
        assert (own._lower_loss, own.size) == (theirs._lower_loss, theirs.size)
        assert own._infinity_mass == theirs._infinity_mass
        assert own._discretization == theirs._discretization
        assert own._pessimistic_estimate == theirs._pessimistic_estimate
        assert np.abs(own._probs - theirs._probs).max() < 1e-14


@each_step
@pytest.mark.parametrize("times", [1, 20, 333, 4000])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_epsilon_is_that_of_the_library(name: str, times: int, delta: float) -> None:
    found = distribution(name).self_compose(times)
    if not found.get_delta_for_epsilon(LARGE_EPSILON) <= delta:
        pytest.skip("for this there is a bisection")
    own, theirs = find_epsilon(found, delta), found.get_epsilon_for_delta(delta)
    assert own == pytest.approx(theirs, rel=1e-9)
    assert found.get_delta_for_epsilon(own) <= delta * (1 + 1e-6) + 1e-13
    curve = delta_curve(found)
    for epsilon in (0.0, own / 2, own, 2 * own):
        assert curve(epsilon) == pytest.approx(found.get_delta_for_epsilon(epsilon), rel=1e-9, abs=1e-15)


@each_step
@pytest.mark.parametrize("times", [1, 60, 3000])
def test_prices_are_what_the_library_alone_would_say(name: str, times: int) -> None:
    if name == "everybody":
        pytest.skip("priced as one Gaussian")
    step, grid = STEPS[name]
    theirs = loss_distribution(step, grid).self_compose(times).get_epsilon_for_delta(1e-5)
    if not theirs < LARGE_EPSILON:
        pytest.skip("beyond what the library can tell")
    assert PldAccountant(grid).epsilon(repeat(step, times), 1e-5) == pytest.approx(theirs, rel=1e-8)


def test_a_distribution_of_few_losses_is_the_librarys() -> None:
    found = from_randomized_response(0.5, 2)
    assert isinstance(found._pmf_remove, SparsePLDPmf)
    own, theirs = repeat_distribution(found, 3), found.self_compose(3)
    assert own._pmf_remove._loss_probs == theirs._pmf_remove._loss_probs
    assert find_epsilon(own, 1e-5) == theirs.get_epsilon_for_delta(1e-5)
    assert delta_curve(own)(0.3) == theirs.get_delta_for_epsilon(0.3)


@pytest.mark.parametrize(("rate", "noise", "times"), [(0.125, 0.1, 40), (0.125, 0.2, 333), (1.0, 0.2, 60)])
def test_large_epsilons_are_found_where_all_losses_added_one_by_one_would_have_them(
    rate: float, noise: float, times: int
) -> None:
    """The tails that are laid out once take the place of a sum at every ε, and no decision of the bisection changes."""
    found = repeat_distribution(loss_distribution(sampled_gaussian(rate, noise), 1e-2), times)

    def one_by_one(epsilon: float) -> float:
        return max(found_in._infinity_mass + summed(found_in, epsilon) for found_in in dense(found))

    def summed(losses_of: DensePLDPmf, epsilon: float) -> float:
        losses = (np.arange(losses_of.size) + losses_of._lower_loss) * losses_of._discretization
        above = losses > epsilon
        return float(np.dot(-np.expm1(epsilon - losses[above]), losses_of._probs[above]))

    assert _large_epsilon(delta_curve(found), 1e-5) == _large_epsilon(one_by_one, 1e-5) > LARGE_EPSILON


def test_a_mass_at_an_infinite_loss_has_no_epsilon() -> None:
    never = PrivacyLossDistribution(DensePLDPmf(0.1, 0, np.array([0.5, 0.4]), 0.1, True))
    assert find_epsilon(never, 0.05) == math.inf
    assert find_epsilon(never, 0.2) < math.inf


def test_what_is_no_number_is_no_small_price(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = PrivacyLossDistribution(DensePLDPmf(0.1, 0, np.array([0.5, math.nan]), 0.0, True))
    monkeypatch.setattr("wholegrain.privacy.accountants.loss_distribution", lambda event, grid: broken)
    assert PldAccountant(1e-3).epsilon(sampled_gaussian(0.1, 2.0), 1e-5) == math.inf


def test_moments_are_computed_once_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = loss_distribution.__wrapped__(*STEPS["usual"])
    calls = []
    real = DenseStep.of
    monkeypatch.setattr(DenseStep, "of", staticmethod(lambda step: calls.append(step) or real(step)))
    for times in (5, 6, 7):
        repeat_distribution(made, times)
    assert len(calls) == 2  # one for each direction


@pytest.mark.parametrize("times", [1, 2, 99, 100, 320, 5000])
def test_powers_are_those_of_numpy(times: int) -> None:
    draws = np.random.default_rng(times)
    radii = np.concatenate([np.exp(-np.linspace(600, 900, 2000) / times), draws.random(2000), [0.0, 1.0]])
    values = radii * np.exp(2j * np.pi * draws.random(len(radii)))
    found, wanted = loss_composition._raise(values, times), values**times
    assert (found == wanted).all()
    assert (found != 0).any()


@each_step
@pytest.mark.parametrize("times", [20, 333])
def test_epsilon_is_the_same_however_many_losses_are_looked_at_first(
    name: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = repeat_distribution(distribution(name), times)
    wanted = find_epsilon(composed, 1e-5)
    for first in (1, 100, 1 << 30):
        monkeypatch.setattr(loss_composition, "FIRST_LOSSES", first)
        assert find_epsilon(composed, 1e-5) == wanted
