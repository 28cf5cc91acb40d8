"""What releases reveal about one unit: composed exactly where it can be in all silos, by the worst step where not."""

from itertools import combinations

import pytest
from dp_accounting import NonPrivateDpEvent, NoOpDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from accounts import COUNTING, DELTA
from wholegrain.errors import AccountingError
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import compose, gaussian, repeat, sampled_gaussian
from wholegrain.privacy.group_privacy import group_epsilon
from wholegrain.privacy.pricing import Exposure, Terms, price

PRICING = PldAccountant(grid=1e-2)
STEPS = {"north": gaussian(5.0), "south": gaussian(6.0), "west": sampled_gaussian(0.3, 4.0)}
WORST = gaussian(4.0)
COUNTS = st.fixed_dictionaries({silo: st.integers(0, 9) for silo in STEPS})


def subject(exposure):
    return Terms({Unit.SUBJECT: exposure})


def item(exposure, through=None):
    return Terms({Unit.ITEM: exposure}, through)


# One run.


@pytest.mark.parametrize("reach", [3, 4])
@pytest.mark.parametrize("worst", [WORST, None], ids=["worst", "no worst"])
def test_a_unit_that_can_be_everywhere_pays_each_silo_its_own_step(reach, worst):
    event = Exposure(reach, STEPS, worst).event({"north": 2, "south": 1, "west": 7})
    assert event == compose([repeat(STEPS["north"], 2), STEPS["south"], repeat(STEPS["west"], 7)])


@pytest.mark.parametrize(("reach", "copies"), [(1, 7), (2, 7 + 3)])
def test_a_unit_that_can_be_in_some_pays_the_worst_step_as_often_as_the_busiest_released(reach, copies):
    event = Exposure(reach, STEPS, WORST).event({"north": 2, "south": 3, "west": 7})
    assert event == repeat(WORST, copies)


def test_silos_that_released_nothing_do_not_count():
    """Two released, and the unit can be in two: exact, although there are three silos."""
    event = Exposure(2, STEPS, WORST).event({"north": 2, "south": 3, "west": 0})
    assert event == compose([repeat(STEPS["north"], 2), repeat(STEPS["south"], 3)])


@pytest.mark.parametrize("reach", [1, 3])
@pytest.mark.parametrize("releases", [{}, {"north": 0}], ids=["nobody", "zero"])
def test_no_release_reveals_nothing(reach, releases):
    assert Exposure(reach, STEPS, WORST).event(releases) == NoOpDpEvent()


def test_without_a_worst_step_some_silos_cannot_be_priced():
    with pytest.raises(AccountingError, match="in 1 of 2 silos that released, and no worst step was stated"):
        Exposure(1, STEPS).event({"north": 1, "south": 1})
    assert Exposure(1, STEPS).event({"north": 4}) == repeat(STEPS["north"], 4)


def test_a_step_that_protects_nothing_reveals_everything():
    open_silo = Exposure(2, STEPS | {"south": NonPrivateDpEvent()})
    assert open_silo.event({"north": 1, "south": 1}) == NonPrivateDpEvent()
    assert open_silo.event({"north": 1}) == STEPS["north"]


@settings(max_examples=40)
@given(releases=COUNTS, reach=st.integers(1, 3))
def test_wherever_the_unit_is_it_pays_enough(releases, reach):
    """Against every choice of as many silos, with steps that never exceed the worst."""
    paid = PRICING.epsilon(Exposure(reach, STEPS, WORST).event(releases), DELTA)
    for silos in combinations(STEPS, reach):
        really = compose(repeat(STEPS[silo], releases[silo]) for silo in silos)
        assert PRICING.epsilon(really, DELTA) <= paid * (1 + 1e-9)


@given(releases=COUNTS, more=COUNTS, reach=st.integers(1, 3))
def test_more_releases_never_cost_less(releases, more, reach):
    """Also where one more silo turns an exact price into one by the worst step."""
    exposure = Exposure(reach, dict.fromkeys(STEPS, WORST), WORST)
    longer = {silo: releases[silo] + more[silo] for silo in STEPS}
    before, after = (COUNTING.epsilon(exposure.event(asked), DELTA) for asked in (releases, longer))
    assert before <= after


# Several runs.


def test_the_price_of_several_runs_is_that_of_their_composed_events():
    runs = [
        (subject(Exposure(3, STEPS)), {"north": 3, "west": 2}),
        (subject(Exposure(1, STEPS, WORST)), {"north": 1, "south": 4}),
        (subject(Exposure(2, {"east": gaussian(7.0), "north": gaussian(5.0)})), {"east": 2, "north": 1}),
    ]
    together = compose(terms.of(Unit.SUBJECT).event(steps) for terms, steps in runs)
    expected = compose(
        [
            repeat(gaussian(5.0), 3 + 1),
            repeat(STEPS["west"], 2),
            repeat(WORST, 4),
            repeat(gaussian(7.0), 2),
        ]
    )
    assert together == expected
    assert price(runs, Unit.SUBJECT, PRICING, DELTA) == PRICING.epsilon(expected, DELTA)


def test_a_unit_may_be_in_other_silos_in_every_run():
    """So each run is priced by its own busiest silo: 5 and 4, not the 6 steps of 'north' over both."""
    terms = subject(Exposure(1, dict.fromkeys(["north", "south"], WORST), WORST))
    runs = [(terms, {"north": 5, "south": 1}), (terms, {"north": 1, "south": 4})]
    assert price(runs, Unit.SUBJECT, COUNTING, DELTA) == 5 + 4


def test_the_order_of_runs_matters_for_rounding_alone():
    runs = [(subject(Exposure(3, STEPS)), {"west": 2}), (subject(Exposure(1, STEPS, WORST)), {"north": 1, "south": 4})]
    forwards, backwards = (price(order, Unit.SUBJECT, PRICING, DELTA) for order in (runs, reversed(runs)))
    assert forwards == pytest.approx(backwards, rel=1e-9)


def test_no_run_costs_nothing():
    for unit in Unit:
        assert price([], unit, PRICING, DELTA) == 0


def test_terms_that_say_nothing_about_a_unit_cannot_be_priced_for_it():
    runs = [(Terms(dict.fromkeys(Unit, Exposure(3, STEPS))), {"north": 1}), (subject(Exposure(3, STEPS)), {"north": 1})]
    assert price(runs, Unit.SUBJECT, COUNTING, DELTA) == 2
    for unit in (Unit.ITEM, Unit.SILO):
        with pytest.raises(AccountingError, match=f"say nothing about the unit '{unit}'"):
            price(runs, unit, COUNTING, DELTA)


# An item is also its subject, taken away and put back otherwise.


ALONE = Exposure(1, {"north": gaussian(4.0)})
HIDDEN = Exposure(1, {"north": sampled_gaussian(0.05, 8.0)})
OPEN = Exposure(1, {"north": gaussian(1.0)})


def twice(event):
    return group_epsilon(lambda inner: PRICING.epsilon(event, inner), 2, DELTA)


@pytest.mark.parametrize(("through", "better"), [(HIDDEN, True), (OPEN, False)], ids=["better", "worse"])
def test_an_item_pays_the_smaller_of_its_own_price_and_twice_its_subjects(through, better):
    releases = {"north": 3}
    direct, around = PRICING.epsilon(ALONE.event(releases), DELTA), twice(through.event(releases))
    assert (around < direct) is better
    assert price([(item(ALONE, through), releases)], Unit.ITEM, PRICING, DELTA) == min(direct, around)


def test_the_way_through_the_subject_composes_over_runs():
    runs = [(item(ALONE, HIDDEN), {"north": 3}), (item(ALONE, HIDDEN), {"north": 2})]
    assert price(runs, Unit.ITEM, PRICING, DELTA) == twice(HIDDEN.event({"north": 5}))


def test_one_run_that_does_not_state_it_closes_the_way_through_the_subject():
    """Even a run that would cost little: a bound must hold over all runs, by one way or the other."""
    runs = [(item(ALONE, HIDDEN), {"north": 3}), (item(ALONE), {"north": 1})]
    assert price(runs, Unit.ITEM, PRICING, DELTA) == PRICING.epsilon(ALONE.event({"north": 4}), DELTA)


@pytest.mark.parametrize("unit", [Unit.SUBJECT, Unit.SILO])
def test_other_units_never_take_the_items_way(unit):
    terms = Terms({unit: OPEN}, through_subject=Exposure(1, {"north": NoOpDpEvent()}))
    assert price([(terms, {"north": 2})], unit, PRICING, DELTA) == PRICING.epsilon(OPEN.event({"north": 2}), DELTA)
