"""A run that takes a moment, and ways to stop it."""

import functools
import io
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent

from wholegrain.cli import run_commands
from wholegrain.privacy.accountants import DEFAULT, Accountant
from wholegrain.runs.ledger_registry import LEDGER
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec

ROUNDS, STEPS, SILOS = 3, 2, 2
PLAYED = 14
"""Rounds of a release."""

SPEC = f"""
[data]
source = "clinics"
options = {{ patients = 40, clinics = {SILOS}, span = 2, visits = 4 }}
[policy]
name = "subject_dp"
rate = 0.5
[privacy]
epsilon = 4.0
noise_multiplier = 6.0
[rounds]
count = {ROUNDS}
steps = {STEPS}
"""


class Stopped(BaseException):
    """What stops a run in the middle; like a kill, nobody catches it."""


def write_spec(folder: Path, rounds: int = ROUNDS) -> Path:
    """The spec in a file; its folder is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spec.toml"
    path.write_text(SPEC.replace(f"count = {ROUNDS}", f"count = {rounds}"))
    return path


def secure_spec(folder: Path, **changes: Any) -> Path:
    """A release that is checkpointed at its beginning only; its account has room for more than it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = SPEC.replace("count = 3", f"count = {PLAYED}\ncheckpoint_every = 50").replace(
        "epsilon = 4.0", "epsilon = 9.0"
    )
    text = text.replace("[rounds]", 'noise = "secure"\n[rounds]')
    sizes = [f"clinic-{number} = {{ items = 60, subjects = 20 }}" for number in range(SILOS)]
    text += "\n".join(["[silos.sizes]", *sizes, "[ledger]", ""])
    for key, value in {"data": "patients", "epsilon": 40.0, **changes}.items():
        text += "" if value is None else f"{key} = {json.dumps(value)}\n"
    path = folder / "spec.toml"
    path.write_text(text)
    return path


class Remembering:
    """An accountant that is asked once: tests make hundreds of runs."""

    name, version = DEFAULT.name, DEFAULT.version

    @functools.cache  # noqa: B019 (there is one of it)
    def epsilon(self, event: DpEvent, delta: float) -> float:
        return DEFAULT.epsilon(event, delta)

    def way(self, event: DpEvent) -> str:
        return DEFAULT.way(event)

    def as_filter(self, limit: float | None) -> Accountant:
        return DEFAULT.as_filter(limit)


@functools.cache
def _prepared(spec: str, state: str) -> PreparedRun:
    return prepare(RunSpec.of(json.loads(spec)), pricing=PRICING)


def prepared(spec: RunSpec, pricing: object = None) -> PreparedRun:
    """What `prepare` gives, made once for each spec; what it leaves out is still left out.

    A release draws its subjects' coins with the machine's key, and every test has its own machine (a state folder).
    """
    state = os.environ["WHOLEGRAIN_STATE"] if spec.privacy.noise == "secure" else ""
    return _prepared(spec.model_dump_json(exclude_unset=True), state)


def start(out: Path, spec: Path | None = None) -> None:
    """`wholegrain run`, to the end."""
    run_commands.run(spec or write_spec(out.parent / "specs"), out=out, quiet=True)


def resume(out: Path) -> None:
    """`wholegrain resume`, to the end."""
    run_commands.resume(out, quiet=True)


def stop_after(out: Path, rounds: int, spec: Path | None = None, go: Callable[[Path], None] | None = None) -> RunFolder:
    """A run that was stopped when it had recorded so many rounds."""
    add_round = RunFolder.add_round
    with pytest.MonkeyPatch.context() as patch:

        def stopping(folder: RunFolder, done: Any, state: Any, every: int) -> None:
            add_round(folder, done, state, every)
            if state.round == rounds:
                raise Stopped

        patch.setattr(RunFolder, "add_round", stopping)
        with pytest.raises(Stopped):
            go(out) if go else start(out, spec)
    return RunFolder.open(out)


def model(out: Path) -> bytes:
    """The parameters that a finished run left."""
    return (out / "model.safetensors").read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    """All that is in a folder; the lock is no part of a run."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Faults:
    """Makes the n-th operation that writes anything fail, half done where that can be."""

    def __init__(self, at: int | None, error: int) -> None:
        self.at, self.error, self.calls = at, error, 0

    @property
    def met(self) -> bool:
        return self.at is not None and self.calls > self.at

    def due(self) -> bool:
        self.calls += 1
        return self.calls - 1 == self.at

    def fail(self) -> OSError:
        return OSError(self.error, os.strerror(self.error))

    def instead(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """An operation that does nothing when it fails."""

        def faulty(*arguments: Any, **named: Any) -> Any:
            cache = os.environ.get("WHOLEGRAIN_CACHE", "no cache")
            if str(arguments[0]).startswith(cache):  # whatever happens there is done without
                return operation(*arguments, **named)
            if self.due():
                raise self.fail()
            return operation(*arguments, **named)

        return faulty

    def opening(self, path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        """A file that writes the first half when it fails."""
        file = OPEN(path, mode, *arguments, **named)
        if "r" not in mode:
            write = file.write

            def writing(content: Any) -> int:
                if self.due():
                    write(content[: len(content) // 2])
                    file.flush()
                    raise self.fail()
                return int(write(content))

            file.write = writing
        return file

    def connecting(self, path: Any, *arguments: Any, **named: Any) -> sqlite3.Connection:
        """A database in which the disk is full when a statement that writes fails."""
        faults = self

        class Faulty(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if sql.startswith(("BEGIN", "CREATE", "INSERT", "COMMIT")) and faults.due():
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(sql, *values)

        ours = Path(path).name == LEDGER
        return CONNECT(path, *arguments, **named, **({"factory": Faulty} if ours else {}))

    @contextmanager
    def injected(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "mkdir", "rename", "replace", "write"):
                patch.setattr(os, name, self.instead(getattr(os, name)))
            patch.setattr(io, "open", self.opening)
            patch.setattr(sqlite3, "connect", self.connecting)
            yield


OPEN, CONNECT, PRICING = io.open, sqlite3.connect, Remembering()
