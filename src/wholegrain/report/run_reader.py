"""What a run's folder holds, as a report needs it. Unfinished runs are read as far as they got; nothing is written."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from wholegrain.errors import LedgerError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.models.backbone import PublicStart
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Guarantee, Standing, Unit
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_state import RunAccount
from wholegrain.privacy.tradeoff_curve import AttackView, attack_view
from wholegrain.runs.accounts import AccountState, account_state, require_known, spent_guarantee
from wholegrain.runs.data_description import DataCounts
from wholegrain.runs.folder_lock import is_locked
from wholegrain.runs.ledger_registry import ledger_path
from wholegrain.runs.plan_record import PlanRecord, proper
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.run_identity import RunIdentity
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.setting_origins import Origins, name_tuned
from wholegrain.runs.spec import RunSpec


@dataclass(frozen=True)
class LedgerCheck:
    """What checking the ledger found: a sentence, and whether all is well."""

    whole: bool
    sentence: str
    identity: str | None = None
    """Which ledger it is: two runs in one ledger are added up there."""


@dataclass(frozen=True)
class RunRecord:
    """One run as its folder and its ledger tell it."""

    name: str
    path: Path
    spec: RunSpec
    plan: PlanRecord
    identity: RunIdentity
    rounds: tuple[RoundRecord, ...]
    summary: RunSummary | None
    counts: DataCounts | None
    public: PublicStart | None
    ledger: LedgerCheck
    spent: tuple[Guarantee, ...]
    """The plan's guarantees with what the ledger says was spent of each."""
    account: AccountState | None
    """Where the account stands, if its ledger can be read."""
    origins: Origins = field(default_factory=dict)
    """Where each setting comes from; runs of earlier versions do not say."""
    attacks: tuple[AttackView, ...] = ()
    """What was spent of each unit, as an attacker meets it."""
    times: tuple[datetime, datetime] | None = None
    """Of the run's first and last entry in its ledger."""
    worked_on: bool = False
    """Whether a process is at work on it."""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    @property
    def simulation(self) -> bool:
        """Whether its noise can be had again by whoever knows the seed."""
        return self.spec.privacy.noise == "seeded"

    @property
    def data(self) -> str:
        """The name under which the data's owner keeps its account; of a path, its last part."""
        named = self.account.account.data if self.account else self.spec.ledger.data or self.spec.data.source
        return Path(named).name or named

    @property
    def tuned(self) -> bool:
        """Whether it is the best of several trials, by a private score that was paid for."""
        return bool(name_tuned(self.origins, self.spec))

    @property
    def protects(self) -> bool:
        """Whether somebody is protected: by a proof, noise that nobody can take away, and a ledger that says so."""
        return self.promise.standing is Standing.PROVED and not self.simulation and self.ledger.whole

    @property
    def promise(self) -> Guarantee:
        """What is proved of what was released, for the unit that the budget protects, or why nothing is."""
        return proper(self.spent, self.plan.unit)


def may_begin_here(folder: Path) -> bool:
    """Whether a run may still begin here: its folder appears whole, so that one which holds other things is none."""
    try:
        return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError:  # whoever reads the folder says why it cannot be
        return False


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """The runs in these folders, each under a name of its own."""
    return [read_run(folder, name) for folder, name in zip(folders, name_folders(folders), strict=True)]


def read_run(path: Path, name: str, *, curves: bool = True) -> RunRecord:
    """The run in a folder. `curves`: with what an attacker can do, which takes the accountant some seconds."""
    folder = RunFolder.open(path)
    spec, plan, summary = folder.kept_spec, folder.plan, folder.summary
    told = _read_ledger(folder, spec, plan, summary)
    return RunRecord(
        name=name,
        path=path,
        spec=spec,
        plan=plan,
        identity=folder.identity,
        rounds=folder.rounds,
        summary=summary,
        counts=folder.counts,
        public=folder.public,
        ledger=told.check,
        spent=told.spent,
        account=told.account,
        origins=folder.origins,
        attacks=_attacks(told, spec) if curves else (),
        times=told.times,
        worked_on=summary is None and is_locked(path),
    )


def name_folders(folders: Sequence[Path]) -> list[str]:
    """The last parts of each path, as many as tell them apart; never the whole path of a machine, unless all is needed.

    >>> name_folders([Path("/home/me/a/run"), Path("/home/me/b/run")])
    ['a/run', 'b/run']
    """
    parts = [folder.resolve().parts[1:] or ("/",) for folder in folders]
    names: list[str] = []
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names


@dataclass(frozen=True)
class _LedgerFacts:
    """What a ledger tells of itself and of a run."""

    check: LedgerCheck
    spent: tuple[Guarantee, ...]
    account: AccountState | None = None
    times: tuple[datetime, datetime] | None = None
    run: RunAccount | None = None


def _read_ledger(folder: RunFolder, spec: RunSpec, plan: PlanRecord, summary: RunSummary | None) -> _LedgerFacts:
    """What the ledger says of itself and of the run; without it, what the run's own summary has noted."""
    pricing, run = accountant(spec.privacy.accountant), folder.run
    try:
        with Ledger.open(ledger_path(spec, folder.path) or Path(), create=False) as ledger:
            state = ledger.state
            require_known(ledger, run)
            sentence = f"{ledger.head.number} entries, every one verified; head {ledger.head.hash}"
            return _LedgerFacts(
                check=LedgerCheck(True, sentence, state.identity),
                spent=tuple(spent_guarantee(planned, state.runs[run], pricing) for planned in plan.guarantees),
                account=account_state(state, run, pricing),
                times=ledger.times_of(run),
                run=state.runs[run],
            )
    except LedgerError as error:
        noted = () if summary is None else summary.spent
        return _LedgerFacts(
            LedgerCheck(False, without_paths(str(error))), noted or tuple(map(_without_ledger, plan.guarantees))
        )


def without_paths(sentence: str) -> str:
    """The sentence with the last part of each quoted absolute path: what a machine looks like is nobody's business.

    >>> without_paths("There is no ledger '/home/me/ledger.sqlite'.")
    "There is no ledger 'ledger.sqlite'."
    """
    return re.sub(r"'/[^']*?([^'/]+)/?'", r"'\1'", sentence)


def _attacks(told: _LedgerFacts, spec: RunSpec) -> tuple[AttackView, ...]:
    """A subject's view and an item's, of what the ledger says was released."""
    if told.run is None:
        return ()
    released, pricing = told.run.spending, accountant(spec.privacy.accountant)
    views = [
        attack_view(each.unit, released.terms.event(each.unit, released.steps, released.scores), each.delta, pricing)
        for each in told.spent
        if each.standing is Standing.PROVED and each.unit in (Unit.SUBJECT, Unit.ITEM)
    ]
    return tuple(view for view in views if view is not None)


def _without_ledger(planned: Guarantee) -> Guarantee:
    """Nothing is proved of a run that goes on if nobody knows what it has spent."""
    if planned.standing is not Standing.PROVED:
        return planned
    why = "its ledger cannot be read, so nobody knows what was spent"
    return replace(planned, epsilon=math.inf, standing=Standing.NONE, because=why)
