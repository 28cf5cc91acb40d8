"""Many processes on one ledger. test_concurrency.py talks to this one, which imports everything once and then forks.

Each line on standard input is a scenario with a path; its answer is one line of JSON on standard output.
"""

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from ledgers import guard_on
from wholegrain.errors import BudgetError
from wholegrain.privacy.ledger import Ledger

torch.set_num_threads(1)
PROCESSES = 20
ROUNDS = 4


def together(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """What each of the processes found, all of which begin at the same instant; an exception is its name and text."""
    gate, starter = os.pipe()
    arrivals, arrive = os.pipe()
    children = [_fork(work, number, (gate, starter, arrive), folder) for number in range(PROCESSES)]
    os.close(gate)
    for _ in range(PROCESSES):
        os.read(arrivals, 1)
    os.close(starter)
    os.close(arrivals)
    os.close(arrive)
    for child in children:
        os.waitpid(child, 0)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(PROCESSES)]


def _fork(work: Callable[[int], Any], number: int, pipes: tuple[int, int, int], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    gate, starter, arrive = pipes
    os.close(starter)
    os.write(arrive, b".")
    os.read(gate, 1)
    try:
        found = work(number)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    (folder / f"{number}.json").write_text(json.dumps(found))
    os._exit(0)


def create(path: Path) -> list[Any]:
    """All open a ledger that is not there yet."""

    def work(number: int) -> Any:
        with Ledger.open(path) as ledger:
            return ledger.state.identity

    return together(work, path.parent)


def spend(path: Path) -> list[Any]:
    """Each opens a run on the account and asks for one step after the other; how many of them were granted."""

    def work(number: int) -> Any:
        granted = 0
        with Ledger.open(path) as ledger:
            guard = guard_on(ledger, run=f"run-{number}", epsilon=PROCESSES * ROUNDS / 2 + 0.5)
            for round in range(ROUNDS):
                try:
                    guard.reserve(round, {"north": 1}, "start")
                except BudgetError:
                    continue
                granted += 1
        return granted

    return together(work, path.parent)


def die(path: Path) -> list[Any]:
    """Two die with the lock in their hands, before and after they have written; the others wait for their turn."""
    with Ledger.open(path) as ledger:
        guard_on(ledger, epsilon=None)
    for stops_at in ("INSERT", "COMMIT"):
        _hold_and_die(path, stops_at)

    def work(number: int) -> Any:
        if number < 2:
            _die(path, ("INSERT", "COMMIT")[number])
        time.sleep(0.05)  # so that those two come first
        with Ledger.open(path) as ledger:
            guard_on(ledger, run="first", epsilon=None).reserve(number, {"north": 1}, "start")
            return ledger.head.number

    for number in range(2):
        (path.parent / f"{number}.json").write_text("null")  # they will not live to tell
    return together(work, path.parent)


def _hold_and_die(path: Path, stops_at: str) -> None:
    child = os.fork()
    if not child:
        _die(path, stops_at)
    os.waitpid(child, 0)


def _die(path: Path, stops_at: str) -> NoReturn:
    """Take the lock, hold it for a while, and be killed just before the statement."""
    connect = sqlite3.connect

    class Mortal(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith(stops_at):
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(sql, *values)

    sqlite3.connect = lambda *arguments, **named: connect(*arguments, **named, factory=Mortal)
    with Ledger.open(path, create=False) as ledger:
        guard_on(ledger, epsilon=None).reserve(99, {"south": 1}, "never")
    raise AssertionError("it should be dead")


if __name__ == "__main__":
    for line in sys.stdin:
        scenario, place = line.rstrip("\n").split(" ", 1)
        print(json.dumps({"create": create, "spend": spend, "die": die}[scenario](Path(place))), flush=True)
