from dataclasses import dataclass, field

import pytest

from wholegrain.errors import BudgetError
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Entry, MemoryLedger
from wholegrain.privacy.units import Budget

TEN = Budget(10.0, 1e-5)


def total(releases):
    """A price that is easy to follow: one ε for each step of any silo."""
    return float(sum(releases.values()))


@dataclass
class Diary:
    """A ledger and a price that note when they are asked."""

    notes: list[str] = field(default_factory=list)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)

    def price(self, releases):
        self.notes.append("price")
        return total(releases)

    def releases(self):
        return self.ledger.releases()

    def reserve(self, entries):
        self.notes.append("reserve")
        self.ledger.reserve(entries)


def round_of(number, **steps):
    return tuple(Entry(number, silo, count) for silo, count in steps.items())


def test_ledger_counts_each_silo_over_all_rounds():
    ledger = MemoryLedger()
    ledger.reserve(round_of(0, north=5, south=5))
    ledger.reserve(round_of(1, south=5))
    ledger.reserve((Entry(2, "north", 1), Entry(2, "north", 2)))
    assert ledger.releases() == {"north": 8, "south": 10}


def test_ledgers_share_nothing():
    MemoryLedger().reserve(round_of(0, north=5))
    assert MemoryLedger().releases() == {}


def test_guard_returns_what_is_spent_with_the_round():
    guard = Guard(MemoryLedger(), total, TEN)
    assert guard.reserve(round_of(0, north=2, south=2)) == 4.0
    assert guard.reserve(round_of(1, south=3)) == 7.0
    assert guard.ledger.releases() == {"north": 2, "south": 5}


def test_steps_of_one_silo_named_twice_add_up():
    guard = Guard(MemoryLedger(), total, TEN)
    with pytest.raises(BudgetError):
        guard.reserve((Entry(0, "north", 6), Entry(0, "north", 6)))


def test_budget_may_be_spent_to_the_last():
    guard = Guard(MemoryLedger(), total, TEN)
    assert guard.reserve(round_of(0, north=10)) == 10.0


def test_round_that_overspends_is_refused_and_leaves_the_ledger_as_it_was():
    guard = Guard(MemoryLedger(), total, TEN)
    guard.reserve(round_of(0, north=4, south=4))
    with pytest.raises(BudgetError, match=r"Round 1 would bring ε to 16; 8 of 10 is spent"):
        guard.reserve(round_of(1, north=4, south=4))
    assert guard.ledger.releases() == {"north": 4, "south": 4}
    assert guard.reserve(round_of(1, north=2)) == 10.0  # what still fits is still allowed


def test_price_comes_before_the_reservation_and_a_refusal_without_one():
    diary = Diary()
    guard = Guard(diary, diary.price, TEN)
    guard.reserve(round_of(0, north=6))
    assert diary.notes == ["price", "reserve"]
    with pytest.raises(BudgetError):
        guard.reserve(round_of(1, north=6))
    assert diary.notes.count("reserve") == 1


@pytest.mark.parametrize("price", [float("inf"), 10.000001])
def test_whatever_is_above_the_budget_is_refused(price):
    ledger = MemoryLedger()
    with pytest.raises(BudgetError):
        Guard(ledger, lambda releases: price, TEN).reserve(round_of(0, north=1))
    assert ledger.releases() == {}


def test_price_that_is_not_a_number_is_refused():
    ledger = MemoryLedger()
    with pytest.raises(BudgetError):
        Guard(ledger, lambda releases: float("nan"), TEN).reserve(round_of(0, north=1))
    assert ledger.releases() == {}


def test_without_a_budget_the_account_is_kept():
    guard = Guard(MemoryLedger(), total, None)
    assert guard.reserve(round_of(0, north=1000)) == 1000.0
    assert guard.ledger.releases() == {"north": 1000}
