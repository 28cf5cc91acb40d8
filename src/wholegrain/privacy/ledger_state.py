"""What a ledger's entries add up to: accounts, runs, and what each run has released."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, Entry, Opened, Released, Reserved, RunOpened

if TYPE_CHECKING:  # pricing imports dp_accounting, which reading a ledger does without
    from wholegrain.privacy.pricing import Releases, Spending, Terms

Key = tuple[str, int, str, str, str, str]
"""What tells one release from all others: run, round, silo, purpose, stream of noise, and the parameters it started
from.
"""

Place = tuple[str, int, str, str]
"""A round of a silo, of training or of scores, however often it is played."""


@dataclass(frozen=True)
class RunAccount:
    """A run's opening, and steps reserved and released by each silo.

    `replayed` counts reservations of a silo for a round that it was already paid for: with secure noise, what is played
    again after a fault is a new release.
    """

    opening: RunOpened
    reserved: "Releases" = field(default_factory=Counter)
    released: "Releases" = field(default_factory=Counter)
    replayed: int = 0
    scored: "Releases" = field(default_factory=Counter)
    """Private scores that are paid for, by silo."""

    @property
    def terms(self) -> "Terms":
        """The terms on which it was opened."""
        return self.opening.terms.terms

    @property
    def has_spent(self) -> bool:
        """Whether anything was ever reserved."""
        return any(self.reserved.values()) or any(self.scored.values())

    @property
    def spending(self) -> "Spending":
        """What it has reserved, on its terms."""
        from wholegrain.privacy.pricing import Spending

        return Spending(self.terms, self.reserved, self.scored)

    def after(self, entry: Reserved, replayed: int = 0) -> "RunAccount":
        """The run when it has reserved this, too."""
        field = "scored" if entry.purpose == "scores" else "reserved"
        more = _with_steps(getattr(self, field), entry.silo, entry.steps)
        changes: dict[str, Any] = {field: more, "replayed": self.replayed + replayed}
        return replace(self, **changes)


@dataclass
class LedgerState:
    """The sum of all entries so far.

    Guarantee: whatever was reserved counts as spent, released or not; one release counts once, however often it was
    computed.
    """

    identity: str | None = None
    budgets: dict[Account, BudgetOpened] = field(default_factory=dict)
    runs: dict[str, RunAccount] = field(default_factory=dict)
    _reserved: dict[Key, int] = field(default_factory=dict)
    _released: set[Key] = field(default_factory=set)
    _played: set[Place] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        """Count one entry; one that contradicts the entries before it is refused."""
        match entry:
            case Opened():
                _require(self.identity is None, "the ledger is opened twice")
                self.identity = entry.identity
            case BudgetOpened():
                _require(entry.account not in self.budgets, f"the budget {entry.account} is opened twice")
                self.budgets[entry.account] = entry
            case RunOpened():
                _require(entry.account in self.budgets, f"the run '{entry.run}' spends from no budget")
                _require(entry.run not in self.runs, f"the run '{entry.run}' is opened twice")
                self.runs[entry.run] = RunAccount(entry)
            case Reserved():
                self._add_reserved(entry)
            case Released():
                self._add_released(entry)

    def holds(self, release: Reserved) -> bool:
        """Whether this very release is already paid for."""
        return self._reserved.get(_key(release)) == release.steps

    def was_released(self, release: Reserved) -> bool:
        """Whether this release is known to have left the silo."""
        return _key(release) in self._released

    def was_played(self, runs: str, asked: Reserved) -> bool:
        """Whether a silo was ever paid for this round and purpose, in a run whose name begins with `runs`."""
        _, *place = _place(asked)
        return any(each == place and run.startswith(runs) for run, *each in self._played)

    def runs_of(self, account: Account, more: Iterable[Reserved] = ()) -> list[RunAccount]:
        """The runs that spend from an account, in the order in which they were opened, and these releases on top."""
        runs = {run.opening.run: run for run in self.runs.values() if run.opening.account == account}
        for release in more:
            run = runs[release.run]
            runs[release.run] = run.after(release, _place(release) in self._played)
        return list(runs.values())

    def runs_on(self, data: str) -> list[RunAccount]:
        """The runs that spend from any budget that was ever opened on the data of this name."""
        return [run for run in self.runs.values() if run.opening.account.data == data]

    def _add_reserved(self, entry: Reserved) -> None:
        _require(entry.run in self.runs, f"the run '{entry.run}' was never opened")
        run = self.runs[entry.run]
        terms = run.opening.terms
        stated = (terms.exposures if entry.purpose == "training" else terms.scores) or {}
        known = bool(stated) and all(entry.silo in exposure.silos for exposure in stated.values())
        _require(known, f"the terms of the run '{entry.run}' do not name the silo '{entry.silo}'")
        _require(_key(entry) not in self._reserved, f"round {entry.round} of '{entry.silo}' is paid for twice")
        self._reserved[_key(entry)] = entry.steps
        self.runs[entry.run] = run.after(entry, _place(entry) in self._played)
        self._played.add(_place(entry))

    def _add_released(self, entry: Released) -> None:
        steps = self._reserved.get(_key(entry), 0)
        _require(steps > 0, f"round {entry.round} of '{entry.silo}' is released and was never paid for")
        _require(_key(entry) not in self._released, f"round {entry.round} of '{entry.silo}' is released twice")
        run = self.runs[entry.run]
        self._released.add(_key(entry))
        if entry.purpose == "training":
            self.runs[entry.run] = replace(run, released=_with_steps(run.released, entry.silo, steps))


def _with_steps(counts: "Releases", silo: str, steps: int) -> Counter[str]:
    """The counts with so many steps more of a silo."""
    # Not a sum of two counters, which goes through all silos in Python: of a thousand, that is most of a round.
    more = Counter(counts)
    more[silo] += steps
    return more


def _key(entry: Reserved | Released) -> Key:
    return entry.run, entry.round, entry.silo, entry.purpose, entry.stream, entry.start


def _place(entry: Reserved) -> Place:
    return entry.run, entry.round, entry.silo, entry.purpose


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise LedgerError(otherwise)
