"""What the library costs whoever calls it: training loops through the public doors, beside plain torch and Opacus.

Run: python benchmarks/doors.py --json doors.json

Every loop (door_loops.py) has a process of its own with one thread, and all take turns, a stretch of steps at a time.
Everything after the first step counts, data loaders and ledgers included; a ratio is the median over the turns of a
loop's time to that of plain torch in the same turn. The first step, with all that comes before it, stands apart, less a
later one: in a process that finds no files of an earlier one (cold) and in one that does (warm). Imports of torch,
Opacus and wholegrain do not count. "ε" is what a loop's own accountant says of it in the end, and how long it takes.

`--profile` tells instead where a step of `wg.private_steps` goes, with a ledger in memory and with one in a file.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import arena
import door_loops
import record
from door_loops import LOOPS, WORKLOADS, Loop, Ours
from gradients import duration
from loops import Stopwatch
from record import CLOCKS, spread, table

BASE, OURS, ROUNDS = "plain", ("item", "subject"), 5
TITLES = {
    "plain": "plain torch", "item": "wholegrain, per item", "subject": "wholegrain, per subject",
    "opacus-hooks": "Opacus, hooks", "opacus-ghost": "Opacus, ghost",
}  # fmt: skip
COLD, WARM = 2.0, 0.3
"""Seconds that a first step may take beyond a later one."""


class Process(arena.Process):
    """The parent's end of one loop; what it keeps on disk is in `files`."""

    def __init__(self, workload: str, name: str, steps: int, clock: str, files: Path) -> None:
        places = ("WHOLEGRAIN_CACHE", "WHOLEGRAIN_STATE", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")
        own = {place: str(files / name / place.lower()) for place in places}
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, door_loops.__file__, workload, name, str(steps), clock]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process, self._folder = subprocess.Popen(command, env={**os.environ, **own, **one}, **pipes), None
        self.seconds: list[float] = []


def hold(workload: str, names: list[str], given: argparse.Namespace) -> dict[str, Any]:
    """All loops on one workload, in turns; of each, a process before that only takes the first step."""
    turn = max(1, ((given.steps or WORKLOADS[workload].steps) - 1) // given.rounds)
    found: dict[str, Any] = {"name": workload, "skipped": {}, "loops": {}}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        processes = {}
        for name in names:
            start = (workload, name, 1 + turn * given.rounds, given.clock, Path(folder))
            try:
                with contextlib.closing(Process(*start)) as alone:
                    cold = alone.ask("first")["seconds"]
                processes[name] = running.enter_context(contextlib.closing(Process(*start)))
                found["loops"][name] = {"cold": cold, "warm": processes[name].ask("first")["seconds"]}
            except arena.ContestantError as error:
                found["skipped"][name] = str(error)
        _take_turns(found, {name: processes[name] for name in found["loops"]}, given.rounds, turn)
    compare(found["loops"])
    return found


def _take_turns(found: dict[str, Any], running: dict[str, Process], rounds: int, turn: int) -> None:
    """The loops' later steps, and what they have spent in the end."""
    for round in range(rounds):
        for process in list(running.values())[:: 1 if round % 2 else -1]:
            process.seconds.append(process.ask("steps", times=turn)["seconds"] / turn)
    for name, process in running.items():
        asked = process.ask("epsilon")
        found["loops"][name] |= {"each": process.seconds, "epsilon": asked["epsilon"], "asked": asked["seconds"]}


def compare(loops: dict[str, Any]) -> None:
    """Ratios to plain torch and to the better of Opacus' modes, turn by turn."""
    peers = [each["each"] for name, each in loops.items() if name.startswith("opacus")]
    others = {"ratio": loops[BASE]["each"], "beside_opacus": [min(each) for each in zip(*peers, strict=True)]}
    for found in loops.values():
        found["seconds"] = spread(found["each"])
        for name, other in others.items():
            found[name] = spread([a / b for a, b in zip(found["each"], other, strict=True)]) if other else None
        for start in ("cold", "warm"):
            found[f"{start}_beyond"] = found[start] - found["seconds"]["median"]


def told(found: dict[str, Any]) -> str:
    """A workload's table, with targets beside our own figures: met (≤) or missed (>)."""
    simple = WORKLOADS[found["name"]].simple
    heads = [
        WORKLOADS[found["name"]].title,
        "step",
        "÷ plain",
        "quartiles",
        "÷ best Opacus",
        "first, cold",
        "warm",
        "ε (asked in)",
    ]
    rows = []
    for name, each in found["loops"].items():
        ours, ratio, beside = name in OURS, each["ratio"], each["beside_opacus"]
        rows.append([
            TITLES[name],
            duration(each["seconds"]["median"]),
            beside_target(ratio["median"], (1.5 if simple else 1.3) if ours else None),
            f"{ratio['low']:.2f}–{ratio['high']:.2f}",
            beside_target(beside["median"], (2 / 3 if simple else 1 / 2) if ours else None) if beside else "",
            beside_target(each["cold_beyond"], COLD if ours else None, " s"),
            beside_target(each["warm_beyond"], WARM if ours else None, " s"),
            "" if each["epsilon"] is None else f"{each['epsilon']:.3f} ({duration(each['asked'])})",
        ])  # fmt: skip
    lines = [table(heads, rows, False)]
    return "\n".join(lines + [f"- {TITLES[name]}: left out, {why}" for name, why in found["skipped"].items()])


def beside_target(value: float, target: float | None, unit: str = "") -> str:
    """A figure, and whether it keeps to its target."""
    return f"{value:.2f}{unit}" + ("" if target is None else f" {'≤' if value <= target else '>'} {target:.3g}")


PARTS = ("clipped sum", "noise", "ledger", "sampling", "rest")


def profile(workload: str, steps: int, clock: str, ledger: str | None) -> dict[str, float]:
    """Where the seconds of a later step of ours go, a step."""
    from wholegrain.privacy.guard import Guard
    from wholegrain.silo import training
    from wholegrain.silo.training import LocalSteps

    torch.set_num_threads(1)
    watches = {part: Stopwatch(CLOCKS[clock]) for part in PARTS[:-1]}
    places = [
        (LocalSteps, "_clipped_sum", "clipped sum"), (training, "release", "noise"), (Guard, "reserve", "ledger"),
        (Guard, "confirm", "ledger"), (LocalSteps, "_draw", "sampling"),
    ]  # fmt: skip
    kept = [(place, name, getattr(place, name)) for place, name, _ in places]
    loop = Ours(WORKLOADS[workload], steps + 1)
    loop.ledger = ledger
    try:
        for place, name, part in places:
            setattr(place, name, watches[part].timed(getattr(place, name)))
        whole = _later_steps(loop, steps, clock, watches)
    finally:
        for place, name, before in kept:
            setattr(place, name, before)
    found = {part: watch.read() / steps for part, watch in watches.items()}
    return found | {"rest": whole / steps - sum(found.values()), "step": whole / steps}


def _later_steps(loop: Loop, steps: int, clock: str, watches: dict[str, Stopwatch]) -> float:
    """Seconds of all steps but the first, which no watch counts either."""
    begun = loop.steps()
    next(begun)
    for watch in watches.values():
        watch.read()
    started = CLOCKS[clock]()
    for _ in range(steps):
        next(begun)
    return CLOCKS[clock]() - started


def profiles(given: argparse.Namespace) -> dict[str, Any]:
    """Every workload's profile, with a ledger in memory and in a file."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.workloads:
            steps = given.steps or WORKLOADS[name].steps
            for place, path in (("memory", None), ("file", f"{folder}/{name}.sqlite")):
                found[f"{WORKLOADS[name].title}, ledger in {place}"] = profile(name, steps, given.clock, path)
    return found


def profile_table(found: dict[str, Any]) -> str:
    """Milliseconds of a step and its parts."""
    rows = [[title, *(f"{1e3 * each[part]:.3f}" for part in ("step", *PARTS))] for title, each in found.items()]
    return table(["ms a step of ours", "all", *PARTS], rows, False)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--contestants", nargs="+", choices=LOOPS, default=list(LOOPS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of every loop ({ROUNDS} if not given)")
    parser.add_argument("--steps", type=int, help="steps of every loop, instead of each workload's own")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu, on a machine that others use")
    parser.add_argument("--profile", action="store_true", help="where a step of wg.private_steps goes")
    parser.add_argument("--json", type=Path, metavar="OUT", help="keep the figures in this file")
    given = parser.parse_args()
    if given.rounds < 1 or (given.steps is not None and given.steps < 1):
        parser.error("--rounds and --steps are 1 or more")
    return given


def main() -> None:
    """Measure, tell, keep."""
    given = arguments()
    around = {**record.circumstances(given.clock), "load": os.getloadavg()}
    print(f"{record.told(around)} Load {around['load'][0]:.2f}.\n", flush=True)
    if given.profile:
        found: Any = profiles(given)
        print(profile_table(found))
    else:
        names, found = [BASE, *(name for name in given.contestants if name != BASE)], []
        for workload in given.workloads:
            found.append(hold(workload, names, given))
            print(told(found[-1]) + "\n", flush=True)
    if given.json:
        record.write(given.json, {"circumstances": around, "found": found})


if __name__ == "__main__":
    main()
