"""Runs that spend from a ledger at one ε a step, so that it is easy to see what is left."""

import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dp_accounting import ComposedDpEvent, DpEvent, NoOpDpEvent, SelfComposedDpEvent

from wholegrain.privacy import events
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, RunOpened, TermsRecord
from wholegrain.privacy.pricing import Exposure, Terms

SILOS = ("north", "south")


@dataclass(frozen=True)
class OneEach:
    """An accountant to whom every step costs one."""

    name: str = "one each"
    version: str = "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return float(_steps(event))

    def way(self, event: DpEvent) -> str:
        return self.name

    def as_filter(self, limit: float | None) -> "OneEach":
        return self


def _steps(event: DpEvent) -> int:
    match event:
        case NoOpDpEvent():
            return 0
        case SelfComposedDpEvent(event=inner, count=count):
            return count * _steps(inner)
        case ComposedDpEvent(events=parts):
            return sum(_steps(part) for part in parts)
    return 1


def guard_on(ledger: Ledger, run: str = "first", epsilon: float | None = 10.0, stream: str = "seeded:1") -> Guard:
    """A run on the one account there is, which may spend ε steps."""
    account = Account(data="patients")
    terms = Terms({Unit.SUBJECT: Exposure(len(SILOS), dict.fromkeys(SILOS, events.gaussian(3.0)))})
    opening = RunOpened(
        run=run, account=account, spec="spec", policy="subject_dp", noise="seeded", terms=TermsRecord.of(terms)
    )
    budget = BudgetOpened(account=account, unit=Unit.SUBJECT, epsilon=epsilon, delta=1e-5)
    return Guard.open(ledger, opening, budget, {}, stream, OneEach())


def reserved(path: Path) -> Counter[str]:
    """Steps reserved by silo over all runs, as a reader sees it who opens the ledger anew."""
    with Ledger.open(path, create=False) as ledger:
        return sum((Counter(run.reserved) for run in ledger.state.runs.values()), Counter())


def bodies(path: Path) -> list[str]:
    """Every entry as it stands in the file, read without our own code."""
    database = sqlite3.connect(path)
    try:
        return [body for (body,) in database.execute("SELECT body FROM entries ORDER BY number")]
    finally:
        database.close()


def witness_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.heads")
