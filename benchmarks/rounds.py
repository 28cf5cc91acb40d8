"""What a federation costs beyond its steps: ours, bare steps, and Flower with Opacus; by silos; by subjects.

Run: python benchmarks/rounds.py --json rounds.json --markdown

- federation: rounds of 16 silos in one process, the steps in them timed apart, beside the same steps without privacy,
  round by round; and the same federation in Flower's simulation with Opacus' ghost clipping.
- silos: rounds of 1 to 32 silos, taking turns.
- subjects: steps of one silo with 1,000 to 1,000,000 subjects at one expected batch, drawing included, taking turns.
- many: a run of 1,000 silos of a logistic regression, 10 rounds, with torch's steps and compiled: seconds of the rounds
  (pricing, ledger and scores included) and of the whole process, and its peak memory.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import record
from gradients import duration
from loops import Clock, Parts, Stopwatch, measure, play
from many_silos import run_apart
from record import spread, table
from silos import SETTINGS, federate
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.parameters import flatten

SILOS = (1, 2, 4, 8, 16, 32)
SUBJECTS = (1_000, 10_000, 100_000, 1_000_000)
POLICIES = ("local_item_dp", "subject_dp")
FEDERATION = 16
MANY = 1_000
COMPILED = ("mlp",)
"""Models that are also trained by the program in C."""
STEPS = 20
"""Steps that a silo takes at a time, where subjects are counted."""

FLOWER_LIMIT = 1800
FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # On a busy core Ray's own processes start slowly; by default it gives up, and Flower waits for ever.
    "RAY_agent_register_timeout_ms": "300000",
    "PYTHONWARNINGS": "ignore",
}


def federation(model: str, rounds: int, clock: Clock, flower: bool, compiled: bool) -> dict[str, Any]:
    """16 silos: where a round's time goes; the first round warms up and is not counted."""
    federated = replace(federate(SETTINGS[model], FEDERATION, rounds + 1), compute=Compute(compiled=compiled))
    parts = list(measure(federated, clock))[1:]
    setting, counted = SETTINGS[model], FEDERATION * SETTINGS[model].steps
    found = {
        "model": model,
        "title": f"{setting.title}, {FEDERATION} silos × {setting.steps} steps, B = {setting.batch}"
        + ", compiled" * compiled,
        "beyond_a_step": {
            "training": spread([(p.training - p.steps) / counted for p in parts]),
            "pricing": spread([p.pricing / counted for p in parts]),
            "averaging": spread([(p.round - p.pricing - p.training) / counted for p in parts]),
            "all": spread([(p.round - p.steps) / counted for p in parts]),
        },
        "seconds": spread([p.round for p in parts]),
        "steps_seconds": spread([p.steps for p in parts]),
        "plain_seconds": spread([p.plain for p in parts]),
        "ratio": spread([p.round / p.plain for p in parts]),
        "overheads": overheads(parts),
    }
    return found | ({"flower": simulated(model, rounds)} if flower else {})


def overheads(parts: list[Parts]) -> dict[str, Any]:
    """Shares of the time of the steps within these very rounds, by what takes it."""
    return {
        "of_round": spread([1 - p.steps / p.round for p in parts]),
        "all": spread([p.round / p.steps - 1 for p in parts]),
        "training": spread([p.training / p.steps - 1 for p in parts]),
        "pricing": spread([p.pricing / p.steps for p in parts]),
        "averaging": spread([(p.round - p.pricing - p.training) / p.steps for p in parts]),
    }


def simulated(model: str, rounds: int) -> dict[str, Any]:
    """Flower and Opacus on the same federation, in a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        code, output, errors = _flower([model, str(FEDERATION), str(rounds + 1)], home)
    if code:
        return {"skipped": (errors.strip().splitlines() or ["its process failed"])[-1]}
    # Ray may still have something to say after the figures.
    parts = json.loads([line for line in output.splitlines() if line.startswith("[{")][-1])[1:]
    return {
        "seconds": spread([p["round"] for p in parts]),
        "ratio": spread([p["round"] / p["plain"] for p in parts]),
    }


def _flower(arguments: list[str], home: str) -> tuple[int, str, str]:
    paths = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **FLOWER_ENVIRONMENT, "FLWR_HOME": home, "PYTHONPATH": paths}
    command = [sys.executable, "-c", "import sys, flower_peer; flower_peer.main(*sys.argv[1:])", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=FLOWER_LIMIT)
        except subprocess.TimeoutExpired:
            # Its session is its own: whatever Ray has started ends with it.
            os.killpg(process.pid, signal.SIGKILL)
            return 1, "", f"it did not end within {FLOWER_LIMIT} seconds"
        return process.returncode, output, errors


def by_silos(model: str, rounds: int, clock: Clock) -> list[dict[str, Any]]:
    """Seconds of a round for each number of silos; all take turns."""
    setting = replace(SETTINGS[model], steps=min(SETTINGS[model].steps, 5))
    loops = {count: play(federate(setting, count, rounds + 1)) for count in SILOS}
    seconds = [{count: _taken(clock, next, loop) for count, loop in loops.items()} for _ in range(rounds + 1)][1:]
    return [
        {
            "model": model,
            "title": setting.title,
            "silos": count,
            "seconds": spread([found[count] for found in seconds]),
            "per_silo": spread([found[count] / count / found[1] for found in seconds]),
        }
        for count in SILOS
    ]


def by_subjects(policy: str, most: int, rounds: int, clock: Clock) -> list[dict[str, Any]]:
    """Seconds of a step in silos of more and more subjects; all take turns."""
    counts = [count for count in SUBJECTS if count <= most]
    trains = {count: _training(policy, count) for count in counts}
    seconds = [{count: _taken(clock, trains[count], number) for count in counts} for number in range(rounds + 1)][1:]
    return [
        {
            "policy": policy,
            "subjects": count,
            "seconds": spread([found[count] / STEPS for found in seconds]),
            "ratio": spread([found[count] / found[counts[0]] for found in seconds]),
        }
        for count in counts
    ]


def _training(policy: str, subjects: int) -> Callable[[int], object]:
    """A silo that takes its steps when it is asked for a round."""
    federated = federate(SETTINGS["mlp"], 1, 1, policy=policy, subjects=subjects)
    ((name, silo),) = federated.silos.items()
    vector, row = flatten(federated.model), federated.plan.policy_for(name)
    return lambda number: federated.trainer.train(silo, row, vector, number, STEPS)


def _taken(clock: Clock, act: Callable[..., object], *arguments: object) -> float:
    watch = Stopwatch(clock)
    watch.timed(act)(*arguments)
    return watch.read()


def report(found: dict[str, Any], markdown: bool) -> str:
    """All tables."""
    lines = [record.told(found["circumstances"]), ""]
    for federated in found["federation"]:
        lines += ["### " * markdown + federated["title"], "", federation_table(federated, markdown), ""]
        lines += [overhead_table(federated, markdown), ""]
        if "skipped" in federated.get("flower", {}):
            lines += [f"- Flower with Opacus: left out, {federated['flower']['skipped']}.", ""]
    if found["silos"]:
        lines += ["### " * markdown + "By silos", "", silos_table(found["silos"], markdown), ""]
    if found["subjects"]:
        title = f"By subjects in a silo ({SETTINGS['mlp'].title}, {SETTINGS['mlp'].batch} items expected)"
        lines += ["### " * markdown + title, "", subjects_table(found["subjects"], markdown), ""]
    if found.get("many"):
        lines += ["### " * markdown + "Many silos", "", many_table(found["many"], markdown), ""]
    return "\n".join(lines)


def federation_table(found: dict[str, Any], markdown: bool) -> str:
    """Rounds per second, beside bare plain steps."""
    bare = {"seconds": found["plain_seconds"], "ratio": {"median": 1.0, "low": 1.0, "high": 1.0}}
    rows = [("bare steps, plain SGD", bare), ("wholegrain, in process", found)]
    flower = found.get("flower", {"skipped": ""})
    rows += [] if "skipped" in flower else [("Flower simulation, Opacus ghost", flower)]
    heads = ["", "rounds/s", "round", "time ÷ bare plain steps", "quartiles"]
    return table(heads, [_federation_row(title, row) for title, row in rows], markdown)


def _federation_row(title: str, found: dict[str, Any]) -> list[str]:
    seconds, ratio = found["seconds"]["median"], found["ratio"]
    quartiles = f"{ratio['low']:.2f}–{ratio['high']:.2f}"
    return [title, f"{1 / seconds:.3g}", duration(seconds), f"{ratio['median']:.2f}", quartiles]


def overhead_table(found: dict[str, Any], markdown: bool) -> str:
    """What a round adds to the steps in it."""
    titles = {
        "all": "everything but the steps",
        "training": "of it, the silo's loop: drawing and gathering batches",
        "pricing": "of it, pricing the round and keeping the ledger",
        "averaging": "of it, averaging and the rest",
    }
    shares, each = found["overheads"], found["beyond_a_step"]
    rows = [
        [title, f"{100 * shares[name]['median']:.1f} %", _percents(shares[name]), duration(each[name]["median"])]
        for name, title in titles.items()
    ]
    of_round = shares["of_round"]
    rows.append(["everything but the steps ÷ the round", f"{100 * of_round['median']:.1f} %", _percents(of_round), ""])
    return table(["beyond the steps", "÷ the steps", "quartiles", "for each step"], rows, markdown)


def _percents(found: dict[str, float]) -> str:
    return f"{100 * found['low']:.1f}–{100 * found['high']:.1f} %"


def silos_table(found: list[dict[str, Any]], markdown: bool) -> str:
    """A round's time, whole and per silo."""
    rows = [
        [row["title"], str(row["silos"]), duration(row["seconds"]["median"]), f"{row['per_silo']['median']:.2f}"]
        for row in found
    ]
    return table(["", "silos", "round", "per silo ÷ one silo's"], rows, markdown)


def subjects_table(found: list[dict[str, Any]], markdown: bool) -> str:
    """A step's time, and beside that with the fewest subjects."""
    rows = [
        [row["policy"], f"{row['subjects']:,}", duration(row["seconds"]["median"]), f"{row['ratio']['median']:.2f}"]
        for row in found
    ]
    return table(["", "subjects", "step", f"÷ {SUBJECTS[0]:,} subjects"], rows, markdown)


def many_table(found: list[dict[str, Any]], markdown: bool) -> str:
    """Seconds of the rounds and of the whole process, and its peak memory."""
    rows = [
        [
            f"{row['silos']:,} silos, {row['items']:,} items, {row['rounds']} rounds" + ", compiled" * row["compiled"],
            *(f"{row[name]:.1f} s" for name in ("cpu", "wall", "all_cpu", "all_wall")),
            f"{row['peak'] / 1e9:.2f} GB",
        ]
        for row in found
    ]
    return table(["", "rounds, CPU", "rounds, wall", "all, CPU", "all, wall", "peak"], rows, markdown)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """The parts that were asked for."""
    rounds = given.rounds or (2 if given.quick else 7)
    clock = record.CLOCKS[given.clock]
    most = 10_000 if given.quick else SUBJECTS[-1]
    found: dict[str, Any] = {"federation": [], "silos": [], "subjects": [], "many": []}
    for part in given.parts:
        print(f"{part} …", file=sys.stderr, flush=True)
        if part == "federation":
            found[part] = [
                federation(model, rounds, clock, not (given.no_flower or compiled), compiled)
                for model in given.models
                for compiled in ((False, True) if model in COMPILED else (False,))
            ]
        elif part == "silos":
            found[part] = [row for model in given.models for row in by_silos(model, rounds, clock)]
        elif part == "many":
            found[part] = [run_apart(100 if given.quick else MANY, compiled) for compiled in (False, True)]
        else:
            found[part] = [row for policy in POLICIES for row in by_subjects(policy, most, 5 * rounds, clock)]
    return {"circumstances": record.circumstances(given.clock), **found}


def arguments() -> argparse.Namespace:
    """The command line."""
    parts = ("federation", "silos", "subjects", "many")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--models", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, help="rounds that are counted (7 if not given)")
    parser.add_argument("--no-flower", action="store_true", help="leave Flower and Opacus out")
    parser.add_argument("--clock", choices=record.CLOCKS, default="wall", help="cpu, on a machine that others use")
    parser.add_argument("--quick", action="store_true", help="few rounds, few subjects: to see that it works")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--read", type=Path, help="tell the figures of this file again instead of running")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    return parser.parse_args()


def main() -> None:
    """Run (or read), keep, tell."""
    torch.set_num_threads(1)
    given = arguments()
    found = record.read(given.read) if given.read else run(given)
    if given.json:
        record.write(given.json, found)
    print(report(found, given.markdown))


if __name__ == "__main__":
    main()
