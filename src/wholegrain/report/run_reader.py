"""What a run's folder holds, as a report needs it. Unfinished runs are read as far as they got; nothing is written."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wholegrain.errors import LedgerError, RunError
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_state import RunAccount
from wholegrain.privacy.statement import run_price
from wholegrain.runs.accounts import account_state, because, require_known
from wholegrain.runs.json_numbers import finite
from wholegrain.runs.ledger_registry import ledger_path
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.spec import RunSpec, load
from wholegrain.runs.summary import account_facts

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class LedgerCheck:
    """What checking the ledger found: a sentence, and whether all is well."""

    whole: bool
    sentence: str


@dataclass(frozen=True)
class RunRecord:
    """One run as its folder tells it."""

    name: str
    path: Path
    spec: RunSpec
    plan: Facts
    identity: Facts
    rounds: tuple[Facts, ...]
    summary: Facts | None
    counts: Facts | None
    public: Facts | None
    ledger: LedgerCheck
    spent: tuple[Facts, ...]
    """The plan's guarantees with what the ledger says was spent of each."""
    account: Facts | None
    """Where the account stands, if its ledger can be read."""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    @property
    def simulation(self) -> bool:
        """Whether its noise can be had again by whoever knows the seed."""
        return self.spec.privacy.noise == "seeded"

    @property
    def promised(self) -> Facts:
        """What is proved of what was released, for the unit that the budget protects, or why nothing is."""
        return _proper(self.spent, self.plan["unit"])

    @property
    def planned(self) -> Facts:
        """What the plan promised that unit."""
        return _proper(self.plan["guarantees"], self.plan["unit"])

    @property
    def claimed(self) -> Facts | None:
        """What the paper claims of it."""
        return next((found for found in self.plan["guarantees"] if found["standing"] == "CLAIMED"), None)


def _proper(guarantees: Iterable[Facts], unit: str) -> Facts:
    return next(found for found in guarantees if found["unit"] == unit and found["standing"] != "CLAIMED")


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


def read_run(folder: Path, name: str) -> RunRecord:
    """The run in a folder."""
    RunFolder.open(folder)  # which says what is wrong with a folder that is none
    spec, plan, identity = load(folder / "spec.json"), _json(folder / "plan.json"), _json(folder / "run.json")
    summary = _json(folder / "summary.json") if (folder / "summary.json").exists() else None
    verified, spent, account = _account(spec, folder, plan, identity, summary)
    return RunRecord(
        name=name,
        path=folder,
        spec=spec,
        plan=plan,
        identity=identity,
        rounds=_lines(folder / "rounds.jsonl"),
        summary=summary,
        counts=_json(folder / "data.json") if (folder / "data.json").exists() else None,
        public=_json(folder / "public.json") if (folder / "public.json").exists() else None,
        ledger=verified,
        spent=spent,
        account=account,
    )


def _account(
    spec: RunSpec, folder: Path, plan: Facts, identity: Facts, summary: Facts | None
) -> tuple[LedgerCheck, tuple[Facts, ...], Facts | None]:
    """What the ledger says of itself and of the run; without it, what the run's own summary has noted."""
    pricing, run = accountant(spec.privacy.accountant), str(identity.get("run"))
    try:
        with Ledger.open(ledger_path(spec, folder) or Path(), create=False) as ledger:
            book = ledger.book
            require_known(ledger, run)
            verified = LedgerCheck(True, f"{ledger.head.number} entries, every one verified; head {ledger.head.hash}")
            spent = tuple(_with_spent(planned, book.runs[run], pricing) for planned in plan["guarantees"])
            return verified, spent, account_facts(account_state(book, run, pricing))
    except LedgerError as error:
        noted = tuple(_unknown(planned) for planned in plan["guarantees"])
        if summary is not None and "spent" in summary:
            noted = tuple(summary["spent"])
        return LedgerCheck(False, str(error)), noted, None


def _with_spent(planned: Facts, run: RunAccount, pricing: Accountant) -> Facts:
    """A guarantee of the plan with what was spent of it."""
    if planned["standing"] != "PROVED":
        return planned
    found = run_price(run, Unit(planned["unit"]), pricing, planned["delta"])
    return {
        **planned,
        "epsilon": finite(found.epsilon),
        "accountant": found.way,
        "because": because(planned["because"], run),
    }


def _unknown(planned: Facts) -> Facts:
    """Nothing is proved of a run that goes on if nobody knows what it has spent."""
    if planned["standing"] != "PROVED":
        return planned
    why = "its ledger cannot be read, so nobody knows what was spent"
    return {**planned, "epsilon": None, "standing": "NONE", "because": why}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"'{path}' cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise RunError(f"'{path}' cannot be read: it holds no sections.")
    return content


def _lines(path: Path) -> tuple[Facts, ...]:
    """Whole lines only: a run that goes on may be writing the last one."""
    try:
        *lines, _ = path.read_text(encoding="utf-8").split("\n")
        return tuple(json.loads(line) for line in lines)
    except (OSError, ValueError) as error:
        raise RunError(f"'{path}' cannot be read: {error}.") from error
