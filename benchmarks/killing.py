"""Processes of the command line that can be killed at any instant, and a witness of their own for what they release.

A child of a parent that has imported everything starts in a millisecond, so that hundreds of kills take minutes; as a
script, this is a separate process that imports everything itself.

Run by crashes.py; alone: python benchmarks/killing.py FOLDER run spec.toml --out FOLDER/run
"""

import os
import signal
import sqlite3
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wholegrain.cli import app
from wholegrain.federation.rounds import digest
from wholegrain.runs.ledger_registry import LEDGER
from wholegrain.silo.training import Trainer

CRASHED = 70
"""The exit code of a child that fell over instead of ending."""

OPERATIONS = ("fsync", "mkdir", "rename", "replace", "unlink", "write")
"""What changes files, as the module `os` calls it."""

Release = tuple[int, str]
"""A round and a silo."""


@dataclass(frozen=True)
class Stage:
    """A place for one run: its folder, a log of its releases, and what it printed."""

    path: Path

    @property
    def out(self) -> Path:
        return self.path / "run"

    @property
    def log(self) -> Path:
        return self.path / "releases.log"

    @property
    def output(self) -> Path:
        return self.path / "output.txt"

    @property
    def ticks(self) -> Path:
        return self.path / "ticks.txt"

    @property
    def ledger(self) -> Path:
        """In the run's folder, or (for a run with secure noise) in the state folder that `play` sets."""
        own = self.out / LEDGER
        return own if own.exists() else self.path / "state" / LEDGER

    def command(self, spec: Path) -> list[str]:
        """How to go on: anew where there is no folder, and otherwise with a resume."""
        if self.out.exists():
            return ["resume", str(self.out), "--quiet"]
        return ["run", str(spec), "--out", str(self.out), "--quiet"]

    def releases(self) -> tuple[Counter[Release], int]:
        """Steps that were seen to be released, and how often a silo's round was computed again.

        The same update is the same release (seeded noise); another one is another release (secure noise).
        """
        updates: dict[Release, dict[str, int]] = {}
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        for line in lines:
            number, count, update, silo = line.split(" ", 3)
            updates.setdefault((int(number), silo), {})[update] = int(count)
        return Counter({release: sum(found.values()) for release, found in updates.items()}), len(lines) - len(updates)


class Trap:
    """Kills this process at its n-th tick; there is one before and one after each operation on files or the ledger."""

    def __init__(self, at: int | None) -> None:
        self.at, self.ticks = at, 0

    def tick(self) -> None:
        if self.ticks == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.ticks += 1

    def around(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*arguments: Any, **named: Any) -> Any:
            self.tick()
            result = operation(*arguments, **named)
            self.tick()
            return result

        return trapped

    def set(self) -> None:
        """Put the trap around everything that changes the disk, from this process's point of view."""
        for name in OPERATIONS:
            setattr(os, name, self.around(getattr(os, name)))
        connect, execute = sqlite3.connect, self.around(sqlite3.Connection.execute)
        tracked = type("Tracked", (sqlite3.Connection,), {"execute": execute})

        def connecting(path: Any, *arguments: Any, **named: Any) -> sqlite3.Connection:
            ours = Path(path).name == LEDGER
            return connect(path, *arguments, **named, **({"factory": tracked} if ours else {}))

        sqlite3.connect = connecting


def play(arguments: list[str], stage: Stage, trap: Trap | None = None) -> int:
    """The command in this process, with every release logged; its exit code."""
    os.environ["WHOLEGRAIN_STATE"] = str(stage.path / "state")
    output = os.open(stage.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _log_releases(stage.log)
    if trap is not None:
        trap.set()
    sys.argv = ["wholegrain", *arguments]
    code: Any = 0
    try:
        app.main()
    except SystemExit as stop:
        code = stop.code or 0
    sys.stdout.flush()
    if trap is not None:
        stage.ticks.write_text(str(trap.ticks))
    return int(code)


def _log_releases(log: Path) -> None:
    """A line for each update at the instant when training gives it, durable before anybody else gets to see it."""
    train = Trainer.train

    def logged(trainer: Trainer, silo: Any, policy: Any, vector: Any, round: int, steps: int, begun: Any = None) -> Any:
        update = train(trainer, silo, policy, vector, round, steps, begun)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _write(handle, f"{round} {steps} {digest(update)} {silo.facts.name}\n".encode())
            _fsync(handle)
        finally:
            os.close(handle)
        return update

    Trainer.train = logged  # type: ignore[method-assign]


_write, _fsync = os.write, os.fsync  # before any trap is set: the witness is no part of what is tested


def fork(arguments: list[str], stage: Stage, trap: Trap | None = None) -> int:
    """A child that has everything imported already; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = CRASHED
    try:
        code = play(arguments, stage, trap)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def launch(arguments: list[str], stage: Stage) -> int:
    """A process that starts from nothing; its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.execv(sys.executable, [sys.executable, __file__, str(stage.path), *arguments])
    finally:
        os._exit(CRASHED)


def kill_after(pid: int, seconds: float) -> int:
    """The status of a process that is killed unless it ends by itself before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def wait(pid: int) -> int:
    """The exit code of a process that is left alone."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    sys.exit(play(sys.argv[2:], Stage(Path(sys.argv[1]))))
