import math

import dp_accounting
import pytest
from dp_accounting import LaplaceDpEvent, NonPrivateDpEvent, NoOpDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from wholegrain.errors import AccountingError, SpecError
from wholegrain.privacy.accountants import PldAccountant, RdpAccountant, accountant
from wholegrain.privacy.events import compose, gaussian, group_by_poisson, repeat, sampled_gaussian
from wholegrain.privacy.first_guess import suitable_grid

ACCOUNTANTS = [PldAccountant(), PldAccountant(grid=1e-3), RdpAccountant()]
ORDINARY = [
    repeat(gaussian(20.0), 30),
    repeat(sampled_gaussian(0.05, 1.2), 200),
    repeat(sampled_gaussian(0.3, 4.0), 50),
    compose([repeat(sampled_gaussian(0.1, 2.0), 20), repeat(sampled_gaussian(0.02, 1.0), 40), gaussian(5.0)]),
]
MIXTURES = [
    repeat(group_by_poisson(0.2, 4, 40.0), 300),
    repeat(group_by_poisson(0.3, 6, 30.0, cap=2), 200),
    compose([repeat(group_by_poisson(0.3, 3, 50.0), 300), repeat(group_by_poisson(0.4, 2, 50.0), 200)]),
]

noise = st.floats(1.0, 6.0)
rate = st.floats(0.05, 1.0)
step = st.one_of(
    st.builds(gaussian, noise),
    st.builds(sampled_gaussian, rate, noise),
    st.builds(group_by_poisson, rate, st.integers(1, 4), noise),
)
federation = st.lists(st.builds(repeat, step, st.integers(1, 20)), min_size=1, max_size=3).map(compose)


@examples(8)
@given(event=federation, delta=st.sampled_from([1e-3, 1e-5, 1e-7]))
def test_pld_equals_the_library_on_the_same_grid(event, delta):
    library = PLDAccountant(value_discretization_interval=2e-2).compose(event)
    assert PldAccountant(grid=2e-2).epsilon(event, delta) == pytest.approx(library.get_epsilon(delta), rel=1e-4)


@pytest.mark.parametrize("event", ORDINARY)
def test_rdp_equals_the_library(event):
    library = dp_accounting.rdp.RdpAccountant().compose(event)
    assert RdpAccountant().epsilon(event, 1e-5) == library.get_epsilon(1e-5)


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize(("rate", "sigma"), [(0.0013, 0.5), (0.0345, 0.82), (0.0345, 2.3), (0.1, 60.0), (0.3, 5.5)])
def test_rdp_finds_the_best_order_without_trying_all(rate: float, sigma: float, delta: float) -> None:
    event = repeat(sampled_gaussian(rate, sigma), 64)
    library = dp_accounting.rdp.RdpAccountant().compose(event)
    assert RdpAccountant().epsilon(event, delta) == library.get_epsilon(delta)


def test_rdp_stays_an_upper_bound_where_orders_do_not_converge() -> None:
    event = repeat(sampled_gaussian(0.6, 6.0), 1024)
    best = dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    assert best < RdpAccountant().epsilon(event, 1e-5) < 1.01 * best


@pytest.mark.parametrize("event", ORDINARY + MIXTURES)
@pytest.mark.slow
def test_chosen_grid_bounds_a_finer_one_from_close_above(event):
    fine = PldAccountant(grid=suitable_grid(event) / 5).epsilon(event, 1e-5)
    chosen = PldAccountant().epsilon(event, 1e-5)
    assert fine * (1 - 1e-7) <= chosen <= fine * (1 + 2e-3)


@pytest.mark.parametrize(("rate", "sigma"), [(1e-6, 0.1), (1e-5, 0.3), (1e-4, 0.2), (1e-3, 0.1)])
def test_chosen_grid_fits_into_memory(rate, sigma):
    """A rare and large loss needs no fine grid; a fine one over its whole range would be gigabytes."""
    range_of_losses = 1 / (2 * sigma**2) + 8 / sigma
    assert range_of_losses / suitable_grid(sampled_gaussian(rate, sigma)) <= 2e7


@pytest.mark.parametrize("event", ORDINARY)
def test_rdp_is_the_looser_bound(event):
    assert PldAccountant().epsilon(event, 1e-5) < RdpAccountant().epsilon(event, 1e-5)


@pytest.mark.parametrize(
    "sigma", [0.0295, 0.029, 0.0285, 0.02, 0.8, 3.0, 40.0]
)  # ε from 720 to 800: exp(−ε) is next to 0
def test_gaussian_is_priced_as_the_closed_form_says(sigma):
    exact = dp_accounting.get_epsilon_gaussian(sigma, 1e-5)
    assert PldAccountant().epsilon(gaussian(sigma), 1e-5) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("event", MIXTURES)
def test_rdp_refuses_mixtures_and_names_the_accountant_that_does_not(event):
    with pytest.raises(AccountingError, match="'pld'"):
        RdpAccountant().epsilon(event, 1e-5)


@pytest.mark.parametrize("priced_by", ACCOUNTANTS)
@pytest.mark.parametrize(
    "event",
    [
        NonPrivateDpEvent(),
        gaussian(0.0),
        SelfComposedDpEvent(NonPrivateDpEvent(), 3),
        dp_accounting.ComposedDpEvent([gaussian(1.0), SelfComposedDpEvent(NonPrivateDpEvent(), 2)]),
    ],
)
def test_no_privacy_costs_infinity(priced_by, event):
    assert priced_by.epsilon(event, 1e-5) == math.inf


@pytest.mark.parametrize("priced_by", ACCOUNTANTS)
@pytest.mark.parametrize("event", [NoOpDpEvent(), repeat(gaussian(1.0), 0), sampled_gaussian(0.0, 1.0), compose([])])
def test_nothing_released_costs_nothing(priced_by, event):
    assert priced_by.epsilon(event, 1e-5) == 0.0


@pytest.mark.parametrize("priced_by", ACCOUNTANTS)
@pytest.mark.parametrize(
    ("delta", "error"),
    [(0.0, SpecError), (1.0, SpecError), (-1e-5, SpecError), (math.nan, SpecError), (1e-14, AccountingError)],
)
def test_delta_that_cannot_be_meant_is_refused(priced_by, delta, error):
    with pytest.raises(error, match=r"delta|δ"):
        priced_by.epsilon(gaussian(1.0), delta)


@pytest.mark.parametrize("event", [LaplaceDpEvent(1.0), PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0))])
def test_pld_names_what_it_cannot_price(event):
    with pytest.raises(AccountingError, match="LaplaceDpEvent"):
        PldAccountant().epsilon(event, 1e-5)


def test_accountants_by_name():
    assert accountant("pld") == PldAccountant()
    assert accountant("pld", grid=1e-3) == PldAccountant(grid=1e-3)
    assert accountant("rdp") == RdpAccountant()
    with pytest.raises(SpecError, match="did you mean 'rdp'"):
        accountant("rpd")


def test_version_tells_answers_apart():
    versions = {priced_by.version for priced_by in ACCOUNTANTS}
    assert len(versions) == len(ACCOUNTANTS)


@pytest.mark.parametrize("sigma", [*(pytest.param(each, marks=pytest.mark.slow) for each in (1e-9, 1e-3)), 0.05])
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_next_to_no_noise_has_a_huge_price_and_no_traceback(rate, sigma):
    assert PldAccountant().epsilon(repeat(sampled_gaussian(rate, sigma), 10), 1e-5) > 100
