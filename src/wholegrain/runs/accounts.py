"""Which ledger a run writes in, which account pays for it, and the guard between them."""

from pathlib import Path

from wholegrain import _check
from wholegrain._places import state_folder
from wholegrain.errors import BudgetError, LedgerError
from wholegrain.policies.plan import Plan
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.records import Account, BudgetOpened, RunOpened, TermsRecord
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.noise import NoiseSource

LEDGER = "ledger.sqlite"


def ledger_path(spec: RunSpec, folder: Path | None) -> Path | None:
    """Where the ledger is; None for one in memory.

    A simulation ends with its folder. A release does not: its account must outlive the folder, or a second run would
    not know of the first.
    """
    if spec.ledger.path is not None:
        return Path(spec.ledger.path)
    if spec.privacy.noise == "secure":
        return state_folder() / LEDGER
    return None if folder is None else folder / LEDGER


def open_ledger(path: Path | None, *, create: bool = True) -> Ledger:
    """The ledger at this path, or one in memory."""
    if path is None:
        return Ledger.in_memory()
    try:
        if create and not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a character that no path can have
        raise LedgerError(f"The ledger '{path}' cannot be made: {_check.reason(error)}.") from error
    return Ledger.open(path, create=create)


def require_known(ledger: Ledger, run: str) -> None:
    """Refuse a ledger that a run which has begun is not in: with another one, it would spend everything again."""
    if run not in ledger.book.runs:
        raise LedgerError(
            f"The ledger '{ledger.path}' does not know the run '{run}', which has begun; put back the one that it began"
            " with."
        )


def guard_run(ledger: Ledger, run: str, spec: RunSpec, data: str, plan: Plan, noise: NoiseSource) -> Guard:
    """The guard of a run, opened in the ledger; a run that its account cannot pay for is refused."""
    account = Account(data=spec.ledger.data or data, budget=spec.ledger.budget)
    _require_same_budget(ledger, account, spec)
    limit = spec.ledger.epsilon or (None if plan.budget is None else plan.budget.epsilon)
    opening = RunOpened(
        run=run,
        account=account,
        spec=spec.digest,
        policy=plan.policy,
        noise=noise.name,
        terms=TermsRecord.of(plan.terms),
    )
    budget = BudgetOpened(account=account, unit=plan.unit, epsilon=limit, delta=plan.delta)
    stream = noise.identity if noise.repeats else None
    return Guard.open(ledger, opening, budget, plan.horizon.releases(), stream, plan.accountant)


def _require_same_budget(ledger: Ledger, account: Account, spec: RunSpec) -> None:
    """An account's limit is set once; a spec that names another one means another account."""
    opened, asked = ledger.book.budgets.get(account), spec.ledger.epsilon
    if opened is not None and asked is not None and asked != opened.epsilon:
        limit = "no limit" if opened.epsilon is None else f"ε = {opened.epsilon:g}"
        raise BudgetError(
            f"The budget {account} was opened with {limit}, and ledger.epsilon asks for {asked:g}; keep to it, or open"
            " another one by name (ledger.budget)."
        )
