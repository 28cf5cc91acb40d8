"""Virtual time, and processes that take turns in it.

A process is a greenlet that runs the program's own blocking code. It gives its turn up where it sleeps, waits for a
message, or is about to take a ledger's lock. Nothing else runs meanwhile, and every choice is drawn from one seed, so
that a seed always plays the same history.
"""

import heapq
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class Crash(BaseException):
    """The process is dead. What it still does on the way out has no effect (see `disk`)."""


@dataclass(eq=False)
class Machine:
    """A disk and a clock of its own; several processes may run on it."""

    name: str
    folder: Path
    skew: float = 0.0
    """Seconds by which its clock is wrong."""
    synced: dict[str, int] = field(default_factory=dict)
    """How much of a file is on disk for sure."""
    renamed: dict[str, tuple[str, bytes | None]] = field(default_factory=dict)
    """Files that were put in place and whose folder was not flushed: its name, and what was there before."""
    processes: list["Process"] = field(default_factory=list)
    writes: int = 0
    """Operations that may have changed a ledger on it."""

    @cached_property
    def state(self) -> Path:
        """Where it keeps what must last."""
        return self.folder / "state"


@dataclass(eq=False)
class Process:
    """Code at work on a machine, until it ends or is killed."""

    name: str
    machine: Machine
    greenlet: greenlet
    crash_at: int | None = None
    """The operation on files before or after which it dies."""
    power_cut: bool = False
    """Whether the whole machine goes down with it, and what was not flushed is lost."""
    alive: bool = True
    ticks: int = 0
    ended: Callable[[Any], None] = lambda found: None
    task: Any = None
    """What it is asked for now."""
    inbox: list[Any] = field(default_factory=list)
    waiting: bool = False


class World:
    """The clock, what is due, and whose turn it is."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draws = random.Random(seed)
        self.now = 0.0
        self.folder = folder
        self.current: Process | None = None
        self.happened: Counter[str] = Counter()
        self.after_event: Callable[[], None] = lambda: None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._hub = getcurrent()
        self._at: Machine | None = None

    # What is due.

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it when so much time has passed."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), action))

    def run(self, until: Callable[[], bool], most: float) -> bool:
        """Let time pass until something is so; False where it is not so by the time `most`."""
        while not until():
            if not self._due or self._due[0][0] > most:
                return False
            self.now, _, action = heapq.heappop(self._due)
            action()
            self.after_event()
        return True

    # Processes.

    def start(self, name: str, machine: Machine, work: Callable[[], Any]) -> Process:
        """Begin a process; its `ended` is told what it returned, or the exception that ended it."""

        def body() -> None:
            try:
                found = work()
            except (Crash, GreenletExit):
                found = Crash()
            except Exception as error:
                found = error
            machine.processes.remove(process)
            process.alive = False
            self.later(0.0, lambda: process.ended(found))

        process = Process(name, machine, greenlet(body, self._hub))
        machine.processes.append(process)
        self.later(0.0, lambda: self._resume(process))
        return process

    def kill(self, process: Process) -> None:
        """End a process that waits for its turn."""
        if process.alive:
            process.alive = False
            self._resume(process)

    def cut_power(self, machine: Machine) -> None:
        """Every process of a machine dies; those that wait are told when it is their turn."""
        for process in list(machine.processes):
            process.alive = False
            if process is not self.current:
                self.later(0.0, lambda process=process: self._resume(process))

    def sleep(self, seconds: float) -> None:
        """Give the turn up for so long."""
        process = self.current
        assert process is not None
        self.later(seconds, lambda: self._resume(process))
        self._wait(process)

    def preempt(self) -> None:
        """Somebody else may be faster."""
        if self.current is not None and self.draws.random() < 0.5:
            self.sleep(self.draws.random() * 0.2)

    def receive(self) -> Any:
        """The next message; waits for it."""
        process = self.current
        assert process is not None
        while not process.inbox:
            process.waiting = True
            self._wait(process)
        return process.inbox.pop(0)

    def deliver(self, process: Process, message: Any) -> None:
        """Put a message in a process's inbox."""
        process.inbox.append(message)
        if process.waiting:
            self._resume(process)

    def _wait(self, process: Process) -> None:
        self._hub.switch()
        if not process.alive:
            raise Crash

    def _resume(self, process: Process) -> None:
        if process.greenlet.dead:
            return
        before, self.current, process.waiting = self.current, process, False
        if process.machine is not self._at:
            self._at = process.machine
            os.environ["WHOLEGRAIN_STATE"] = str(process.machine.state)
        try:
            process.greenlet.switch()
        finally:
            self.current = before
