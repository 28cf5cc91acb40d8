"""What entries add up to: reserved is spent, the same release counts once, and a contradiction is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts import ACCOUNT, COUNTING, DELTA, budget, equal_terms, opening, released, reserved
from wholegrain.errors import LedgerError
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.ledger_entries import Account, Opened
from wholegrain.privacy.ledger_state import LedgerState
from wholegrain.privacy.pricing import price


def book_of(*entries) -> LedgerState:
    state = LedgerState()
    for entry in entries:
        state.add(entry)
    return state


def begun(*entries) -> LedgerState:
    """An account, a run on it, and these entries."""
    return book_of(Opened(identity="00"), budget(10.0), opening(), *entries)


def cost(state: LedgerState, more=(), account: Account = ACCOUNT) -> float:
    return price([run.spending for run in state.runs_of(account, more)], Unit.SUBJECT, COUNTING, DELTA)


# What counts.


def test_what_is_reserved_is_spent_whether_it_was_released_or_not():
    vain, made = reserved(0, "north", 3), reserved(0, "south", 2)
    state = begun(vain, made, released(made))
    assert cost(state) == 3 + 2
    run = state.runs["first"]
    assert (run.reserved, run.released) == ({"north": 3, "south": 2}, {"south": 2})
    assert (state.was_released(vain), state.was_released(made)) == (False, True)


def test_rounds_of_a_silo_add_up():
    state = begun(*(reserved(number, "north", 2) for number in range(5)))
    assert state.runs["first"].reserved == {"north": 10}
    assert state.runs["first"].released == {}
    assert cost(state) == 10


SAME = reserved(3, "north", 2)
OTHERS = {
    "round": reserved(4, "north", 2),
    "silo": reserved(3, "south", 2),
    "stream": reserved(3, "north", 2, stream="another"),
    "start": reserved(3, "north", 2, start="another"),
    "steps": reserved(3, "north", 1),
    "run": reserved(3, "north", 2, run="second"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_a_release_is_told_from_others_by_everything_that_decides_it(other):
    state = begun(SAME, released(SAME))
    assert state.holds(SAME)
    assert not state.holds(other)


@pytest.mark.parametrize("what", ["round", "silo", "stream", "start"])
def test_other_releases_cost_more(what):
    assert cost(begun(SAME, OTHERS[what])) == 4


def test_what_is_asked_is_priced_on_top_and_not_kept():
    state = begun(reserved(0, "north", 3))
    assert cost(state, [reserved(1, "north", 2), reserved(1, "south", 4)]) == 9
    assert cost(state, [reserved(1, "north", 2), reserved(2, "north", 2)]) == 7
    assert cost(state) == 3
    assert state.runs["first"].reserved == {"north": 3}


def test_runs_of_one_account_are_spent_together_and_in_order():
    state = begun(opening("second"), reserved(0, run="second", steps=5), reserved(0, steps=1))
    assert [dict(run.reserved) for run in state.runs_of(ACCOUNT)] == [{"north": 1}, {"north": 5}]
    assert [run.opening.run for run in state.runs_of(ACCOUNT)] == ["first", "second"]
    assert cost(state) == 6


@pytest.mark.parametrize("other", [Account(data="clinics", budget="trial"), Account(data="schools")], ids=str)
def test_accounts_are_apart(other):
    more = opening("second", other), reserved(0, run="second", steps=5), reserved(0, steps=1)
    state = begun(budget(1.0, other), *more)
    assert (cost(state), cost(state, account=other)) == (1, 5)
    assert state.budgets[other].epsilon == 1.0


def test_an_account_that_nobody_spent_from_costs_nothing():
    assert LedgerState().runs_of(ACCOUNT) == []
    assert [run.spending for run in begun().runs_of(ACCOUNT)] == [(opening().terms.terms, {}, {})]


def test_a_run_is_priced_on_the_terms_that_it_was_opened_with():
    once = opening("second", terms=equal_terms(reach=1))
    everywhere = [reserved(0, silo, 2, run=run) for run in ("first", "second") for silo in ("north", "south", "west")]
    state = begun(once, *everywhere)
    assert cost(state) == 3 * 2 + 2


# Contradictions.


CONTRADICTIONS = {
    "opened twice": ([Opened(identity="01")], "the ledger is opened twice"),
    "budget twice": ([budget(99.0)], "the budget 'main' of the data 'clinics' is opened twice"),
    "run twice": ([opening()], "the run 'first' is opened twice"),
    "run twice, otherwise": ([opening(spec="another")], "the run 'first' is opened twice"),
    "no budget": ([opening("second", Account(data="schools"))], "the run 'second' spends from no budget"),
    "no run": ([reserved(run="second")], "the run 'second' was never opened"),
    "no such silo": ([reserved(silo="atlantis")], "do not name the silo 'atlantis'"),
    "paid twice": ([reserved(), reserved()], "round 0 of 'north' is paid for twice"),
    "paid twice, otherwise": ([reserved(), reserved(steps=9)], "round 0 of 'north' is paid for twice"),
    "never paid": ([released(reserved())], "round 0 of 'north' is released and was never paid for"),
    "other release": (
        [reserved(), released(reserved(start="another"))],
        "round 0 of 'north' is released and was never paid for",
    ),
    "released of no run": ([released(reserved(run="second"))], "released and was never paid for"),
    "released twice": (
        [reserved(), released(reserved()), released(reserved())],
        "round 0 of 'north' is released twice",
    ),
}


@pytest.mark.parametrize(("entries", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_an_entry_that_contradicts_those_before_it_is_refused(entries, message):
    *fine, last = entries
    state = begun(*fine)
    before = cost(state), dict(state.runs), dict(state.budgets), state.identity
    with pytest.raises(LedgerError, match=message):
        state.add(last)
    assert (cost(state), dict(state.runs), dict(state.budgets), state.identity) == before


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["north", "south"]), st.booleans()), unique=True))
def test_released_never_exceeds_reserved(steps):
    seen, state = set(), begun()
    for round, silo, made in steps:
        if (round, silo) in seen:
            continue
        seen.add((round, silo))
        state.add(reserved(round, silo))
        if made:
            state.add(released(reserved(round, silo)))
    run = state.runs["first"]
    assert all(run.released[silo] <= run.reserved[silo] for silo in ("north", "south"))
    assert sum(run.reserved.values()) == cost(state) == 2 * len(seen)
