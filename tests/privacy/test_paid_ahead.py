"""A plan is priced once: what is within it is paid for by counting, and what leaves it is priced when it comes."""

import random
from dataclasses import dataclass, field

import pytest
from dp_accounting import DpEvent

from accounts import COUNTING, budget, equal_terms, open_guard, opening, spent
from wholegrain.errors import BudgetError
from wholegrain.privacy.events import gaussian
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.pricing import Exposure, Terms
from wholegrain.privacy.statement import account_price


@dataclass(frozen=True)
class Asked:
    """Counts steps, and how often it was asked; as a filter it asks twice as much."""

    times: list[DpEvent] = field(default_factory=list)
    factor: float = 1.0
    name: str = "asked"
    version: str = "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        self.times.append(event)
        return self.factor * COUNTING.epsilon(event, delta)

    def way(self, event: DpEvent) -> str:
        return self.name

    def as_filter(self, limit: float | None) -> "Asked":
        return Asked(self.times, 2.0)


def alone(accountant: Asked, ledger: Ledger, horizon: dict[str, int], stream: str | None, terms: Terms) -> Guard:
    """The guard of a run with an account of its own."""
    own = budget(10.0).model_copy(update={"runs": "one"})
    return Guard.open(ledger, opening(terms=terms), own, horizon, stream, accountant)


def test_a_plan_is_priced_once_and_each_of_its_steps_when_somebody_asks():
    accountant = Asked()
    guard = alone(accountant, Ledger.in_memory(), {"north": 8}, "a stream", equal_terms())
    assert len(accountant.times) == 1
    paid = [guard.reserve(number, {"north": 1}, str(number)) for number in range(8)]
    assert len(accountant.times) == 1
    assert [each.epsilon for each in paid] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [each.account for each in paid] == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(BudgetError, match=r"Round 8 would bring ε to 11; 8 of 10 is spent"):
        guard.reserve(8, {"north": 3}, "8")
    assert guard.reserve(8, {"north": 2}, "8").epsilon == 10  # beyond the plan, and within the budget
    assert spent(guard) == {"north": 10}


def test_a_run_that_goes_on_is_priced_once_more():
    with Ledger.in_memory() as ledger:
        alone(Asked(), ledger, {"north": 8}, "a stream", equal_terms()).reserve(0, {"north": 2}, "a")
        again = Asked()
        guard = alone(again, ledger, {"north": 8}, "a stream", equal_terms())
        for number in range(1, 7):
            guard.reserve(number, {"north": 1}, "a")
        assert len(again.times) == 1


def test_what_is_played_again_is_priced_when_it_comes_and_refused_when_it_is_too_much():
    accountant = Asked()
    guard = alone(accountant, Ledger.in_memory(), {"north": 8}, None, equal_terms())
    guard.reserve(0, {"north": 4}, "a")
    assert len(accountant.times) == 1
    guard.reserve(0, {"north": 4}, "a")  # fresh noise: another release
    assert len(accountant.times) == 2
    with pytest.raises(BudgetError, match="would bring ε to 12; 8 of 10"):
        guard.reserve(1, {"north": 4}, "a")
    assert guard.reserve(1, {"north": 2}, "a").epsilon == 10


def test_repetitions_of_steps_of_several_kinds_are_priced_by_a_filter_even_within_the_plan():
    steps = {"north": gaussian(1.0), "south": gaussian(2.0)}
    terms = Terms({unit: Exposure(2, steps) for unit in equal_terms().exposures})
    guard = alone(Asked(), Ledger.in_memory(), {"north": 5, "south": 5}, None, terms)
    assert guard.reserve(0, {"north": 2, "south": 1}, "a").epsilon == 3
    assert guard.reserve(0, {"north": 1}, "a").epsilon == 8  # twice the four: a filter's price
    with pytest.raises(BudgetError, match="would bring ε to 12; 8 of 10"):
        guard.reserve(1, {"north": 1, "south": 1}, "a")


def test_another_run_on_the_account_is_not_overlooked():
    with Ledger.in_memory() as ledger:
        first = open_guard(10.0, ledger, horizon={"north": 8})
        second = open_guard(10.0, ledger, run="second", horizon={"north": 4})
        first.reserve(0, {"north": 4}, "a")
        second.reserve(0, {"north": 4}, "a")
        with pytest.raises(BudgetError, match="would bring ε to 11; 8 of 10"):
            first.reserve(1, {"north": 3}, "a")  # within its plan, which no longer fits
        assert first.reserve(1, {"north": 1}, "a").account == 9


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_by_whomever_is_paid_for_exactly_if_all_of_it_fits(seed):
    draws = random.Random(seed)
    with Ledger.in_memory() as ledger:
        streams = (None, "a stream")
        horizons = ({"north": draws.randint(0, 10), "south": draws.randint(0, 3)} for _ in streams)
        guards = []
        for number, (stream, horizon) in enumerate(zip(streams, horizons, strict=True)):
            if sum(horizon.values()) <= 10:
                asked = opening(f"run {number}")
                guards.append(Guard.open(ledger, asked, budget(10.0), horizon, stream, COUNTING))
        total = 0
        for number in range(30 * bool(guards)):
            guard = draws.choice(guards)
            steps = {silo: draws.randint(1, 3) for silo in draws.sample(("north", "south"), draws.randint(1, 2))}
            fits = total + sum(steps.values()) <= 10
            try:
                guard.reserve(draws.randrange(4), steps, str(number))
            except BudgetError:
                assert not fits
            else:
                assert fits
                total += sum(steps.values())
            opened = guard.budget
            assert account_price(opened, ledger.state.runs_of(opened.account), COUNTING).epsilon == total
