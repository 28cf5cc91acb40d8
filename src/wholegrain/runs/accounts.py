"""Which ledger a run writes in, which account pays for it, the guard between them, and what was spent in the end."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wholegrain import _check
from wholegrain._files import private_folder
from wholegrain._json_numbers import finite
from wholegrain._places import state_folder
from wholegrain.errors import BudgetError, LedgerError
from wholegrain.policies.plan import Plan
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Guarantee, Standing, Unit
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, RunOpened, TermsRecord
from wholegrain.privacy.ledger_state import LedgerState, RunAccount
from wholegrain.privacy.pricing import Price, Releases, Terms
from wholegrain.privacy.statement import account_price, data_price, run_price
from wholegrain.runs.ledger_counter import LedgerCounter
from wholegrain.runs.ledger_registry import LedgerRegistry, open_known_ledger
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.noise import NoiseSource

log = logging.getLogger("wholegrain.runs")


def open_ledger(path: Path | None, *, create: bool = True) -> Ledger:
    """The ledger at this path, or one in memory."""
    if path is None:
        return Ledger.in_memory()
    if create:
        make_ledger_folder(path)
    return Ledger.open(path, create=create)


def make_ledger_folder(path: Path) -> None:
    """The folder of a ledger, which is its owner's alone; one that somebody else made stays as it is."""
    try:
        if path.parent == state_folder() or not path.parent.is_dir():
            private_folder(path.parent)
    except (OSError, ValueError) as error:  # ValueError: a character that no path can have
        raise LedgerError(f"The ledger '{path}' cannot be made: {_check.reason(error)}.") from error


@contextlib.contextmanager
def release_ledger(path: Path, data: str, *, create: bool = True) -> Iterator[Ledger]:
    """The ledger that pays for releases from the data of this name: the one that this machine knows, or its first."""
    LedgerRegistry.here().require_there(data, path)
    LedgerCounter.here().require_there(data, path)
    with open_ledger(path, create=create) as ledger, open_known_ledger(data, ledger):
        yield ledger


def require_known(ledger: Ledger, run: str) -> None:
    """Refuse a ledger that a run which has begun is not in: with another one, it would spend everything again."""
    if run not in ledger.state.runs:
        raise LedgerError(
            f"The ledger '{ledger.path}' does not know the run '{run}', which has begun; put back the one that it began"
            " with."
        )


@dataclass(frozen=True)
class Bill:
    """What is to be paid for: on which terms, how many steps and scores, under which name."""

    terms: Terms
    steps: Releases
    scores: Releases
    policy: str


def guard_run(
    ledger: Ledger, run: str, spec: RunSpec, data: str, plan: Plan, noise: NoiseSource, bill: Bill | None = None
) -> Guard:
    """The guard of a run, opened in the ledger; a run that its account cannot pay for is refused.

    It pays for what the plan releases, unless another bill is given.
    """
    bill = bill or Bill(plan.terms, plan.horizon.releases(), plan.score_releases, plan.policy)
    account = Account(data=spec.ledger.data or data, budget=spec.ledger.budget)
    _require_same_budget(ledger, account, spec)
    limit = spec.ledger.epsilon or (None if plan.budget is None else plan.budget.epsilon)
    opening = RunOpened(
        run=run,
        account=account,
        spec=spec.digest,
        policy=bill.policy,
        noise=noise.name,
        terms=TermsRecord.of(bill.terms),
    )
    # A limit of the run's own is for this run alone. One that was named in the spec may be for several.
    alone = spec.ledger.epsilon is None and plan.budget is not None
    budget = BudgetOpened(
        account=account, unit=plan.unit, epsilon=limit, delta=plan.delta, runs="one" if alone else "several"
    )
    _say_what_is_gone(ledger, account, plan)
    stream = noise.identity if noise.repeats else None
    return Guard.open(ledger, opening, budget, bill.steps, stream, plan.accountant, scores=bill.scores)


def _say_what_is_gone(ledger: Ledger, account: Account, plan: Plan) -> None:
    """Whoever opens another budget on the same data is told what the others have spent already."""
    state = ledger.state
    if account in state.budgets or not any(run.has_spent for run in state.runs_on(account.data)):
        return
    gone = data_price(state, account.data, plan.unit, plan.accountant, plan.delta)
    log.warning(
        "The budget %s is a new one; the data's %d other(s) have spent ε = %.4g for each %s at δ = %g (by %s), and what"
        " this one spends comes on top.",
        account,
        len([budget for budget in state.budgets if budget.data == account.data]),
        gone.epsilon,
        plan.unit,
        plan.delta,
        gone.way,
    )


def spent_guarantees(plan: Plan, run: RunAccount) -> tuple[Guarantee, ...]:
    """What the plan's guarantees have come to, by the ledger: what is proved belongs to what was released.

    A claim of the paper stays what it is, and so does it that nothing can be proved.
    """
    return tuple(spent_guarantee(guarantee, run, plan.accountant) for guarantee in plan.guarantees)


def spent_guarantee(planned: Guarantee, run: RunAccount, pricing: Accountant) -> Guarantee:
    """What a guarantee of a plan has come to, by the ledger."""
    if planned.standing is not Standing.PROVED:
        return planned
    found = run_price(run, planned.unit, pricing, planned.delta)
    again = "; what was played again after a fault is counted again" if run.replayed else ""
    return replace(planned, epsilon=found.epsilon, accountant=found.way, because=f"{planned.because}{again}")


@dataclass(frozen=True)
class AccountState:
    """Where a run's account stands, and its data over all budgets that were ever opened on it."""

    account: Account
    unit: Unit
    limit: float | None
    delta: float
    runs: int
    price: Price
    budgets: int
    data: Price
    """Of all budgets together."""

    @property
    def shared(self) -> bool:
        """Whether there is more to tell than of the run itself."""
        return self.runs > 1 or self.budgets > 1

    def facts(self) -> dict[str, Any]:
        """The state as JSON has it."""
        return {
            "data": self.account.data,
            "budget": self.account.budget,
            "unit": str(self.unit),
            "epsilon": self.limit,
            "delta": self.delta,
            "runs": self.runs,
            "spent": finite(self.price.epsilon),
            "accountant": self.price.way,
            "budgets_of_the_data": self.budgets,
            "spent_of_the_data": finite(self.data.epsilon),
            "accountant_of_the_data": self.data.way,
        }


def account_state(state: LedgerState, run: str, pricing: Accountant) -> AccountState:
    """Where the account of this run stands."""
    account = state.runs[run].opening.account
    opened, runs = state.budgets[account], state.runs_of(account)
    return AccountState(
        account=account,
        unit=opened.unit,
        limit=opened.epsilon,
        delta=opened.delta,
        runs=sum(each.has_spent for each in runs),
        price=account_price(opened, runs, pricing),
        budgets=len({each.opening.account for each in state.runs_on(account.data) if each.has_spent}),
        data=data_price(state, account.data, opened.unit, pricing, opened.delta),
    )


def _require_same_budget(ledger: Ledger, account: Account, spec: RunSpec) -> None:
    """An account's limit is set once; a spec that names another one means another account."""
    opened, asked = ledger.state.budgets.get(account), spec.ledger.epsilon
    if opened is not None and asked is not None and asked != opened.epsilon:
        limit = "no limit" if opened.epsilon is None else f"ε = {opened.epsilon:g}"
        raise BudgetError(
            f"The budget {account} was opened with {limit}, and ledger.epsilon asks for {asked:g}; keep to it, or open"
            " another one by name (ledger.budget)."
        )
