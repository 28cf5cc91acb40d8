"""All contestants on one workload: agree first, then take turns.

In each round each contestant is asked, in a shuffled order, for as many steps as fill a slice of time. Its time per
step is divided by that of plain SGD in the same round; the median of these ratios is what is reported.
"""

import math
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from arena import ContestantError, Process
from contestants import CONTESTANTS
from record import spread
from workloads import CASES, SEED, Workload

BASE = "plain"
ORACLES = {"item": "vmap", "subject": "vmap-subject"}
AGREEMENT = 1e-4
# Seconds; whoever takes n times as long for a step takes part in every n-th round only, but in three at least.
LONG_STEP, LEAST_ROUNDS = 2.0, 3
TOO_SLOW = {("cnn512", "vmap"), ("cnn512", "vmap-subject")}
KNOWN_DIFFERENCES = {
    ("transformer64", "opacus-hooks"): "Opacus' attention with batch_first is another function (its pull request #825)",
    ("transformer64", "opacus-ghost"): "Opacus' attention with batch_first is another function (its pull request #825)",
}


@dataclass(frozen=True)
class Pace:
    """How many rounds, how many seconds of each contestant in a round, and by which clock."""

    rounds: int
    slice: float
    clock: str


@dataclass
class Entrant:
    """A contestant in one contest, with what was found of it so far: seconds per step, by round."""

    name: str
    process: Process
    times: int = 1
    stride: int = 1
    seconds: dict[int, float] = field(default_factory=dict)
    alone: dict[int, float] = field(default_factory=dict)
    difference: float | None = None

    def prepare(self, pace: Pace) -> None:
        """Warm up, and see how many steps fill a slice."""
        self._per_step("steps", pace)
        step = self._per_step("steps", pace)
        self.times = max(1, round(pace.slice / step))
        self.stride = min(math.ceil(step / LONG_STEP), max(1, pace.rounds // LEAST_ROUNDS))

    def play(self, pace: Pace, round: int) -> None:
        """Take part in a round, if it is this contestant's turn."""
        if round % self.stride:
            return
        self.seconds[round] = self._per_step("steps", pace)
        if CONTESTANTS[self.name].ours:
            self.alone[round] = self._per_step("gradients", pace)

    def _per_step(self, what: str, pace: Pace) -> float:
        seconds: float = self.process.ask(what, times=self.times, clock=pace.clock)["seconds"]
        return seconds / self.times


@dataclass
class Contest:
    """Who is still in, and why the others are not."""

    case: str
    entrants: list[Entrant] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def enter(self, name: str, workload: Workload) -> None:
        """Start a contestant's process, unless it could not fit."""
        reason = too_large(self.case, name, workload)
        if reason:
            self.skipped[name] = reason
        else:
            self.entrants.append(Entrant(name, Process(self.case, name)))

    def each(self, act: Callable[[Entrant], object], order: random.Random | None = None) -> None:
        """Let every entrant act, one after the other; whoever fails is out, with the reason."""
        turns = list(self.entrants)
        if order is not None:
            order.shuffle(turns)
        for entrant in turns:
            try:
                act(entrant)
            except ContestantError as error:
                self.skipped[entrant.name] = str(error)
                self.entrants.remove(entrant)
                entrant.process.close()

    def close(self) -> None:
        """End all processes."""
        for entrant in self.entrants:
            entrant.process.close()


def hold(case: str, names: list[str], pace: Pace) -> dict[str, Any]:
    """One contest from start to figures."""
    workload = CASES[case].workload()
    contest = Contest(case)
    try:
        for name in names:
            contest.enter(name, workload)
        compare(contest)
        contest.each(methodcaller("prepare", pace))
        order = random.Random(SEED)
        for round in range(pace.rounds):
            contest.each(methodcaller("play", pace, round), order)
        found = figures(contest)
    finally:
        contest.close()
    public = {"batch": workload.batch, "subjects": workload.subjects, "parameters": workload.parameters}
    return {"name": case, "title": CASES[case].title, **public, "contestants": found, "skipped": contest.skipped}


def compare(contest: Contest) -> None:
    """Relative difference ‖other − vmap‖ / ‖vmap‖ of every clipped sum to that of vmap with the same units."""
    with tempfile.TemporaryDirectory() as folder:
        contest.each(lambda entrant: entrant.process.ask("gradient", path=f"{folder}/{entrant.name}.npy"))
        sums = {e.name: np.load(f"{folder}/{e.name}.npy").astype(np.float64) for e in contest.entrants}
    for entrant in contest.entrants:
        oracle = sums.get(ORACLES.get(CONTESTANTS[entrant.name].clips or "", ""))
        if oracle is not None:
            entrant.difference = float(np.linalg.norm(sums[entrant.name] - oracle) / np.linalg.norm(oracle))


def too_large(case: str, name: str, workload: Workload) -> str | None:
    """Why a contestant cannot take part: not there, too slow, or its per-item gradients do not fit; None if it can."""
    contestant = CONTESTANTS[name]
    if contestant.script is not None and "JAX_PYTHON" not in os.environ:
        return "JAX_PYTHON names no interpreter that has it (jax_peer.py)"
    if contestant.cases is not None and case not in contestant.cases:
        return "it has no way to compute this model"
    if (case, name) in TOO_SLOW:
        return "it takes more than a minute for a step"
    if not contestant.holds_item_gradients:
        return None
    # Once as they are made, once more as they are scaled and summed.
    needed = 2 * 4 * workload.batch * workload.parameters
    if needed < 0.5 * available_memory():
        return None
    return f"its per-item gradients take about {needed / 2**30:.0f} GB; {available_memory() / 2**30:.0f} GB are free"


def available_memory() -> int:
    """Bytes that processes may still take without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def figures(contest: Contest) -> list[dict[str, Any]]:
    """What was found of each entrant, beside plain SGD."""
    memory = {e.name: e.process.ask("memory") for e in contest.entrants}
    base = next((e for e in contest.entrants if e.name == BASE), None)
    if base is None:
        raise ContestantError(f"plain SGD could not run: {contest.skipped[BASE]}")
    return [_figures(contest.case, entrant, base, memory) for entrant in contest.entrants]


def _figures(case: str, entrant: Entrant, base: Entrant, memory: dict[str, Any]) -> dict[str, Any]:
    differs = entrant.difference is not None and entrant.difference > AGREEMENT
    return {
        "name": entrant.name,
        "title": CONTESTANTS[entrant.name].title,
        "rounds": len(entrant.seconds),
        "seconds": spread(list(entrant.seconds.values())),
        "ratio": spread([entrant.seconds[r] / base.seconds[r] for r in entrant.seconds]),
        "alone": spread([entrant.alone[r] / base.seconds[r] for r in entrant.alone]) if entrant.alone else None,
        "peak": memory[entrant.name]["peak"],
        "peak_ratio": memory[entrant.name]["peak"] / memory[base.name]["peak"],
        "grown": memory[entrant.name]["grown"],
        "difference": entrant.difference,
        "differs": KNOWN_DIFFERENCES.get((case, entrant.name), "for a reason unknown") if differs else None,
    }
