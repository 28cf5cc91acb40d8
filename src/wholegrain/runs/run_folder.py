"""A run's folder: the exact spec and plan, one line per round, checkpoints, the model, and a summary.

Every file is written whole (to a neighbour, made durable, then renamed), except the rounds, which grow line by line. A
round's line is durable before its checkpoint, so that a checkpoint never knows more than the record. One process at
a time may write.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

import wholegrain
from wholegrain._files import PRIVATE_FOLDER, close_to_others, date_alike, sync_folder, write_whole
from wholegrain.clipping.parameters import Layout
from wholegrain.errors import RunError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.federation.rounds import State
from wholegrain.models.backbone import PublicStart
from wholegrain.runs.checkpoints import Checkpoints
from wholegrain.runs.data_description import DataCounts, count
from wholegrain.runs.folder_lock import LOCK
from wholegrain.runs.model_file import MODEL, write_model
from wholegrain.runs.plan_record import PlanRecord
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_identity import RunIdentity, data_digest, data_key, is_release, read_json
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.runner import StartState, open_guard
from wholegrain.runs.setting_origins import Origin, Origins
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec import load as load_spec

IDENTITY, PLAN, ROUNDS, SUMMARY = "run.json", "plan.json", "rounds.jsonl", "summary.json"
ORIGINS = "origins.json"
BATCHES, MOST_BATCHES = 20, 2000
"""Drawn in each silo of a simulation, and in all of them, to show how large a person's group gets in one."""

Content = TypeVar("Content")


@dataclass(frozen=True)
class PaidRun:
    """A run that was paid for before it had a folder; `ledger`, where it is given, is to be kept in that folder."""

    run: str
    ledger: Path | None = None


def new_run() -> str:
    """A name that no other run has."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: what is read from one, and what is written to one, is read and written here."""

    path: Path
    run: str

    @staticmethod
    def create(path: Path, prepared: PreparedRun, paid: PaidRun | None = None) -> "RunFolder":
        """A new folder with spec, plan and the first parameters; one that already holds something is refused.

        It appears whole or not at all, with the run opened in its ledger, unless it was `paid` for before; a run that
        its account cannot pay for leaves nothing behind.
        """
        require_free(path)
        run = new_run() if paid is None else paid.run
        draft = path.with_name(f".{path.name}.{run}")
        try:
            draft.mkdir(parents=True, mode=PRIVATE_FOLDER if is_release(prepared) else 0o777)
            kept = RunFolder(draft, run)
            kept._fill(prepared, paid)
            kept.seal()
            os.rename(draft, path)
            sync_folder(path.parent)
        except OSError as error:
            raise RunError(f"The folder '{path}' cannot be written: {error.strerror}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return RunFolder(path, run)

    @staticmethod
    def holds_run(path: Path) -> bool:
        """Whether a run was started in this folder."""
        return (path / IDENTITY).exists()

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """The folder of an earlier run."""
        return RunFolder(path, RunIdentity.read(path / IDENTITY).run)

    @property
    def identity(self) -> RunIdentity:
        """Which run this is."""
        return RunIdentity.read(self.path / IDENTITY)

    @property
    def spec(self) -> RunSpec:
        """The spec that the run was started with; a changed one is refused."""
        spec, identity = self.kept_spec, self.identity
        if spec.digest == identity.spec:
            return spec
        version = identity.wholegrain
        if version != wholegrain.__version__:
            raise RunError(
                f"The run in '{self.path}' was started by version {version} of wholegrain, and this is version"
                f" {wholegrain.__version__}, whose specs say more; go on with that version, or start a new run."
            )
        raise RunError(
            f"The spec in '{self.path}' is not the one that the run was started with; put it back, or start a new"
            " run with it."
        )

    @property
    def kept_spec(self) -> RunSpec:
        """The spec as it stands in the folder, whether or not this version would go on with it."""
        return load_spec(self.path / "spec.json")

    @property
    def plan(self) -> PlanRecord:
        """What was planned."""
        return self._read(PLAN, PlanRecord.read)

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """All rounds on record; a damaged line is refused, the last one may still be written."""
        lines = self._lines()
        found = _whole_rounds(lines)
        if len(found) < len(lines):
            raise RunError(
                f"Line {len(found) + 1} of '{self.path / ROUNDS}' cannot be read: it is no record of a round."
            )
        return found

    @property
    def summary(self) -> RunSummary | None:
        """What the run says of itself in the end; None where it has not come to it."""
        return self._read(SUMMARY, RunSummary.read) if self.finished else None

    @property
    def public(self) -> PublicStart | None:
        """The public parameters that the run starts from, if any."""
        there = (self.path / "public.json").exists()
        return self._read("public.json", lambda facts: PublicStart(**facts)) if there else None

    @property
    def origins(self) -> Origins:
        """Where each setting comes from; runs of earlier versions do not say."""
        if not (self.path / ORIGINS).exists():
            return {}
        return self._read(ORIGINS, lambda facts: {place: Origin(word) for place, word in facts.items()})

    @property
    def counts(self) -> DataCounts | None:
        """Counts of the raw data, which only a simulation keeps."""
        return self._read("data.json", DataCounts.read) if (self.path / "data.json").exists() else None

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / SUMMARY).exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else writes here meanwhile; a lock that the system drops with the process, however it ends."""
        try:
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(f"The folder '{self.path}' cannot be written: {error.strerror}.") from error
        try:
            self._take_lock(handle)
            yield
        finally:
            os.close(handle)

    def _take_lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"Another process is at work in '{self.path}'; wait for it, or stop it.") from error
        except OSError as error:
            raise RunError(f"The folder '{self.path}' cannot be locked: {error.strerror}.") from error

    def start(self, prepared: PreparedRun) -> StartState:
        """Where the run goes on: at the last checkpoint that is whole and whose rounds are all on record."""
        self._require_same(prepared)
        done = _whole_rounds(self._lines())
        state = self._checkpoints.latest(len(done), prepared.first)
        done = done[: state.round]
        try:
            self._write_text(ROUNDS, "".join(each.line() for each in done))
            self._remove_partial_files()
        except OSError as error:
            raise RunError(f"The folder '{self.path}' cannot be written: {error.strerror}.") from error
        return StartState(state, done)

    def add_round(self, done: RoundRecord, state: State, every: int) -> None:
        """Make a round last: its line, then (for every so many rounds) its parameters. What fails can be done again."""
        try:
            with self._line_added(done.line().encode()):
                if state.round % every == 0:
                    self._checkpoints.add(state)
            self.seal()
        except OSError as error:
            raise RunError(
                f"Round {done.round} cannot be recorded in '{self.path}': {error.strerror}; what was recorded before is"
                f" whole. Make room, then `wholegrain resume {self.path}`."
            ) from error

    @contextlib.contextmanager
    def _line_added(self, line: bytes) -> Iterator[None]:
        """With one more line on record, which is taken back if what follows it fails; a line is not added twice."""
        path = self.path / ROUNDS
        before = path.stat().st_size
        try:
            if not path.read_bytes().endswith(line):
                with path.open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            yield
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)
            raise

    def add_earlier_rounds(self, rounds: Iterable[RoundRecord]) -> None:
        """The lines of rounds that were played before the folder was there."""
        try:
            self._write_text(ROUNDS, "".join(done.line() for done in rounds))
        except OSError as error:
            raise RunError(f"The folder '{self.path}' cannot be written: {error.strerror}.") from error

    def finish(self, run: RunResult) -> None:
        """Write the model and the summary, which says that the run is at its end."""
        try:
            write_model(self.path / MODEL, run, _whole(run))
            self._write(SUMMARY, RunSummary.of(run).facts())
            self.seal()
        except OSError as error:
            raise RunError(f"The run cannot be saved in '{self.path}': {error.strerror}.") from error

    def seal(self) -> None:
        """Close a release to others, and date its files as its beginning.

        Scores without noise are among what it records, and a folder is passed on with the dates of its files.
        """
        if self.identity.key == "machine":
            for path in (self.path, *self.path.rglob("*")):
                close_to_others(path)
            date_alike(self.path, (self.path / IDENTITY).stat().st_mtime)

    def _remove_partial_files(self) -> None:
        """What a killed process had begun to write, of which a resumed one may have no more to write."""
        for folder in (self.path, self._checkpoints.path):
            for left in folder.glob("*.partial"):
                left.unlink(missing_ok=True)

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", self.run)

    def _fill(self, prepared: PreparedRun, paid: PaidRun | None = None) -> None:
        self._write("spec.json", prepared.spec.model_dump(mode="json"))
        self._write(PLAN, PlanRecord.of(prepared.plan).facts())
        self._write(ORIGINS, dict(prepared.origins))
        if prepared.public is not None:
            self._write("public.json", prepared.public.facts())
        self._write_text(ROUNDS, "")
        if prepared.spec.privacy.noise == "seeded" and prepared.silos:
            # Counts of raw data: a simulation may show them, a release must not.
            batches = max(1, min(BATCHES, MOST_BATCHES // len(prepared.silos)))
            counts = count(prepared.spec, prepared.silos, batches)
            self._write("data.json", {"private": False, **counts.facts()})
        self._checkpoints.path.mkdir()
        self._checkpoints.add(State(0, prepared.first))
        self._write(IDENTITY, asdict(RunIdentity.of(self.run, prepared)))
        if paid is None:
            with open_guard(prepared, self.run, self.path):
                pass
        elif paid.ledger is not None:
            for file in (paid.ledger, paid.ledger.with_name(f"{paid.ledger.name}.heads")):
                write_whole(self.path / file.name, file.read_bytes(), private=True)

    def _require_same(self, prepared: PreparedRun) -> None:
        """Refuse to go on with other data or another plan: the same noise on other data would show the difference."""
        identity = self.identity
        key = data_key(self.run, prepared) if identity.key == "machine" else self.run.encode()
        if data_digest(prepared.silos, key) != identity.data:
            elsewhere = ", or it was started on another machine, which has the key" if is_release(prepared) else ""
            raise RunError(
                f"The data is not what the run in '{self.path}' was started with{elsewhere}; put it back, or start a"
                " new run."
            )
        if (None if prepared.public is None else prepared.public.digest) != identity.start:
            raise RunError(
                f"The backbone is not the one that the run in '{self.path}' was started from; put it back, or start a"
                " new run."
            )
        if json.loads(json.dumps(PlanRecord.of(prepared.plan).facts())) != read_json(self.path / PLAN):
            raise RunError(
                f"This version of wholegrain plans the run in '{self.path}' differently; go on with the version that"
                " started it, or start a new run."
            )

    def _lines(self) -> list[str]:
        """The lines of the rounds; what follows the last newline was cut short, or is being written."""
        try:
            return (self.path / ROUNDS).read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        except OSError as error:
            raise RunError(f"The record '{self.path / ROUNDS}' cannot be read: {error.strerror}.") from error

    def _read(self, name: str, read: Callable[[Mapping[str, Any]], Content]) -> Content:
        """What a file holds."""
        content = read_json(self.path / name)
        try:
            return read(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"'{self.path / name}' cannot be read: it is not what a run writes there.") from error

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self._write_text(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode())


def _whole(run: RunResult) -> dict[str, Tensor]:
    """The trained parameters by name; beside a frozen part, all of the model, so that the file can be used alone."""
    trained = {name: value.contiguous() for name, value in Layout.of(run.model).views(run.vector).items()}
    if all(parameter.requires_grad for parameter in run.model.parameters()):
        return trained
    return {name: value.contiguous() for name, value in run.model.state_dict().items()} | trained


def require_free(path: Path) -> None:
    """Refuse a path that already holds something, so that no run is overwritten."""
    if path.name in ("", ".."):
        raise RunError(f"'{path}' cannot be the folder of a run; name a new one with --out.")
    try:
        taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise RunError(f"The folder '{path}' cannot be used: {error.strerror}.") from error
    if taken:
        raise RunError(f"'{path}' already exists and is not empty; choose another folder.")


def _whole_rounds(lines: list[str]) -> tuple[RoundRecord, ...]:
    """The rounds of these lines, up to the first that is not whole, or not the next."""
    found: list[RoundRecord] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            record = RoundRecord.read(line)
            if record.round == len(found):
                found.append(record)
                continue
        break
    return tuple(found)
