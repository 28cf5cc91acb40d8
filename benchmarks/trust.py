"""What secure sums gain: accuracy at the same proved ε, when silos release by themselves and when only sums are seen.

Run: python benchmarks/trust.py [--only nlswork diabetes130] [--table diabetes130.csv.gz] [--seeds 3]
Then: python benchmarks/trust.py --draw

Results are kept line by line in benchmarks/trust.jsonl: what is there already is not run again. Every method has the
same model, people, clip norm, rounds, server and learning rate (but for those in RATES). Scores are of
people who were never trained on. Gradients of the linear model are summed by matrix products (linear_sums.py).
"""

import argparse
import functools
import hashlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import record
from linear_sums import LinearSum, take_short_cut
from wholegrain.data.dataset import Dataset
from wholegrain.errors import WholegrainError
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec, load

RESULTS = record.ROOT / "benchmarks" / "trust.jsonl"
EPSILONS, DELTA = (0.1, 0.25, 0.5, 0.75, 1.0, 2.0), 1e-5
RATES = {"fedavg": 0.5, "secure sum, by span": 2.0, "uldp_avg": 2.0}
"""Multiples of the others' learning rate: FedAvg clips nothing, and contributions of 1/m call for longer steps. Twice
the rate was tried for local noise by span, too, on nlswork at ε = 0.25: 73.6 % in place of 74.0 %.
"""
SUM = {"model": "secure_sum"}
MOMENTUM = {"step": "momentum", "momentum": 0.9, "schedule": "linear"}
Tree = dict[str, Any]

METHODS: Mapping[str, Tree] = {
    "local": {"policy": {"name": "subject_dp"}},
    "local, by span": {"policy": {"name": "subject_dp", "by_span": True}},
    "secure sum": {"policy": {"name": "subject_dp"}, "trust": SUM},
    "secure sum, by span": {"policy": {"name": "subject_dp", "by_span": True}, "trust": SUM},
    "uldp_avg": {"policy": {"name": "uldp_avg", "by_span": True, "local_steps": 3}, "trust": SUM},
    "fedavg": {"policy": {"name": "fedavg"}},
}


def merged(*trees: Mapping[str, Any]) -> Tree:
    """Sections side by side; a later value replaces an earlier one."""
    whole: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return whole


def problems(table: Path) -> dict[str, tuple[Tree, float]]:
    """Each data set's spec, and the learning rate on it."""
    found: dict[str, tuple[Tree, float]] = {
        "nlswork": (
            {
                "data": {"source": "nlswork", "options": {"centred": True}},
                "silos": {"surplus": "refuse"},
                "policy": {"rate": 1.0, "clip_norm": 0.5},
                "rounds": {"count": 15, "averaging": "subjects", "checkpoint_every": 10**6},
                "server": MOMENTUM,
                "evaluation": {"test": 0.2},
            },
            4.0,
        )
    }
    if table.exists():
        spec = load(record.ROOT / "examples" / "diabetes130.toml", (f"data.table.path={table.absolute()}",))
        tree = spec.model_dump(mode="json", exclude_unset=True, include={"data", "silos", "model", "evaluation"})
        found["diabetes130"] = (
            merged(
                tree,
                {
                    "policy": {"rate": 1.0, "clip_norm": 1.0},
                    "rounds": {"count": 15, "averaging": "subjects", "checkpoint_every": 10**6},
                    "server": MOMENTUM,
                },
            ),
            4.0,
        )
    return found


@functools.cache
def dataset(source: str) -> Dataset:
    """What a spec's data section names, read once."""
    return load_dataset(RunSpec.of({"data": json.loads(source)}))


def play(tree: Tree) -> Tree:
    """The scores of one run; what is refused says why."""
    spec = RunSpec.of(tree)
    try:
        prepared = prepare(spec, dataset=dataset(json.dumps(tree["data"], sort_keys=True)))
        short = LinearSum(prepared.clipped_sum, prepared.task.outputs)
        prepared = replace(prepared, clipped_sum=short)
        with open_guard(prepared, "trust") as guard:
            run = execute(prepared, guard)
    except WholegrainError as error:
        return {"refused": str(error)}
    promised = run.plan.guarantee(Unit.SUBJECT)
    proved = {} if math.isinf(promised.epsilon) else {"proved": promised.epsilon}
    test = run.scores["test"]
    return {**proved, **{name: test.metrics[name] for name in ("accuracy", "auc") if name in test.metrics}}


def cases(asked: argparse.Namespace) -> Iterator[Tree]:
    """Everything that is to be played, cheapest data first, one seed after the other."""
    for seed in range(asked.seeds):
        for data, (base, learning_rate) in problems(asked.table).items():
            for method in asked.methods if data in asked.only else ():
                for epsilon in (None,) if method == "fedavg" else EPSILONS:
                    privacy = {"privacy": {"epsilon": epsilon, "delta": DELTA}} if epsilon else {}
                    rate = {"rounds": {"learning_rate": learning_rate * RATES.get(method, 1.0)}}
                    tree = merged(base, METHODS[method], privacy, rate, {"seed": seed})
                    yield {"data": data, "method": method, "epsilon": epsilon, "seed": seed, "spec": tree}


def settings(tree: Tree) -> str:
    """A digest of a spec; where its table lies does not count."""
    spec = json.loads(json.dumps(tree))
    spec.get("data", {}).get("table", {}).pop("path", None)
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def read() -> list[Tree]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def key(row: Tree) -> tuple[Any, ...]:
    return row["data"], row["method"], row["epsilon"], row["seed"], row["settings"]


def run(asked: argparse.Namespace) -> None:
    done = {key(row) for row in read()}
    for case in cases(asked):
        tree = case.pop("spec")
        row = {**case, "settings": settings(tree)}
        if key(row) in done:
            continue
        row |= play(tree)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def mean(rows: list[Tree], score: str) -> float | None:
    found = [100 * row[score] for row in rows if score in row]
    return statistics.mean(found) if found else None


def draw(asked: argparse.Namespace) -> None:
    """The table, and for each method the ε at which local noise by span is as good."""
    known = {(c["data"], c["method"], c["epsilon"], c["seed"], settings(c["spec"])) for c in cases(asked)}
    rows = [row for row in read() if key(row) in known]
    for data, score in (("nlswork", "accuracy"), ("diabetes130", "auc")):
        own = [row for row in rows if row["data"] == data]
        if not own:
            continue
        print(f"| {data}, {score} in % | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |")
        print("|---|" + "---|" * len(EPSILONS))
        for method in METHODS:
            cells = []
            for epsilon in EPSILONS:
                found = [
                    100 * r[score]
                    for r in own
                    if r["method"] == method and r["epsilon"] in (epsilon, None) and score in r
                ]
                spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
                cells.append(f"{statistics.mean(found):.1f}{spread}" if found else "–")
            print(f"| {method} | " + " | ".join(cells) + " |")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=["nlswork", "diabetes130"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draw", action="store_true")
    asked = parser.parse_args()
    take_short_cut()
    draw(asked) if asked.draw else run(asked)


if __name__ == "__main__":
    main()
