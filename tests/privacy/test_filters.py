"""Filters: what adaptively chosen steps cost, against closed forms, the library's own Rényi curves, and PLD."""

import math

import numpy as np
import pytest
from dp_accounting import DpEvent, LaplaceDpEvent, NonPrivateDpEvent, NoOpDpEvent, get_epsilon_gaussian, rdp
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from wholegrain.errors import AccountingError
from wholegrain.privacy import filters, renyi
from wholegrain.privacy.accountants import PldAccountant, RdpAccountant
from wholegrain.privacy.events import compose, gaussian, group_by_poisson, repeat, sampled_gaussian
from wholegrain.privacy.filters import GAUSSIAN, ORDERS, RENYI, Filter
from wholegrain.privacy.renyi import curve, iterate_steps

PLD = PldAccountant()
DELTA = 1e-5
INTEGERS = (1.0, 2.0, 4.0, 7.0, 15.0, 31.0)


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0, 200.0])
def test_a_gaussian_step_has_its_closed_form(noise: float) -> None:
    """Once by the formula, once by quadrature of a mixture that is none."""
    by_quadrature = curve(MixtureOfGaussiansDpEvent(noise, (1.0,), (1.0,)), INTEGERS)
    exact = (1 + np.asarray(INTEGERS)) / (2 * noise**2)
    assert curve(gaussian(noise), INTEGERS) == pytest.approx(np.stack([exact, exact]))
    assert by_quadrature == pytest.approx(np.stack([exact, exact]), rel=1e-7)
    assert (by_quadrature >= exact * (1 - 1e-12)).all()


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.2, 3.0), (0.5, 0.3), (0.001, 0.5), (0.9, 20.0)])
def test_a_sampled_step_has_the_librarys_curve(rate: float, noise: float) -> None:
    """The library sums exactly at whole orders, in the direction that is the worse one."""
    accountant = rdp.RdpAccountant(orders=[1 + a for a in INTEGERS])
    accountant.compose(sampled_gaussian(rate, noise))
    found = curve(sampled_gaussian(rate, noise), INTEGERS)
    assert found.max(axis=0) == pytest.approx(accountant._rdp, rel=1e-6)
    assert found[0] == pytest.approx(found.max(axis=0))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(group_by_poisson(0.1, 6, 2.0), marks=pytest.mark.slow),
        group_by_poisson(0.5, 3, 5.0, cap=2),
        sampled_gaussian(0.3, 1.0),
    ],
)
def test_a_curve_is_just_below_the_one_of_the_discretised_losses(step: DpEvent) -> None:
    """An oracle of another kind: E[exp(aL)] over the grid of the library's pessimistic loss distribution."""
    match step:
        case MixtureOfGaussiansDpEvent(standard_deviation=noise, sensitivities=moves, sampling_probs=chances):
            losses = pld.from_mixture_gaussian_mechanism(noise, moves, chances, value_discretization_interval=1e-3)
        case _:
            losses = pld.from_gaussian_mechanism(1.0, sampling_prob=0.3, value_discretization_interval=1e-3)
    orders = (0.5, 1.0, 2.0)  # larger ones are ruled by tails, which the library cuts off
    for direction, masses in enumerate((losses._pmf_remove, losses._pmf_add)):
        dense = masses.to_dense_pmf()
        at = (dense._lower_loss + np.arange(len(dense._probs))) * dense._discretization
        bound = [math.log(float(dense._probs @ np.exp(a * at))) / a for a in orders]
        found = curve(step, orders)[direction]
        assert (found <= np.asarray(bound) + 1e-9).all()
        assert found == pytest.approx(bound, rel=5e-3, abs=1e-5)


steps = st.one_of(
    st.builds(sampled_gaussian, st.floats(0.01, 0.9), st.floats(0.8, 10.0)),
    st.builds(group_by_poisson, st.floats(0.05, 0.9), st.integers(1, 4), st.floats(2.0, 10.0)),
)
runs = st.builds(repeat, steps, st.integers(1, 60))


@examples(10)
@given(parts=st.lists(runs, min_size=1, max_size=2), limit=st.sampled_from([None, 0.5, 4.0]))
def test_a_filter_never_charges_less_than_composition_does(parts: list[DpEvent], limit: float | None) -> None:
    """It covers every way to choose these steps, and so the way that is fixed beforehand."""
    event = compose(parts)
    assert Filter(PLD, limit).epsilon(event, DELTA) >= PLD.epsilon(event, DELTA) * (1 - 2e-3) - 1e-6


@examples(15)
@given(parts=st.lists(runs, min_size=2, max_size=4), limit=st.sampled_from([None, 2.0]))
def test_more_steps_cost_no_less_and_their_order_plays_no_part(parts: list[DpEvent], limit: float | None) -> None:
    priced = Filter(PLD, limit)
    assert priced.epsilon(compose(parts[:-1]), DELTA) <= priced.epsilon(compose(parts), DELTA)
    assert priced.epsilon(compose(parts), DELTA) == pytest.approx(priced.epsilon(compose(parts[::-1]), DELTA))


@pytest.mark.parametrize(
    ("event", "dearer"),
    [
        (repeat(sampled_gaussian(0.02, 1.5), 2500), 1.17),
        (repeat(sampled_gaussian(0.2, 3.0), 100), 1.19),
        (repeat(group_by_poisson(0.1, 4, 8.0), 400), 1.19),
    ],
)
def test_at_its_limit_a_filter_is_dearer_by_so_much(event: DpEvent, dearer: float) -> None:
    """What being adaptive costs: a page of the docs says so."""
    fixed = PLD.epsilon(event, DELTA)
    assert fixed < Filter(PLD, fixed).epsilon(event, DELTA) < dearer * fixed


def test_gaussian_steps_add_up_in_squares() -> None:
    event = compose([repeat(gaussian(5.0), 4), repeat(gaussian(10.0), 7)])
    alone = Filter(PLD, 2.0)
    assert alone.way(event) == GAUSSIAN
    noise = 1 / math.sqrt(4 / 25 + 7 / 100)
    exact = get_epsilon_gaussian(noise, DELTA * filters.SHARE_OF_GAUSSIANS)
    assert exact <= alone.epsilon(event, DELTA) <= exact * 1.002
    assert exact < 1.08 * get_epsilon_gaussian(noise, DELTA)


def test_one_sampled_step_among_gaussians_takes_the_other_filter() -> None:
    event = compose([gaussian(5.0), sampled_gaussian(0.5, 5.0)])
    assert Filter(PLD).way(event) == RENYI
    assert Filter(PLD).epsilon(event, DELTA) > Filter(PLD).epsilon(gaussian(5.0), DELTA)


def test_shares_of_delta_add_up_to_no_more_than_delta() -> None:
    for limit in (None, 0.1, 4.0, 100.0):
        orders, shares = filters._orders(limit, DELTA)
        assert len(orders) == len(shares)
        assert sum(shares) + filters.SHARE_OF_GAUSSIANS == pytest.approx(1.0)
        assert set(ORDERS) <= set(orders)


def test_conversion_is_the_librarys_at_one_order() -> None:
    total, a = np.array([[0.3], [0.2]]), np.array([7.0])
    expected, _ = rdp.compute_epsilon([8.0], [0.3], DELTA)
    assert renyi.epsilons(total, a, np.array([DELTA]))[0, 0] == pytest.approx(expected)


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    assert Filter(PLD, 1.0).epsilon(NoOpDpEvent(), DELTA) == 0
    assert Filter(PLD, 1.0).epsilon(compose([gaussian(1.0), NonPrivateDpEvent()]), DELTA) == math.inf
    assert Filter(PLD).epsilon(repeat(sampled_gaussian(0.5, 1e-3), 3), DELTA) == math.inf


def test_what_a_filter_does_not_know_it_does_not_price() -> None:
    with pytest.raises(AccountingError, match="cannot price Laplace"):
        Filter(PLD).epsilon(LaplaceDpEvent(1.0), DELTA)


def test_steps_are_counted_through_every_level() -> None:
    inner = compose([repeat(gaussian(2.0), 3), repeat(sampled_gaussian(0.1, 2.0), 2)])
    assert dict(iterate_steps(repeat(inner, 5))) == {gaussian(2.0): 15, sampled_gaussian(0.1, 2.0): 10}


@pytest.mark.parametrize("accountant", [PLD, RdpAccountant()])
def test_every_accountant_has_its_filter(accountant: PldAccountant | RdpAccountant) -> None:
    event = repeat(sampled_gaussian(0.3, 4.0), 10)
    assert accountant.way(event) == accountant.name
    assert accountant.as_filter(1.0).way(event) == RENYI
    assert accountant.as_filter(1.0).epsilon(event, DELTA) == Filter(PLD, 1.0).epsilon(event, DELTA)


def density(moves: list[float], chances: list[float], grid: np.ndarray) -> np.ndarray:
    parts = [p * np.exp(-((grid - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m, p in zip(moves, chances, strict=True)]
    return np.sum(parts, axis=0)


@pytest.mark.parametrize("threshold", [-1.0, 0.5, 1.5, 3.0])
@pytest.mark.parametrize("unit_is_there", [True, False])
def test_an_adversary_who_chooses_the_second_step_by_the_first_keeps_to_the_filters_answer(
    threshold: float, unit_is_there: bool
) -> None:
    """Exactly, by integration over both outcomes: a sampled step, then little noise or much, by what the first gave."""
    grid = np.linspace(-12, 14, 1600)
    width = grid[1] - grid[0]
    first, bold, shy = (0.3, 1.0), (0.6, 1.5), (0.1, 0.8)
    answers = [
        Filter(PLD).epsilon(compose([sampled_gaussian(*first), sampled_gaussian(*second)]), DELTA)
        for second in (bold, shy)
    ]
    epsilon, beyond = max(answers), 0.0
    for second, chosen in ((bold, grid > threshold), (shy, grid <= threshold)):
        with_unit = [density([0.0, 1 / noise], [1 - rate, rate], grid) for rate, noise in (first, second)]
        without = [density([0.0], [1.0], grid)] * 2
        if not unit_is_there:
            with_unit, without = without, with_unit
        joint = [np.outer(one[chosen], two) for one, two in (with_unit, without)]
        beyond += float(np.maximum(joint[0] - math.exp(epsilon) * joint[1], 0).sum()) * width**2
    assert beyond <= DELTA
