"""Crashes at any write.

Every operation that changes a file or a ledger goes through here. A process may die before or after any of them. A dead
one changes nothing any more: its `finally` blocks run, as they must in Python, but whatever they try to write raises
again. A killed process loses nothing that it wrote; after a power cut, what was not flushed may be gone: the tail of a
file that grows, and the new name of a file whose folder was not flushed.

SQLite is taken at its word: what it committed is on disk, and what it did not is rolled back. (That a real kill leaves
a journal, and that the next process rolls it back, is what benchmarks/crashes.py tries.) So its journal is kept in
memory here, and it flushes nothing.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulation.memory import changed
from simulation.world import Crash, Process, World

CALLS = ("write", "fsync", "replace", "rename", "unlink", "mkdir", "ftruncate", "link")
MOVES = ("replace", "rename", "unlink", "ftruncate", "link")
"""Those that could put another file in a ledger's place, or shorten it; SQLite alone writes in it."""

DURABLE = "PRAGMA synchronous = EXTRA"
LOCKS = "BEGIN"
WRITES = ("INSERT", "COMMIT", "CREATE", "ROLLBACK", "PRAGMA application_id =")

REAL = {name: getattr(os, name) for name in CALLS}
connect = sqlite3.connect
"""SQLite's own, for whoever only looks."""


@contextmanager
def mortal(world: World) -> Iterator[None]:
    """Everything that changes the disk, from here on, may be the last thing that a process does."""

    class Trapped(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == DURABLE:
                super().execute("PRAGMA journal_mode = MEMORY")
                return super().execute("PRAGMA synchronous = OFF")
            if sql.startswith(LOCKS):
                world.preempt()
            if not sql.startswith((LOCKS, *WRITES)):
                return super().execute(sql, *values)
            _tick(world)
            found = super().execute(sql, *values)
            if sql == "COMMIT" and world.current is not None:
                world.current.machine.writes += 1
            _tick(world)
            return found

    trapped = ((os, name, _trapped(world, name)) for name in CALLS)
    with changed([(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Trapped)), *trapped]):
        yield


def _trapped(world: World, name: str) -> Any:
    real = REAL[name]

    def call(*arguments: Any, **named: Any) -> Any:
        process = world.current
        if process is None:
            return real(*arguments, **named)
        if process.alive and process.ticks == process.crash_at and name == "write" and world.draws.random() < 0.5:
            handle, content = arguments
            real(handle, content[: world.draws.randrange(len(content) + 1)])  # cut short
        _tick(world)
        if name in ("replace", "rename"):
            _note_rename(process, *arguments)
        found = real(*arguments, **named)
        process.machine.writes += name in MOVES
        if name == "fsync":
            _note_flush(process, arguments[0])
        _tick(world)
        return found

    return call


def _tick(world: World) -> None:
    """One more chance to die."""
    process = world.current
    if process is None:
        return
    if not process.alive:
        raise Crash
    process.ticks += 1
    if process.crash_at is None or process.ticks <= process.crash_at:
        return
    process.alive = False
    if process.power_cut:
        world.happened["power cuts"] += 1
        world.cut_power(process.machine)
        _lose_unflushed(world, process)
    else:
        world.happened["kills at a write"] += 1
    raise Crash


def _note_rename(process: Process, source: Any, target: Any) -> None:
    path = str(target)
    if os.path.isdir(source):
        return
    before = None
    if os.path.exists(path):
        with open(path, "rb") as file:
            before = file.read()
    process.machine.renamed[path] = (os.path.dirname(path), before)
    process.machine.synced[path] = os.path.getsize(source)


def _note_flush(process: Process, handle: int) -> None:
    path = os.readlink(f"/proc/self/fd/{handle}")
    if os.path.isdir(path):
        renamed = process.machine.renamed
        process.machine.renamed = {name: kept for name, kept in renamed.items() if kept[0] != path}
    else:
        process.machine.synced[path] = os.fstat(handle).st_size


def _lose_unflushed(world: World, process: Process) -> None:
    machine = process.machine
    for path, (_, before) in machine.renamed.items():
        if world.draws.random() < 0.5 and os.path.exists(path):
            if before is None:
                REAL["unlink"](path)
            else:
                with open(path, "wb") as file:
                    file.write(before)
    machine.renamed = {}
    for path, size in machine.synced.items():
        now = os.path.getsize(path) if os.path.exists(path) else 0
        if now > size and path.endswith((".jsonl", ".heads")):
            os.truncate(path, world.draws.randint(size, now))
