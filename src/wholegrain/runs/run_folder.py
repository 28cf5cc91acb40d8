"""A run's folder: the exact spec and plan, one line per round, checkpoints, the model, and a summary.

Every file is written whole (to a neighbour, made durable, then renamed), except the rounds, which grow line by line. A
round's line is durable before its checkpoint, so that a checkpoint never knows more than the record. One process at
a time may write.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor

import wholegrain
from wholegrain import _check
from wholegrain._files import sync_folder, write_whole
from wholegrain._secrets import secret_key
from wholegrain.errors import RunError
from wholegrain.federation.rounds import State
from wholegrain.gradients.parameters import Layout
from wholegrain.runs.checkpoints import Checkpoints
from wholegrain.runs.data_description import count
from wholegrain.runs.observers import RoundDone
from wholegrain.runs.runner import PreparedRun, Run, StartState, open_guard
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec import load as load_spec
from wholegrain.runs.summary import plan_facts, read_round, round_facts, run_facts
from wholegrain.silo.training import Silo

FORMAT = 1
BATCHES = 20
"""Drawn in each silo of a simulation, to show how large a person's group gets in one."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path
    run: str

    @staticmethod
    def create(path: Path, prepared: PreparedRun) -> "RunFolder":
        """A new folder with spec, plan and the first parameters; one that already holds something is refused.

        It appears whole or not at all, with the run opened in its ledger; a run that its account cannot pay for leaves
        nothing behind.
        """
        require_free(path)
        run = secrets.token_hex(8)
        draft = path.with_name(f".{path.name}.{run}")
        try:
            draft.mkdir(parents=True)
            RunFolder(draft, run)._fill(prepared)
            os.rename(draft, path)
            sync_folder(path.parent)
        except OSError as error:
            raise RunError(f"The folder '{path}' cannot be written: {error.strerror}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return RunFolder(path, run)

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """The folder of an earlier run."""
        facts = _read(path / "run.json")
        if not {"format", "run", "spec"} <= set(facts):
            raise RunError(
                f"'{path / 'run.json'}' is damaged: it does not say which run this is; put it back, or start anew."
            )
        if facts["format"] != FORMAT or not re.fullmatch("[0-9a-f]{16}", str(facts["run"])):
            raise RunError(f"'{path}' was written by another version of wholegrain; use that one, or start anew.")
        return RunFolder(path, facts["run"])

    @property
    def spec(self) -> RunSpec:
        """The spec that the run was started with; a changed one is refused."""
        spec, identity = load_spec(self.path / "spec.json"), _read(self.path / "run.json")
        if spec.digest == identity.get("spec"):
            return spec
        version = identity.get("wholegrain")
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
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "summary.json").exists()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes here meanwhile; a lock that the system drops with the process, however it ends."""
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(f"The folder '{self.path}' cannot be written: {error.strerror}.") from error
        try:
            self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"Another process is at work in '{self.path}'; wait for it, or stop it.") from error
        except OSError as error:
            raise RunError(f"The folder '{self.path}' cannot be locked: {error.strerror}.") from error

    def start(self, prepared: PreparedRun) -> StartState:
        """Where the run goes on: at the last checkpoint that is whole and whose rounds are all on record."""
        self._require_same(prepared)
        done = self._rounds()
        state = self._checkpoints.latest(len(done), prepared.first)
        done = done[: state.round]
        try:
            self._write_text("rounds.jsonl", "".join(_line(each) for each in done))
        except OSError as error:
            raise RunError(f"The folder '{self.path}' cannot be written: {error.strerror}.") from error
        return StartState(state, done)

    def add_round(self, done: RoundDone, state: State, every: int) -> None:
        """Make a round last: its line, then (for every so many rounds) its parameters."""
        try:
            with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
                file.write(_line(done))
                file.flush()
                os.fsync(file.fileno())
            if state.round % every == 0:
                self._checkpoints.add(state)
        except OSError as error:
            raise RunError(
                f"Round {done.round} cannot be recorded in '{self.path}': {error.strerror}; what was recorded before is"
                f" whole. Make room, then `wholegrain resume {self.path}`."
            ) from error

    def finish(self, run: Run) -> None:
        """Write the model and the summary, which says that the run is at its end."""
        try:
            write_whole(self.path / "model.safetensors", save(_whole(run)))
            self._write("summary.json", run_facts(run))
        except OSError as error:
            raise RunError(f"The run cannot be saved in '{self.path}': {error.strerror}.") from error

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", self.run)

    def _fill(self, prepared: PreparedRun) -> None:
        identity = {
            "format": FORMAT,
            "run": self.run,
            "spec": prepared.spec.digest,
            "data": data_digest(prepared.silos, self._key(prepared)),
            "key": "machine" if _is_release(prepared) else "run",
            "start": prepared.public.get("digest"),
            "wholegrain": wholegrain.__version__,
        }
        self._write("spec.json", prepared.spec.model_dump(mode="json"))
        self._write("plan.json", plan_facts(prepared.plan))
        if prepared.public:
            self._write("public.json", prepared.public)
        self._write_text("rounds.jsonl", "")
        if prepared.spec.privacy.noise == "seeded" and prepared.silos:
            # Counts of raw data: a simulation may show them, a release must not.
            self._write("data.json", {"private": False, **count(prepared.spec, prepared.silos, BATCHES)})
        self._checkpoints.path.mkdir()
        self._checkpoints.add(State(0, prepared.first))
        self._write("run.json", identity)
        with open_guard(prepared, self.run, self.path):
            pass

    def _require_same(self, prepared: PreparedRun) -> None:
        """Refuse to go on with other data or another plan: the same noise on other data would show the difference."""
        identity = _read(self.path / "run.json")
        # Runs of 0.1.0 name no key: theirs was the run's own name.
        keyed = self._key(prepared) if identity.get("key") == "machine" else self.run.encode()
        if data_digest(prepared.silos, keyed) != identity.get("data"):
            elsewhere = ", or it was started on another machine, which has the key" if _is_release(prepared) else ""
            raise RunError(
                f"The data is not what the run in '{self.path}' was started with{elsewhere}; put it back, or start a"
                " new run."
            )
        if prepared.public.get("digest") != _read(self.path / "run.json").get("start"):
            raise RunError(
                f"The backbone is not the one that the run in '{self.path}' was started from; put it back, or start a"
                " new run."
            )
        if json.loads(json.dumps(plan_facts(prepared.plan))) != _read(self.path / "plan.json"):
            raise RunError(
                f"This version of wholegrain plans the run in '{self.path}' differently; go on with the version that"
                " started it, or start a new run."
            )

    def _key(self, prepared: PreparedRun) -> bytes:
        """What the data's digest is keyed with.

        Private: without the key, whoever reads run.json could try guesses of the data against its digest. The key of a
        release is drawn by the operating system, and stays on this machine, outside the folder.
        """
        secret = secret_key("digests of data") if _is_release(prepared) else b""
        return secret + self.run.encode()

    def _rounds(self) -> tuple[RoundDone, ...]:
        """The rounds on record, up to the first line that is not whole."""
        found: list[RoundDone] = []
        try:
            lines = (self.path / "rounds.jsonl").read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError as error:
            raise RunError(f"The record '{self.path / 'rounds.jsonl'}' cannot be read: {error.strerror}.") from error
        for line in lines[:-1]:  # what follows the last newline was cut short
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                found.append(read_round(json.loads(line)))
                if found[-1].round == len(found) - 1:
                    continue
                found.pop()
            break
        return tuple(found)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self._write_text(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode())


def _whole(run: Run) -> dict[str, Tensor]:
    """The trained parameters by name; beside a frozen part, all of the model, so that the file can be used alone."""
    trained = {name: value.contiguous() for name, value in Layout.of(run.model).views(run.vector).items()}
    if all(parameter.requires_grad for parameter in run.model.parameters()):
        return trained
    return {name: value.contiguous() for name, value in run.model.state_dict().items()} | trained


def _is_release(prepared: PreparedRun) -> bool:
    """Whether private data is released from here: a server has none, a simulation protects nobody."""
    return prepared.spec.privacy.noise == "secure" and bool(prepared.silos)


def data_digest(silos: Mapping[str, Silo], key: bytes) -> str:
    """What tells the silos' data from any other, for whoever knows the key."""
    digest = hashlib.blake2b(key=key, digest_size=32)
    for name, silo in silos.items():
        digest.update(name.encode())
        for array in (silo.data.inputs, silo.data.targets, silo.data.subjects):
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def require_free(path: Path) -> None:
    """Refuse a path that already holds something, so that no run is overwritten."""
    if path.name in ("", ".."):
        raise RunError(f"'{path}' cannot be the folder of a run; name a new one with --out.")
    try:
        taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise RunError(f"The folder '{path}' cannot be used: {error.strerror}.") from error
    if taken:
        raise RunError(f"'{path}' already exists and is not empty; choose another --out.")


def _line(done: RoundDone) -> str:
    return json.dumps(round_facts(done), ensure_ascii=False) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"'{path.parent}' holds no run: there is no {path.name} in it.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"'{path}' cannot be read: {_check.reason(error)}.") from error
    if not isinstance(content, dict):
        raise RunError(f"'{path}' cannot be read: it holds no sections.")
    return content
