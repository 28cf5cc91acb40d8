"""What must hold after every event, told from outside.

The oracle sees what leaves a silo and what a server sends. It reads ledgers with SQL and hashes of its own, and prices
what left by the formula of the Gaussian mechanism [Balle & Wang 2018]; it shares no code with guard, ledger or
accountant.
"""

import hashlib
import json
import math
import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from scipy.special import log_ndtr, ndtr

from simulation.disk import connect
from simulation.world import Machine, World

Release = tuple[str, int, str, str]
"""Run, round, digest of the parameters that it started from, and what it is for: training or scores."""


class Violation(BaseException):
    """Something that must never happen."""


@lru_cache(maxsize=64)
def most_information(epsilon: float, delta: float) -> float:
    """The largest Σ steps/σ² of Gaussian steps that is (ε, δ)-private."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(math.sqrt(middle), epsilon) <= delta else (low, middle)
    return low


def _delta(mu: float, epsilon: float) -> float:
    if mu == 0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))


@dataclass(eq=False)
class Spending:
    """Σ 1/σ² of Gaussian releases, by run and purpose.

    Whoever is trained on is not scored, so that of each run a person pays the larger of the two. Which of them it is
    may differ from run to run.
    """

    by_run: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, run: str, purpose: str, information: float) -> None:
        """One more release."""
        self.by_run[run][purpose] += information

    @property
    def total(self) -> float:
        """Of all runs."""
        return sum(max(each.values()) for each in self.by_run.values())

    def with_one_more(self, run: str, purpose: str, information: float) -> float:
        """The total, if this were released as well."""
        others = sum(max(each.values()) for name, each in self.by_run.items() if name != run)
        own = Counter(self.by_run.get(run, {}))
        own[purpose] += information
        return others + max(own.values())


@dataclass(eq=False)
class LedgerView:
    """A ledger's rows as far as they were seen; rows never change and never go away."""

    path: Path
    machine: Machine
    number: int = 0
    head: str = "0" * 64
    reserved: Counter[Release] = field(default_factory=Counter)
    by_silo: Counter[tuple[str, int, str, str]] = field(default_factory=Counter)
    spending: Spending = field(default_factory=Spending)
    noise: dict[tuple[str, str], float] = field(default_factory=dict)
    away: bool = False
    """Whether an older copy is in its place, on purpose."""
    database: sqlite3.Connection | None = None
    seen: int = -1
    """The machine's writes when somebody last looked."""

    def exchange(self, away: bool) -> None:
        """Another file is in the ledger's place: an older copy (`away`), or the newest one again."""
        self.close()
        self.away = away

    def close(self) -> None:
        """Let go of the file."""
        if self.database is not None:
            self.database.close()
        self.database, self.seen = None, -1

    def look(self) -> None:
        """Read what is new, and find the last entry that was seen as it was; nothing is new where nobody wrote."""
        if self.away or self.seen == self.machine.writes:
            return
        self.seen = self.machine.writes
        if not self.path.exists():
            require(self.number == 0, f"{self.path} is gone")
            return
        self.database = self.database or connect(self.path, timeout=1.0)
        if not self.number and not self.database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return
        rows = "SELECT number, written, body, hash FROM entries WHERE number >= ? ORDER BY number"
        found = self.database.execute(rows, [self.number]).fetchall()
        if self.number:
            seen = (found[0][0], found[0][3]) if found else None
            require(seen == (self.number, self.head), f"{self.path} has lost entry {self.number}, or it was changed")
        for row in found[1:] if self.number else found:
            self._add(*row)

    def _add(self, number: int, written: str, body: str, digest: str) -> None:
        expected = hashlib.sha256(f"{self.head}\n{written}\n{body}".encode()).hexdigest()
        require((number, digest) == (self.number + 1, expected), f"the chain of {self.path} breaks at {number}")
        self.number, self.head = number, digest
        entry = json.loads(body)
        if entry["kind"] == "run":
            terms = entry["terms"]
            for purpose, exposures in (("training", terms["exposures"]), ("scores", terms.get("scores"))):
                if exposures is not None:
                    (step,) = exposures["subject"]["kinds"]
                    self.noise[entry["run"], purpose] = step["noise"]
        if entry["kind"] == "reserved":
            run, purpose = entry["run"].partition("/")[0], entry.get("purpose", "training")
            self.reserved[run, entry["round"], entry["start"], purpose] += 1
            self.by_silo[run, entry["round"], entry["silo"], purpose] += 1
            self.spending.add(run, purpose, entry["steps"] / self.noise[entry["run"], purpose] ** 2)


@dataclass(eq=False)
class SiloWatch:
    """What a silo was seen to do, and what it may do in all."""

    ledger: LedgerView
    most: float
    """Σ steps/σ² that its charter allows."""
    most_reserved: float
    """The same at the share of δ that a silo's filter has for Gaussian steps: the program must never go beyond it."""
    secure: bool
    released: dict[Release, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    spending: Spending = field(default_factory=Spending)
    needed: int = 0
    """The last entry that something was released for."""

    def require_paid(self, release: Release, computed: int) -> None:
        """So many different updates are paid for, on disk, now."""
        self.require_within()
        paid = self.ledger.reserved[release]
        require(computed <= paid, f"{computed} updates of round {release[1]}, and {paid} are paid for")

    def require_within(self) -> None:
        """All that was ever paid for is within the charter's ε."""
        self.ledger.look()
        require(
            self.ledger.spending.total <= self.most_reserved * (1 + 1e-9),
            "more is reserved than the charter's ε allows",
        )


@dataclass(eq=False)
class Oracle:
    """All silos and servers of a federation."""

    world: World
    silos: dict[str, SiloWatch] = field(default_factory=dict)
    servers: dict[Path, LedgerView] = field(default_factory=dict)
    noise: dict[str, Release] = field(default_factory=dict)
    opened: dict[tuple[str, int, str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    computed: dict[tuple[str, Release], set[str]] = field(default_factory=lambda: defaultdict(set))
    violations: list[str] = field(default_factory=list)

    def on_opening(self, silo: str) -> None:
        """A silo works with the ledger that is in place now.

        It may be an older copy only if it still holds all that was ever read from the data. (A process that was killed
        after it wrote an entry, and before the machine remembered that, has released nothing for it.)
        """
        watch = self.silos[silo]
        if watch.ledger.away:
            watch.ledger.close()
            watch.ledger = LedgerView(watch.ledger.path, watch.ledger.machine)
            watch.ledger.look()
            require(watch.ledger.number >= watch.needed, f"{silo} works with a ledger that has forgotten a release")
        watch.ledger.look()

    def on_training(self, silo: str, release: Release, noise: str) -> None:
        """A silo is about to read its data."""
        watch = self.silos[silo]
        if watch.secure:
            key = f"{silo} {noise}"
            require(key not in self.noise, f"the noise {noise} of {silo} is used again")
            self.noise[key] = release
        self.computed[silo, release].add(noise)
        watch.require_paid(release, len(self.computed[silo, release]))
        watch.needed = watch.ledger.number

    def on_release(self, silo: str, release: Release, update: bytes, information: float) -> None:
        """An update has left its silo."""
        watch = self.silos[silo]
        if update not in watch.released[release]:
            watch.released[release].add(update)
            watch.spending.add(release[0], release[3], information)
        watch.require_paid(release, len(watch.released[release]))
        require(
            watch.spending.total <= watch.most * (1 + 1e-9), f"{silo} has released more than its charter's ε allows"
        )
        self.world.happened["releases"] += 1

    def on_task(self, ledger: Path, machine: Machine, key: tuple[str, int, str, str], play: int, repeats: bool) -> None:
        """A server is about to ask a silo for a round; `play` tells one playing of a round from another."""
        view = self.servers.setdefault(ledger, LedgerView(ledger, machine))
        view.look()
        self.opened[key].add(play)
        needed = 1 if repeats else len(self.opened[key])
        paid = view.by_silo[key]
        require(paid >= needed, f"the server asks {key[2]} for round {key[1]} time {needed}, and {paid} are paid for")

    def look(self) -> None:
        """No ledger loses or changes anything, whoever wrote."""
        for view in self._views():
            view.seen = -1
            view.look()

    def close(self) -> None:
        """Let go of all ledgers."""
        for view in self._views():
            view.close()

    def _views(self) -> list[LedgerView]:
        return [*(watch.ledger for watch in self.silos.values()), *self.servers.values()]


def require(true: bool, otherwise: str) -> None:
    """Whatever is not so is a violation."""
    if not true:
        raise Violation(otherwise)
