"""What an engine costs: rounds of one spec in one process, by torch.distributed in one and two, beside the bare steps.

Run: python benchmarks/engines.py

Every run is the command that a user types, with one thread per process; the seconds of its rounds are read from its
record, without the first, which warms up. The runs take turns. "Bare steps" trains the same silos from the same
parameters without ledger, record, averaging or engine. "Two at once" are two runs in one process each, side by side:
what two processes could do at best on this machine, whose cores may share what they compute with.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from record import table
from wholegrain.gradients.parameters import flatten
from wholegrain.runs.runner import Prepared, in_process, prepare
from wholegrain.runs.spec import load

SPEC = """
[data]
source = "glyphs"
options = {{ writers = 64 }}
[silos]
partition = "uniform"
count = {silos}
items_per_subject = 20
[model]
name = "leaf_cnn"
[policy]
name = "subject_dp"
batch_size = {subjects}
[privacy]
epsilon = 4.0
[rounds]
count = {rounds}
steps = 1
learning_rate = 0.01
[evaluation]
test = 0.0
"""


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = folder / "spec.toml"
        spec.write_text(SPEC.format(silos=options.silos, subjects=options.subjects, rounds=options.rounds))
        prepared = prepare(load(spec))
        ways: dict[str, Callable[[Path], list[float]]] = {
            "bare steps": lambda out: bare(prepared),
            "inprocess": lambda out: played(spec, [out]),
            "distributed, 1 process": lambda out: played(spec, [out], "--engine", "distributed"),
            "distributed, 2 processes": lambda out: played(spec, [out], "--engine", "distributed", "--processes", "2"),
            "inprocess, two at once": lambda out: played(spec, [out, out.with_suffix(".other")]),
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.turns):
            for number, (way, play) in enumerate(ways.items()):
                found[way].append(statistics.median(play(folder / f"{turn}-{number}")))
                print(f"turn {turn + 1}: {way}: {found[way][-1]:.2f} s a round", file=sys.stderr)
    report({way: statistics.median(seconds) for way, seconds in found.items()}, found)


def report(seconds: dict[str, float], found: dict[str, list[float]]) -> None:
    """Seconds a round, over the bare steps and in rounds per second against one process, turn by turn."""
    bare, alone = found["bare steps"], found["inprocess"]
    rows = []
    for way, turns in found.items():
        runs = 2 if "two at once" in way else 1
        over = statistics.median(own / other - 1 for own, other in zip(turns, bare, strict=True))
        faster = statistics.median(runs * other / own for own, other in zip(turns, alone, strict=True))
        rows.append([way, f"{seconds[way]:.2f}", f"{over:+.1%}", f"{faster:.2f}"])
    print(table(["", "seconds a round", "over the bare steps", "rounds per second ÷ inprocess"], rows, True))


def bare(prepared: Prepared) -> list[float]:
    """Seconds for the steps of each round, one silo after the other."""
    engine, vector, seconds = in_process(prepared), flatten(prepared.model), []
    horizon = prepared.plan.horizon
    for round in range(horizon.rounds):
        started = time.perf_counter()
        for name in horizon.cohort(round):
            policy = prepared.plan.policy_for(name)
            engine.trainer.train(prepared.silos[name], policy, vector, round, horizon.steps)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def played(spec: Path, outs: list[Path], *engine: str) -> list[float]:
    """Seconds of each round of a run, or of several at once."""
    command = [sys.executable, "-m", "wholegrain", "run", str(spec), "--quiet", *engine]
    running = [subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL) for out in outs]
    if any(process.wait() for process in running):
        raise SystemExit("a run failed")
    lines = [line for out in outs for line in (out / "rounds.jsonl").read_text().splitlines()[1:]]
    return [json.loads(line)["seconds"] for line in lines]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--silos", type=int, default=16)
    parser.add_argument("--subjects", type=int, default=20, help="expected subjects of a silo in a step")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
