"""What a run's folder holds, as a report needs it. Unfinished runs are read as far as they got; nothing is written."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from wholegrain.errors import LedgerError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.models.backbone import PublicStart
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Guarantee, Standing, Unit
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.tradeoff_curve import AttackView, attack_view
from wholegrain.runs.accounts import AccountState, account_state, require_known, spent_guarantee
from wholegrain.runs.data_description import DataCounts
from wholegrain.runs.ledger_registry import ledger_path
from wholegrain.runs.plan_record import PlanRecord, proper
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.run_identity import RunIdentity
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.setting_origins import Origins
from wholegrain.runs.spec import RunSpec


@dataclass(frozen=True)
class LedgerCheck:
    """What checking the ledger found: a sentence, and whether all is well."""

    whole: bool
    sentence: str


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

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    @property
    def simulation(self) -> bool:
        """Whether its noise can be had again by whoever knows the seed."""
        return self.spec.privacy.noise == "seeded"

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


def read_runs(folders: list[Path]) -> list[RunRecord]:
    """The runs in these folders, each under a name of its own."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [read_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def read_run(path: Path, name: str) -> RunRecord:
    """The run in a folder."""
    folder = RunFolder.open(path)
    spec, plan, summary = folder.kept_spec, folder.plan, folder.summary
    check, spent, account = _account(folder, spec, plan, summary)
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
        ledger=check,
        spent=spent,
        account=account,
        origins=folder.origins,
        attacks=_attacks(folder, spec, spent),
    )


def _attacks(folder: RunFolder, spec: RunSpec, spent: tuple[Guarantee, ...]) -> tuple[AttackView, ...]:
    """A subject's view and an item's, of what the ledger says was released."""
    proved = [each for each in spent if each.standing is Standing.PROVED and each.unit in (Unit.SUBJECT, Unit.ITEM)]
    pricing = accountant(spec.privacy.accountant)
    try:
        with Ledger.open(ledger_path(spec, folder.path) or Path(), create=False) as ledger:
            released = ledger.book.runs[folder.run].spending
    except (LedgerError, KeyError):
        return ()
    views = [
        attack_view(each.unit, released.terms.event(each.unit, released.steps, released.scores), each.delta, pricing)
        for each in proved
    ]
    return tuple(view for view in views if view is not None)


def _account(
    folder: RunFolder, spec: RunSpec, plan: PlanRecord, summary: RunSummary | None
) -> tuple[LedgerCheck, tuple[Guarantee, ...], AccountState | None]:
    """What the ledger says of itself and of the run; without it, what the run's own summary has noted."""
    pricing, run = accountant(spec.privacy.accountant), folder.run
    try:
        with Ledger.open(ledger_path(spec, folder.path) or Path(), create=False) as ledger:
            book = ledger.book
            require_known(ledger, run)
            check = LedgerCheck(True, f"{ledger.head.number} entries, every one verified; head {ledger.head.hash}")
            spent = tuple(spent_guarantee(planned, book.runs[run], pricing) for planned in plan.guarantees)
            return check, spent, account_state(book, run, pricing)
    except LedgerError as error:
        noted = () if summary is None else summary.spent
        return LedgerCheck(False, str(error)), noted or tuple(map(_without_ledger, plan.guarantees)), None


def _without_ledger(planned: Guarantee) -> Guarantee:
    """Nothing is proved of a run that goes on if nobody knows what it has spent."""
    if planned.standing is not Standing.PROVED:
        return planned
    why = "its ledger cannot be read, so nobody knows what was spent"
    return replace(planned, epsilon=math.inf, standing=Standing.NONE, because=why)
