"""What was spent, by whom, and by which theorem: of a run, of an account, and of a data set over all its budgets.

Everything that is refused, charged or printed as spent comes from here, and from the ledger's entries alone. Which
theorem covers which case, and why, stands in `filters`.
"""

from collections.abc import Iterable

from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import iterate_cases
from wholegrain.privacy.ledger_entries import BudgetOpened
from wholegrain.privacy.ledger_state import LedgerState, RunAccount
from wholegrain.privacy.pricing import Price, Spending, compose_events, price_with_method
from wholegrain.privacy.renyi import iterate_steps


def run_price(run: RunAccount, unit: Unit, accountant: Accountant, delta: float) -> Price:
    """What one run has spent, whatever it was meant to.

    Guarantee: its terms and schedule were fixed when it was opened, so that what it has released composes. Where rounds
    were played again and its steps are of several kinds, who looked at a release may have chosen which to repeat: then
    a filter prices it.
    """
    spent = [run.spending]
    if run.replayed and _kinds(spent, unit) > 1:
        accountant = accountant.as_filter(None)
    return price_with_method(spent, unit, accountant, delta)


def account_price(
    opened: BudgetOpened, runs: Iterable[RunAccount], accountant: Accountant, unit: Unit | None = None
) -> Price:
    """What these runs have spent together from an account, for its own unit unless another is named.

    Guarantee: for an account with a limit, whatever runs are chosen after seeing others, all that is released while
    this is within the limit keeps to (limit, δ).
    """
    spent, unit = [run for run in runs if run.has_spent], unit or opened.unit
    if opened.runs == "one" and len(spent) == 1:
        return run_price(spent[0], unit, accountant, opened.delta)
    filtered = accountant if opened.runs == "one" and not spent else accountant.as_filter(opened.epsilon)
    return price_with_method([run.spending for run in spent], unit, filtered, opened.delta)


def data_price(state: LedgerState, data: str, unit: Unit, accountant: Accountant, delta: float) -> Price:
    """What was ever spent of a data set, over all budgets that were opened on it."""
    runs = [run for run in state.runs_on(data) if run.has_spent]
    if len(runs) == 1 and state.budgets[runs[0].opening.account].runs == "one":
        return run_price(runs[0], unit, accountant, delta)
    return price_with_method([run.spending for run in runs], unit, accountant.as_filter(None), delta)


def _kinds(spent: list[Spending], unit: Unit) -> int:
    """How many kinds of steps one unit can meet in what was spent."""
    return max(
        len({step for step, _ in iterate_steps(case)})
        for event in compose_events(spent, unit)
        if event is not None
        for case in iterate_cases(event)
    )
