"""The one gate between a plan and its training: a round that the budget cannot pay for does not start."""

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, SupportsFloat

from wholegrain.errors import BudgetError, LedgerError, RefusalError
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import BudgetOpened, Released, Reserved, RunOpened
from wholegrain.privacy.ledger_state import LedgerState, RunAccount
from wholegrain.privacy.paid_ahead import PaidAhead
from wholegrain.privacy.pricing import NOTHING, Price, Releases
from wholegrain.privacy.statement import account_price, run_price


@dataclass(frozen=True, eq=False)
class Spent:
    """ε of what an account's runs have released, or one of them: a number that is computed when it is asked for."""

    opened: BudgetOpened
    runs: tuple[RunAccount, ...]
    accountant: Accountant
    run: str | None = None
    known: float | None = None

    @cached_property
    def _epsilon(self) -> float:
        if self.known is not None:
            return self.known
        if self.run is None:
            return account_price(self.opened, self.runs, self.accountant).epsilon
        own = next(run for run in self.runs if run.opening.run == self.run)
        return run_price(own, self.opened.unit, self.accountant, self.opened.delta).epsilon

    def __float__(self) -> float:
        return self._epsilon

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SupportsFloat) and self._epsilon == float(other)

    def __hash__(self) -> int:
        return hash(self._epsilon)

    def __repr__(self) -> str:
        return repr(self._epsilon)


@dataclass(frozen=True)
class Reservation:
    """Releases of one round that are paid for; what the run has spent with them, and the account."""

    releases: tuple[Reserved, ...]
    spent: SupportsFloat
    spent_by_account: SupportsFloat = math.nan

    @property
    def epsilon(self) -> float:
        """ε that the run has spent."""
        return float(self.spent)

    @property
    def account(self) -> float:
        """ε that all runs of its account have spent."""
        return float(self.spent_by_account)


@dataclass(frozen=True)
class Guard:
    """Reserves what is asked if all that the account ever paid for costs its budget at most together with it.

    The plan is priced once, to its end: a payment within it only compares counts (`paid_ahead`). What leaves it, and
    whatever comes beside it (rounds played again with fresh noise, other runs on the account), is priced as it comes.

    Guarantee: after `reserve` returns, everything ever reserved from the account costs its budget at most, whatever was
    asked, by whichever run or process, in whatever order. An account without a limit (a run that promises nothing, or
    one with its noise given) is only kept.

    `stream` names the noise: the same stream from the same parameters is the same release, and is paid for once. Noise
    that never comes again has no such name (None), and every release with it is a new one.
    """

    ledger: Ledger
    run: str
    stream: str | None
    accountant: Accountant
    ahead: PaidAhead

    @staticmethod
    def open(
        ledger: Ledger,
        run: RunOpened,
        budget: BudgetOpened,
        horizon: Releases,
        stream: str | None,
        accountant: Accountant,
        scores: Releases = NOTHING,
    ) -> "Guard":
        """The guard of a run that is to release `horizon` and `scores`; refused where its account cannot pay for it.

        The account is opened with `budget` unless it is there already. A run that is there already must have been
        opened on the same terms, and goes on.
        """
        ahead = PaidAhead(run.run, horizon, scores)
        with ledger.writing() as transaction:
            known = transaction.state.runs.get(run.run)
            if known is not None and known.opening != run:
                raise LedgerError(
                    f"The ledger knows the run '{run.run}' on other terms; a changed run is a new run: start it anew."
                )
            opened = transaction.state.budgets.get(run.account)
            _require_same(opened or budget, budget)
            if known is None:
                before = transaction.state.runs_of(run.account)
                _require_room(opened or budget, before, run.run)
                after = [*before, RunAccount(run, horizon, scored=scores)]
                _require_paid(opened or budget, before, after, "The run", accountant)
                ahead.keep(after)
                transaction.add(*([] if opened else [budget]), run)
        return Guard(ledger, run.run, stream, accountant, ahead)

    @property
    def budget(self) -> BudgetOpened:
        """The account's budget."""
        return _budget(self.ledger.state, self.run)

    def reserve(
        self,
        round: int,
        steps: Mapping[str, int],
        start: str,
        once_among: str | None = None,
        confirming: Reservation | None = None,
    ) -> Reservation:
        """Pay for the steps of a round from the parameters `start`, or refuse and leave the ledger as it was.

        With `once_among`, a silo that was ever paid for this round, in any run whose name begins so, is refused. What
        is `confirming` has left its silos since it was paid for, and is noted in the same write.
        """
        asked = self._reservations(round, steps, start, "training")
        return self._pay(asked, f"Round {round}", once_among, confirming.releases if confirming else ())

    def reserve_scores(
        self, round: int, silos: Iterable[str], start: str, once_among: str | None = None
    ) -> Reservation:
        """Pay for one private score of the parameters `start` in each of these silos, before it is computed."""
        asked = self._reservations(round, dict.fromkeys(silos, 1), start, "scores")
        return self._pay(asked, f"The private scores of round {round}", once_among)

    def _pay(
        self, asked: tuple[Reserved, ...], who: str, once_among: str | None = None, left: tuple[Reserved, ...] = ()
    ) -> Reservation:
        with self.ledger.writing() as transaction:
            for each in asked if once_among is not None else ():
                if transaction.state.was_played(once_among or "", each):
                    raise RefusalError("secure_sum", f"round {each.round} was answered before, and is answered once")
            fresh = tuple(release for release in asked if not transaction.state.holds(release))
            opened = _budget(transaction.state, self.run)
            after = transaction.state.runs_of(opened.account, fresh)
            _require_room(opened, after, self.run)
            known = self._require_paid(opened, transaction.state, after, who) if fresh else None
            transaction.add(*_notes(transaction.state, left), *fresh)
        account = Spent(opened, tuple(after), self.accountant, known=known)
        own = account if opened.runs == "one" else Spent(opened, account.runs, self.accountant, self.run)
        return Reservation(asked, own, account)

    def _require_paid(
        self, opened: BudgetOpened, state: LedgerState, after: list[RunAccount], who: str
    ) -> float | None:
        """Refuse what the budget cannot pay for; ε after it, where that had to be computed."""
        if opened.epsilon is None or self.ahead.covers(after):
            return None
        planned = self.ahead.with_plan(after)
        if planned is not None and planned != after:
            if account_price(opened, planned, self.accountant).epsilon <= opened.epsilon:
                self.ahead.keep(planned)
                return None
            self.ahead.give_up()
        return _require_paid(opened, state.runs_of(opened.account), after, who, self.accountant).epsilon

    def require_paid(self, releases: Releases) -> None:
        """Refuse a ledger that knows less of this run than it has released: it was put back to an earlier state."""
        reserved = self.ledger.state.runs[self.run].reserved
        if any(reserved.get(silo, 0) < steps for silo, steps in releases.items()):
            raise LedgerError(
                f"The ledger '{self.ledger.path}' knows less than the run '{self.run}' has released: it was put back to"
                " an earlier state; get the later one."
            )

    def confirm(self, reservation: Reservation, silos: Iterable[str]) -> None:
        """Note that the releases of these silos have left them."""
        arrived = set(silos)
        with self.ledger.writing() as transaction:
            transaction.add(*_notes(transaction.state, (r for r in reservation.releases if r.silo in arrived)))

    def _reservations(
        self, round: int, steps: Mapping[str, int], start: str, purpose: Literal["training", "scores"]
    ) -> tuple[Reserved, ...]:
        stream = self.stream or f"once:{secrets.token_hex(16)}"
        return tuple(
            Reserved(run=self.run, round=round, silo=silo, steps=count, stream=stream, start=start, purpose=purpose)
            for silo, count in steps.items()
        )


def _notes(state: LedgerState, left: Iterable[Reserved]) -> list[Released]:
    """That these have left their silos, of which nothing is noted yet."""
    fresh = [release for release in left if not state.was_released(release)]
    return [Released(**release.model_dump(exclude={"kind", "steps"})) for release in fresh]


def _budget(state: LedgerState, run: str) -> BudgetOpened:
    return state.budgets[state.runs[run].opening.account]


def _require_same(opened: BudgetOpened, asked: BudgetOpened) -> None:
    """An account protects one unit at one δ: a price for another unit, or at another δ, says nothing about it."""
    if (opened.unit, opened.delta) != (asked.unit, asked.delta):
        raise BudgetError(
            f"The budget {opened.account} was opened for each {opened.unit} at δ = {opened.delta:g}, and the run is for"
            f" each {asked.unit} at δ = {asked.delta:g}; keep to it, or open another one by name (ledger.budget)."
        )


def _require_room(opened: BudgetOpened, runs: list[RunAccount], run: str) -> None:
    """An account for one run is that of the first to spend anything."""
    others = [other.opening.run for other in runs if other.has_spent and other.opening.run != run]
    if opened.runs == "one" and others:
        raise BudgetError(
            f"The budget {opened.account} is that of the run '{others[0]}' alone; open another one by name"
            " (ledger.budget), for which subjects pay as well, with ledger.epsilon if several runs are to share it."
        )


def _require_paid(
    opened: BudgetOpened, before: list[RunAccount], after: list[RunAccount], who: str, accountant: Accountant
) -> Price:
    """ε after what is asked, or a refusal that says what was asked and what is left."""
    found = account_price(opened, after, accountant)
    # Not `epsilon > budget`: a price that is not a number must not pass.
    if opened.epsilon is not None and after != before and not found.epsilon <= opened.epsilon:
        gone = account_price(opened, before, accountant)
        raise BudgetError(
            f"{who} would bring ε to {found.epsilon:.4g}; {gone.epsilon:.4g} of {opened.epsilon:g} is spent from the"
            f" budget {opened.account} (priced by {found.way}), so it is refused before any silo trains."
        )
    return found
