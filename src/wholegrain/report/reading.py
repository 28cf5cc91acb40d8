"""What a run's folder holds, as a report needs it. Unfinished runs are read as far as they got; nothing is written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wholegrain.errors import LedgerError, RunError
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.accounts import ledger_path
from wholegrain.runs.spec import RunSpec, load
from wholegrain.runs.store import RunFolder

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Verified:
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
    ledger: Verified

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    @property
    def simulation(self) -> bool:
        """Whether its noise can be had again by whoever knows the seed."""
        return self.spec.privacy.noise == "seeded"

    def guarantees(self, standing: str) -> list[Facts]:
        """Its guarantees of one standing."""
        return [found for found in self.plan["guarantees"] if found["standing"] == standing]

    @property
    def promised(self) -> Facts:
        """What is proved for the unit that the budget protects, or why nothing is."""
        proper = [found for found in self.plan["guarantees"] if found["standing"] != "CLAIMED"]
        return next(found for found in proper if found["unit"] == self.plan["unit"])

    @property
    def claimed(self) -> Facts | None:
        """What the paper claims of it."""
        return next(iter(self.guarantees("CLAIMED")), None)


def is_awaited(folder: Path) -> bool:
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
    spec = load(folder / "spec.json")
    return RunRecord(
        name=name,
        path=folder,
        spec=spec,
        plan=_json(folder / "plan.json"),
        identity=_json(folder / "run.json"),
        rounds=_lines(folder / "rounds.jsonl"),
        summary=_json(folder / "summary.json") if (folder / "summary.json").exists() else None,
        counts=_json(folder / "data.json") if (folder / "data.json").exists() else None,
        public=_json(folder / "public.json") if (folder / "public.json").exists() else None,
        ledger=_verified(ledger_path(spec, folder)),
    )


def _verified(path: Path | None) -> Verified:
    try:
        with Ledger.open(path or Path(), create=False) as ledger:
            return Verified(True, f"{ledger.head.number} entries, every one verified; head {ledger.head.hash}")
    except LedgerError as error:
        return Verified(False, str(error))


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
