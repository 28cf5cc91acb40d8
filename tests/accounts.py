"""Accounts whose prices are easy to follow: every step of every silo costs ε = 1."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, NoOpDpEvent, SelfComposedDpEvent

from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import gaussian
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, Released, Reserved, RunOpened, TermsRecord
from wholegrain.privacy.pricing import Exposure, Terms

DELTA = 1e-5
SILOS = ("north", "south", "west")
ACCOUNT = Account(data="clinics")


@dataclass(frozen=True)
class Counting:
    """An accountant that counts steps."""

    name: str = "counting"
    version: str = "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        match event:
            case NoOpDpEvent():
                return 0.0
            case NonPrivateDpEvent():
                return math.inf
            case SelfComposedDpEvent(event=inner, count=count):
                return count * self.epsilon(inner, delta)
            case ComposedDpEvent(events=parts):
                return sum(self.epsilon(part, delta) for part in parts)
        return 1.0

    def way(self, event: DpEvent) -> str:
        return self.name

    def as_filter(self, limit: float | None) -> "Counting":
        return self


COUNTING = Counting()


def equal_terms(silos: Iterable[str] = SILOS, step: DpEvent | None = None, reach: int | None = None) -> Terms:
    """Every silo's step is the same, for a unit of any kind; it can be in all silos unless told otherwise."""
    silos, step = tuple(silos), step or gaussian(1.0)
    exposure = Exposure(reach or len(silos), dict.fromkeys(silos, step), step)
    return Terms(dict.fromkeys(Unit, exposure))


def opening(
    run: str = "first", account: Account = ACCOUNT, terms: Terms | None = None, spec: str = "a spec"
) -> RunOpened:
    """The opening of a run, on equal terms unless told otherwise."""
    written = TermsRecord.of(terms or equal_terms())
    return RunOpened(run=run, account=account, spec=spec, policy="subject_dp", noise="seeded", terms=written)


def budget(epsilon: float | None, account: Account = ACCOUNT, unit: Unit = Unit.SUBJECT) -> BudgetOpened:
    """The opening of an account."""
    return BudgetOpened(account=account, unit=unit, epsilon=epsilon, delta=DELTA)


def open_guard(
    epsilon: float | None = None,
    ledger: Ledger | None = None,
    *,
    run: str = "first",
    account: Account = ACCOUNT,
    terms: Terms | None = None,
    horizon: Mapping[str, int] | None = None,
    stream: str = "a stream",
    accountant: Accountant = COUNTING,
) -> Guard:
    """A guard over its own ledger in memory, unless told otherwise."""
    ledger = ledger or Ledger.in_memory()
    asked = opening(run, account, terms)
    return Guard.open(ledger, asked, budget(epsilon, account), horizon or {}, stream, accountant)


def reserved(
    round: int = 0, silo: str = "north", steps: int = 2, run: str = "first", stream: str = "s", start: str = "v"
) -> Reserved:
    """Some steps of one silo in one round."""
    return Reserved(run=run, round=round, silo=silo, steps=steps, stream=stream, start=start)


def released(of: Reserved) -> Released:
    """The note that a reservation's releases were made."""
    return Released(**of.model_dump(exclude={"kind", "steps"}))


def spent(guard: Guard) -> Mapping[str, int]:
    """Steps that the guard's run has reserved, by silo."""
    return guard.ledger.state.runs[guard.run].reserved


def confirmed(guard: Guard) -> Mapping[str, int]:
    """Steps that are known to have left the silos, by silo."""
    return guard.ledger.state.runs[guard.run].released
