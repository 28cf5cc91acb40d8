"""The gate: a round is priced with all that the account ever paid for, and only then reserved."""

from dataclasses import dataclass, field

import pytest
from dp_accounting import DpEvent

from accounts import COUNTING, confirmed, open_guard, spent
from wholegrain.errors import BudgetError
from wholegrain.privacy.ledger import Ledger

TEN = 10.0


@dataclass(frozen=True)
class Fixed:
    """An accountant with one answer."""

    answer: float
    name: str = "fixed"
    version: str = "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return self.answer


def test_ledger_counts_each_silo_over_all_rounds():
    guard = open_guard()
    guard.reserve(0, {"north": 5, "south": 5}, "a")
    guard.reserve(1, {"south": 5}, "b")
    guard.reserve(2, {"north": 1}, "c")
    guard.reserve(3, {"north": 2}, "d")
    assert spent(guard) == {"north": 8, "south": 10}


def test_ledgers_share_nothing():
    open_guard().reserve(0, {"north": 5}, "a")
    assert spent(open_guard()) == {}


def test_guard_returns_what_is_spent_with_the_round():
    guard = open_guard(TEN)
    assert guard.reserve(0, {"north": 2, "south": 2}, "a").epsilon == 4.0
    assert guard.reserve(1, {"south": 3}, "b").epsilon == 7.0
    assert spent(guard) == {"north": 2, "south": 5}


def test_steps_of_one_silo_in_several_rounds_add_up():
    guard = open_guard(TEN)
    guard.reserve(0, {"north": 6}, "a")
    with pytest.raises(BudgetError):
        guard.reserve(1, {"north": 6}, "a")


def test_budget_may_be_spent_to_the_last():
    assert open_guard(TEN).reserve(0, {"north": 10}, "a").epsilon == 10.0


def test_round_that_overspends_is_refused_and_leaves_the_ledger_as_it_was():
    guard = open_guard(TEN)
    guard.reserve(0, {"north": 4, "south": 4}, "a")
    head = guard.ledger.head
    with pytest.raises(BudgetError, match=r"Round 1 would bring ε to 16; 8 of 10 is spent"):
        guard.reserve(1, {"north": 4, "south": 4}, "b")
    assert spent(guard) == {"north": 4, "south": 4}
    assert guard.ledger.head == head
    assert guard.reserve(1, {"north": 2}, "b").epsilon == 10.0  # what still fits is still allowed


def test_price_comes_before_the_reservation_and_a_refusal_without_one():
    @dataclass(frozen=True)
    class Watching:
        """An accountant that notes how long the ledger was when it was asked."""

        ledger: Ledger
        seen: list[int] = field(default_factory=list)
        name: str = "watching"
        version: str = "1"

        def epsilon(self, event: DpEvent, delta: float) -> float:
            rows = self.ledger._database.execute("SELECT count(*) FROM entries").fetchone()
            self.seen.append(rows[0])
            return COUNTING.epsilon(event, delta)

    ledger = Ledger.in_memory()
    pricing = Watching(ledger)
    guard = open_guard(TEN, ledger, accountant=pricing)
    before = ledger.head.number
    pricing.seen.clear()
    guard.reserve(0, {"north": 6}, "a")
    assert set(pricing.seen) == {before}
    assert ledger.head.number == before + 1
    with pytest.raises(BudgetError):
        guard.reserve(1, {"north": 6}, "b")
    assert ledger.head.number == before + 1


@pytest.mark.parametrize("price", [float("inf"), 10.000001, float("nan")])
def test_whatever_is_not_within_the_budget_is_refused(price):
    with Ledger.in_memory() as ledger:
        cheap, dear = (open_guard(TEN, ledger, accountant=Fixed(answer)) for answer in (1.0, price))
        head = ledger.head
        with pytest.raises(BudgetError):
            dear.reserve(0, {"north": 1}, "a")
        assert ledger.head == head
        assert spent(cheap) == {}


def test_without_a_budget_the_account_is_kept():
    guard = open_guard(None)
    assert guard.reserve(0, {"north": 1000}, "a").epsilon == 1000.0
    assert spent(guard) == {"north": 1000}
    assert confirmed(guard) == {}
