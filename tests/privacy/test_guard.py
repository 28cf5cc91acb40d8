"""The gate: a round is priced with all that the account ever paid for, and only then reserved."""

from dataclasses import dataclass, field, replace

import pytest
from dp_accounting import DpEvent, NonPrivateDpEvent

from accounts import ACCOUNT, COUNTING, budget, confirmed, equal_terms, open_guard, opening, spent
from policy_rows import private_policies
from wholegrain.errors import BudgetError, LedgerError, WholegrainError
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, make_plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import gaussian, repeat
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened
from wholegrain.privacy.pricing import Price, price
from wholegrain.privacy.statement import account_price, run_price

pytestmark = pytest.mark.usefixtures("coarse_prices")

TEN = 10.0


@dataclass(frozen=True)
class Fixed:
    """An accountant with one answer."""

    answer: float
    name: str = "fixed"
    version: str = "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return self.answer

    def way(self, event: DpEvent) -> str:
        return self.name

    def as_filter(self, limit: float | None) -> "Fixed":
        return self


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

        def way(self, event: DpEvent) -> str:
            return self.name

        def as_filter(self, limit: float | None) -> "Watching":
            return self

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


# One account, several runs.


def test_a_second_run_on_the_same_data_goes_on_with_the_account():
    with Ledger.in_memory() as ledger:
        first = open_guard(TEN, ledger, horizon={"north": 6})
        first.reserve(0, {"north": 6}, "a")
        second = open_guard(TEN, ledger, run="second", horizon={"north": 4})
        more = second.reserve(0, {"north": 3}, "a")
        assert (more.epsilon, more.account) == (3.0, 9.0)
        with pytest.raises(BudgetError, match="9 of 10 is spent from the budget 'main' of the data 'clinics'"):
            second.reserve(1, {"north": 2}, "b")
        with pytest.raises(BudgetError):
            first.reserve(1, {"north": 2}, "b")
        assert second.reserve(1, {"north": 1}, "b").account == 10.0


def test_a_run_that_cannot_be_paid_to_its_end_is_refused_before_it_begins():
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger).reserve(0, {"north": 6}, "a")
        head = ledger.head
        with pytest.raises(BudgetError, match="The run would bring ε to 11; 6 of 10 is spent"):
            open_guard(TEN, ledger, run="second", horizon={"north": 2, "south": 3})
        assert ledger.head == head
        assert list(ledger.state.runs) == ["first"]
        assert open_guard(TEN, ledger, run="second", horizon={"north": 2, "south": 2}).budget.epsilon == TEN


def test_a_refused_first_run_does_not_open_its_account_either():
    with Ledger.in_memory() as ledger:
        with pytest.raises(BudgetError):
            open_guard(TEN, ledger, horizon={"north": 11})
        assert ledger.head.number == 1
        assert ledger.state.budgets == {}
        assert open_guard(20.0, ledger, horizon={"north": 11}).budget.epsilon == 20.0


@pytest.mark.parametrize("other", [Account(data="clinics", budget="trial"), Account(data="schools")], ids=str)
def test_another_budget_or_other_data_is_another_account(other):
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger).reserve(0, {"north": 10}, "a")
        elsewhere = open_guard(3.0, ledger, run="second", account=other, horizon={"north": 3})
        assert elsewhere.reserve(0, {"north": 3}, "a").epsilon == 3.0
        with pytest.raises(BudgetError, match=r"3 of 3 is spent from the budget"):
            elsewhere.reserve(1, {"north": 1}, "b")


def test_the_limit_of_an_account_is_what_it_was_opened_with():
    """A run that brings another one spends from the first."""
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger)
        richer = open_guard(1000.0, ledger, run="second")
        assert richer.budget.epsilon == TEN
        with pytest.raises(BudgetError):
            richer.reserve(0, {"north": 11}, "a")
        with pytest.raises(BudgetError):
            open_guard(None, ledger, run="third", horizon={"north": 11})


def test_runs_in_different_processes_share_their_account(tmp_path):
    with Ledger.open(tmp_path / "ledger") as one, Ledger.open(tmp_path / "ledger") as other:
        first = open_guard(TEN, one)
        second = open_guard(TEN, other, run="second")
        assert first.reserve(0, {"north": 6}, "a").epsilon == 6.0
        with pytest.raises(BudgetError, match="6 of 10 is spent"):
            second.reserve(0, {"north": 6}, "a")
        assert second.reserve(0, {"north": 4}, "a").account == 10.0
        with pytest.raises(BudgetError):
            first.reserve(1, {"north": 1}, "b")


def test_an_account_outlives_its_runs(tmp_path):
    with Ledger.open(tmp_path / "ledger") as ledger:
        open_guard(TEN, ledger).reserve(0, {"north": 8}, "a")
    with Ledger.open(tmp_path / "ledger") as ledger, pytest.raises(BudgetError, match="8 of 10 is spent"):
        open_guard(TEN, ledger, run="second", horizon={"north": 3})


def test_a_run_that_protects_nothing_cannot_spend_from_a_limited_account():
    """FedAvg, say: its price is infinite. On an account without a limit it is kept, and it closes it for others."""
    unprotected = equal_terms(step=NonPrivateDpEvent())
    with Ledger.in_memory() as ledger:
        open_guard(1e9, ledger)
        head = ledger.head
        with pytest.raises(BudgetError, match="would bring ε to inf"):
            open_guard(1e9, ledger, run="fedavg", terms=unprotected, horizon={"north": 1})
        assert ledger.head == head
    guard = open_guard(None, terms=unprotected, horizon={"north": 1})
    assert guard.reserve(0, {"north": 1}, "a").epsilon == float("inf")


def test_a_known_run_goes_on_and_is_not_opened_twice():
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger, horizon={"north": 8}).reserve(0, {"north": 4}, "a")
        head = ledger.head
        again = open_guard(TEN, ledger, horizon={"north": 8})
        assert ledger.head == head
        assert again.reserve(1, {"north": 4}, "b").epsilon == 8.0


OTHERWISE = {
    "spec": opening(spec="another"),
    "terms": opening(terms=equal_terms(step=gaussian(2.0))),
    "reach": opening(terms=equal_terms(reach=1)),
    "silos": opening(terms=equal_terms(["north", "south"])),
    "account": opening(account=Account(data="clinics", budget="trial")),
}


@pytest.mark.parametrize("changed", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_a_known_run_on_other_terms_is_refused(changed):
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger)
        head = ledger.head
        with pytest.raises(LedgerError, match="knows the run 'first' on other terms; a changed run is a new run"):
            Guard.open(ledger, changed, budget(TEN, changed.account), {}, "a stream", COUNTING)
        assert ledger.head == head


# The same release is paid for once.


def test_the_same_release_is_paid_for_once_however_often_it_is_computed():
    guard = open_guard(TEN)
    first = guard.reserve(0, {"north": 5, "south": 5}, "a")
    head = guard.ledger.head
    for _ in range(3):
        assert guard.reserve(0, {"north": 5, "south": 5}, "a") == first
    assert guard.ledger.head == head
    assert spent(guard) == {"north": 5, "south": 5}


def test_a_spent_account_still_pays_for_what_it_has_paid_for():
    """A run that is resumed with its budget used up may compute its last round again."""
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger).reserve(0, {"north": 10}, "a")
        again = open_guard(TEN, ledger)
        assert again.reserve(0, {"north": 10}, "a").epsilon == 10.0
        with pytest.raises(BudgetError):
            again.reserve(0, {"north": 10, "south": 1}, "a")


ANOTHER = {
    "round": ("a stream", 1, {"north": 2}, "a"),
    "silo": ("a stream", 0, {"south": 2}, "a"),
    "start": ("a stream", 0, {"north": 2}, "b"),
    "stream": ("another", 0, {"north": 2}, "a"),
}


@pytest.mark.parametrize(("stream", "round", "steps", "start"), ANOTHER.values(), ids=ANOTHER.keys())
def test_a_release_with_other_noise_or_from_other_parameters_is_paid_for_again(stream, round, steps, start):
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger).reserve(0, {"north": 2}, "a")
        assert open_guard(TEN, ledger, stream=stream).reserve(round, steps, start).epsilon == 4.0


def test_only_what_is_new_of_a_round_is_paid_for():
    guard = open_guard(TEN)
    guard.reserve(0, {"north": 2}, "a")
    reservation = guard.reserve(0, {"north": 2, "south": 3}, "a")
    assert reservation.epsilon == 5.0
    assert [release.silo for release in reservation.releases] == ["north", "south"]
    assert spent(guard) == {"north": 2, "south": 3}


def test_a_release_of_other_length_is_refused_and_leaves_the_ledger_readable(tmp_path):
    """The same noise from the same parameters cannot be two releases."""
    with Ledger.open(tmp_path / "ledger") as ledger:
        guard = open_guard(TEN, ledger)
        guard.reserve(0, {"north": 2}, "a")
        with pytest.raises(LedgerError, match="paid for twice"):
            guard.reserve(0, {"north": 3}, "a")
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert spent(open_guard(TEN, ledger)) == {"north": 2}


@pytest.mark.parametrize("reach", [1, 3])
def test_a_silo_that_the_terms_do_not_name_is_refused_and_leaves_the_ledger_readable(tmp_path, reach):
    with Ledger.open(tmp_path / "ledger") as ledger:
        guard = open_guard(TEN, ledger, terms=equal_terms(reach=reach))
        guard.reserve(0, {"north": 1, "south": 1}, "a")
        with pytest.raises(WholegrainError, match="atlantis"):
            guard.reserve(1, {"atlantis": 1}, "b")
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert spent(open_guard(TEN, ledger, terms=equal_terms(reach=reach))) == {"north": 1, "south": 1}


# What has left the silos.


def test_confirmed_is_what_arrived_and_costs_nothing_more():
    guard = open_guard(TEN)
    reservation = guard.reserve(0, {"north": 2, "south": 3, "west": 4}, "a")
    guard.confirm(reservation, ["south", "west"])
    assert confirmed(guard) == {"south": 3, "west": 4}
    assert spent(guard) == {"north": 2, "south": 3, "west": 4}
    assert guard.reserve(0, {"north": 2, "south": 3, "west": 4}, "a").epsilon == 9.0


def test_confirming_again_changes_nothing():
    guard = open_guard(TEN)
    reservation = guard.reserve(0, {"north": 2, "south": 3}, "a")
    guard.confirm(reservation, ["north"])
    head = guard.ledger.head
    guard.confirm(reservation, ["north"])
    guard.confirm(reservation, [])
    assert guard.ledger.head == head
    guard.confirm(reservation, ["north", "south"])
    assert confirmed(guard) == {"north": 2, "south": 3}


def test_whoever_was_not_asked_is_not_confirmed():
    guard = open_guard(TEN)
    guard.confirm(guard.reserve(0, {"north": 2}, "a"), ["north", "south"])
    assert confirmed(guard) == {"north": 2}


# With real plans.

PRICING = PldAccountant(grid=1e-2)


def plan_of(policy="subject_dp", *, silos=4, span=None, cohort=None, rounds=6, epsilon=3.0, unit=Unit.SUBJECT, **goal):
    facts = tuple(
        SiloFacts(name=f"silo-{n}", items=500 + 100 * n, subjects=100, items_per_subject=4) for n in range(silos)
    )
    names = tuple(silo.name for silo in facts)
    horizon = Horizon(silos=names, rounds=rounds, steps=2, cohort_size=cohort, seed=3)
    aim = Goal(epsilon=epsilon, delta=1e-5, unit=unit, accountant=PRICING, **goal)
    return make_plan(
        policy, PolicySettings(batch_size=50, group_cap=2), Federation(silos=facts, span=span), horizon, aim
    )


def guard_of(plan, ledger=None, run="first", runs="one"):
    """As a run opens it."""
    asked = opening(run, terms=plan.terms)
    limit = None if plan.budget is None else plan.budget.epsilon
    return Guard.open(
        ledger or Ledger.in_memory(),
        asked,
        BudgetOpened(account=asked.account, unit=plan.unit, epsilon=limit, delta=plan.delta, runs=runs),
        plan.horizon.releases(),
        "a stream",
        plan.accountant,
    )


def play(guard, plan):
    """Reserve every round; ε after each."""
    horizon = plan.horizon
    steps = [dict.fromkeys(horizon.cohort(number), horizon.steps) for number in range(horizon.rounds)]
    return [guard.reserve(number, asked, f"{number}").epsilon for number, asked in enumerate(steps)]


@pytest.mark.parametrize("cohort", [None, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", private_policies())
@pytest.mark.usefixtures("coarse_prices")
def test_the_guard_reports_what_the_plan_says_of_the_same_releases(policy, cohort):
    plan = plan_of(policy, cohort=cohort, rounds=4, span=3)
    reported = play(guard_of(plan), plan)
    assert reported == [plan.epsilon(plan.horizon.releases(number + 1)) for number in range(4)]
    assert reported[-1] == plan.guarantee().epsilon <= 3.0


@pytest.mark.parametrize("span", [1, 2, 3, 4])
@pytest.mark.parametrize("cohort", [1, 2, 3, None])
def test_a_planned_horizon_can_be_paid_to_its_end_round_by_round(span, cohort):
    """Of a run's silos, those that released most over *all* its rounds count.

    Priced round by round, every round would be charged its own busiest silos, and the last ones could not be paid.
    """
    plan = plan_of(span=span, cohort=cohort, rounds=8)
    guard = guard_of(plan)
    assert play(guard, plan)[-1] == plan.guarantee().epsilon
    assert spent(guard) == plan.horizon.releases()


def test_one_round_more_than_planned_is_refused():
    plan = plan_of(cohort=2, span=2)
    guard = guard_of(plan)
    play(guard, plan)
    busiest = max(spent(guard), key=spent(guard).get)
    with pytest.raises(BudgetError, match=f"Round {plan.horizon.rounds} would bring ε to"):
        guard.reserve(plan.horizon.rounds, {busiest: plan.horizon.steps}, "more")


def account_of(ledger):
    """What the one account there is has spent, and by which theorem."""
    (opened,) = ledger.state.budgets.values()
    return account_price(opened, ledger.state.runs_of(opened.account), PRICING)


def test_two_runs_of_one_plan_cost_less_than_twice_and_more_than_once():
    """They compose: what both released is priced together, not added up; and as steps that were chosen one by one."""
    plan = plan_of(epsilon=None, noise_multiplier=8.0)
    twice = plan.epsilon({silo: 2 * steps for silo, steps in plan.horizon.releases().items()})
    with Ledger.in_memory() as ledger:
        first = play(guard_of(plan, ledger, runs="several"), plan)[-1]
        alone = account_of(ledger)
        second = play(guard_of(plan, ledger, run="second", runs="several"), plan)[-1]
        both = account_of(ledger)
    assert first == second == plan.guarantee().epsilon  # each run by itself
    assert alone.way == both.way == "Rényi filter"
    assert first < alone.epsilon < twice < both.epsilon < 2 * alone.epsilon
    assert both.epsilon < 1.4 * twice


def test_the_second_run_of_an_account_for_several_is_refused_by_the_filter():
    plan = plan_of(epsilon=None, noise_multiplier=8.0)
    twice = plan.epsilon({silo: 2 * steps for silo, steps in plan.horizon.releases().items()})
    limit = budget(twice * 1.01)
    with Ledger.in_memory() as ledger:
        asked = [opening(run, terms=plan.terms) for run in ("first", "second")]
        first = Guard.open(ledger, asked[0], limit, plan.horizon.releases(), "a", PRICING)
        play(first, plan)
        head = ledger.head
        with pytest.raises(BudgetError, match=r"The run would bring ε to .* \(priced by Rényi filter\)"):
            Guard.open(ledger, asked[1], limit, plan.horizon.releases(), "a", PRICING)
        assert ledger.head == head


def test_an_account_for_one_run_is_priced_as_the_run_and_refuses_another():
    plan = plan_of()
    with Ledger.in_memory() as ledger:
        play(guard_of(plan, ledger), plan)
        assert account_of(ledger) == Price(plan.guarantee().epsilon, "pld")
        head = ledger.head
        with pytest.raises(BudgetError, match="is that of the run 'first' alone; open another one by name"):
            guard_of(plan, ledger, run="second")
        assert ledger.head == head


def test_an_account_for_one_run_is_that_of_the_first_to_spend():
    plan = plan_of()
    with Ledger.in_memory() as ledger:
        first, second = (guard_of(plan, ledger, run=name) for name in ("first", "second"))
        second.reserve(0, {"silo-0": 2}, "a")
        with pytest.raises(BudgetError, match="that of the run 'second' alone"):
            first.reserve(0, {"silo-0": 2}, "a")
        second.reserve(1, {"silo-0": 2}, "b")


@pytest.mark.parametrize(
    "other",
    [
        BudgetOpened(account=ACCOUNT, unit=Unit.ITEM, epsilon=TEN, delta=1e-5),
        BudgetOpened(account=ACCOUNT, unit=Unit.SUBJECT, epsilon=TEN, delta=1e-6),
    ],
)
def test_a_run_for_another_unit_or_delta_is_refused(other):
    with Ledger.in_memory() as ledger:
        open_guard(TEN, ledger)
        head = ledger.head
        with pytest.raises(BudgetError, match=r"was opened for each subject at δ = 1e-05, and the run is for each"):
            Guard.open(ledger, opening("second"), other, {}, "a", COUNTING)
        assert ledger.head == head


def test_rounds_played_again_are_spent_and_a_filter_prices_steps_of_several_kinds():
    plan = plan_of("higradavg_dp", epsilon=None, noise_multiplier=8.0)
    with Ledger.in_memory() as ledger:
        guard = guard_of(plan, ledger)
        guard.reserve(0, {"silo-0": 2, "silo-1": 2}, "a")
        assert run_price(ledger.state.runs["first"], Unit.SUBJECT, PRICING, 1e-5).way == "pld"
        guard.reserve(1, {"silo-0": 2, "silo-1": 2}, "b")
        assert ledger.state.runs["first"].replayed == 0
        replace(guard, stream="another").reserve(1, {"silo-1": 2}, "b")
        run = ledger.state.runs["first"]
        assert (run.replayed, run.reserved) == (1, {"silo-0": 4, "silo-1": 6})
        again = run_price(run, Unit.SUBJECT, PRICING, 1e-5)
    assert again.way == "Rényi filter"
    assert again.epsilon > plan.epsilon({"silo-0": 4, "silo-1": 6}) > plan.epsilon({"silo-0": 4, "silo-1": 4})


def test_rounds_played_again_of_one_kind_of_step_compose():
    """Only the number of steps depends on the fault, whatever caused it."""
    guard = open_guard(None, accountant=PRICING)
    guard.reserve(0, {"north": 2}, "a")
    replace(guard, stream="another").reserve(0, {"north": 2}, "a")
    run = guard.ledger.state.runs["first"]
    assert run.replayed == 1
    assert run_price(run, Unit.SUBJECT, PRICING, 1e-5) == Price(PRICING.epsilon(repeat(gaussian(1.0), 4), 1e-5), "pld")


def test_an_account_for_items_prices_every_run_by_the_item():
    """Terms tell every unit's price, whatever the run itself promises."""
    for_items, for_subjects = plan_of("local_item_dp", unit=Unit.ITEM), plan_of("local_item_dp", epsilon=2.0)
    with Ledger.in_memory() as ledger:
        play(guard_of(for_items, ledger), for_items)
        head = ledger.head
        with pytest.raises(BudgetError):
            guard_of(for_subjects, ledger, run="second")
        assert ledger.head == head
        before = price([run.spending for run in ledger.state.runs_of(ACCOUNT)], Unit.ITEM, PRICING, 1e-5)
        assert before == for_items.guarantee(Unit.ITEM).epsilon


def test_fedavg_is_refused_on_a_limited_account_and_kept_on_one_without_limit():
    plan, fedavg = plan_of(), plan_of("fedavg", epsilon=None)
    with Ledger.in_memory() as ledger:
        guard_of(plan, ledger)
        with pytest.raises(BudgetError, match="would bring ε to inf"):
            guard_of(fedavg, ledger, run="second")
    guard = guard_of(fedavg)
    assert set(play(guard, fedavg)) == {float("inf")}
    assert spent(guard) == fedavg.horizon.releases()
