"""The limit that a silo's charter needs: with it the silo's own ledger pays for every round of the plan."""

from typing import Any

import pytest

from wholegrain.errors import BudgetError
from wholegrain.policies.guarantees import Row
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.policies.silo_limit import least_limits, local_terms, own_terms
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, RunOpened, TermsRecord
from wholegrain.privacy.pricing import Terms
from wholegrain.privacy.trust import SecureSum

pytestmark = pytest.mark.usefixtures("coarse_prices")

NAMES = ("east", "north", "south", "west")
ROUNDS = 60
SUM = SecureSum(silos=4, answers=3, colluding=0)


def plan_of(span: int | None, **settings: Any) -> Plan:
    facts: dict[str, Any] = {"items": 4000, "subjects": 900, "items_per_subject": 4, "declared": True}
    silos = tuple(SiloFacts(name=name, **facts, knows_spans=settings.get("by_span", False)) for name in NAMES)
    horizon = Horizon(silos=NAMES, rounds=ROUNDS, steps=1)
    goal = Goal(epsilon=4.0, delta=1e-5)
    return make_plan("subject_dp", PolicySettings(**settings), Federation(silos=silos, span=span), horizon, goal)


def sessions(plan: Plan, *counts: int) -> list[Terms]:
    """On what terms the silo north is asked, if so many silos take part, each in turn."""
    row: Row = plan.rows[NAMES.index("north")]
    if plan.trust is None:
        return [local_terms(row, None)]
    return [own_terms(list(plan.rows[:count]), "north", plan.span, None) for count in counts]


def rounds_paid(plan: Plan, limit: float, terms: list[Terms]) -> int:
    """Rounds that a silo's ledger pays for under this limit; other terms are another run."""
    account = Account(data="visits")
    budget = BudgetOpened(account=account, unit=plan.unit, epsilon=limit, delta=plan.delta)
    with Ledger.in_memory() as ledger:
        for round in range(ROUNDS):
            name = f"run/{round % len(terms)}"
            agreed = TermsRecord.of(terms[round % len(terms)])
            opening = RunOpened(run=name, account=account, spec="s", policy="p", noise="secure", terms=agreed)
            try:
                guard = Guard.open(ledger, opening, budget, {"north": 1}, None, plan.accountant)
                guard.reserve(round, {"north": 1}, "start")
            except BudgetError:
                return round
    return ROUNDS


PLANS = {
    "a sum": plan_of(2, rate=0.05, trust=SUM),
    "a sum by span": plan_of(None, rate=1.0, by_span=True, trust=SUM),
    "local": plan_of(1, rate=0.1),
    "local, everybody": plan_of(1, rate=1.0),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_silo_with_the_least_limit_pays_for_every_round_and_with_less_it_does_not(plan: Plan) -> None:
    limit = least_limits(plan)["north"]
    assert rounds_paid(plan, limit, sessions(plan, 4)) == ROUNDS
    assert rounds_paid(plan, 0.98 * limit, sessions(plan, 4)) < ROUNDS


@pytest.mark.parametrize("name", ["a sum", "a sum by span"])
def test_sessions_of_fewer_silos_cost_no_more(name: str) -> None:
    plan = PLANS[name]
    assert rounds_paid(plan, least_limits(plan)["north"], sessions(plan, 4, 3)) == ROUNDS


@pytest.mark.parametrize("name", ["a sum", "local"])
def test_a_fifth_above_the_plan_is_not_always_enough(name: str) -> None:
    plan = PLANS[name]
    assert rounds_paid(plan, 1.2 * plan.guarantee(Unit.SUBJECT).epsilon, sessions(plan, 4, 3)) < ROUNDS
