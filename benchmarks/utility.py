"""What a proved ε for whole people costs in accuracy: FedAvg, every policy and the best recipe, on four data sets.

Run: python benchmarks/utility.py --backbone recipes/digits.safetensors [--quick] [--only mnist …]
Then: python benchmarks/utility.py --draw

Results are kept line by line in benchmarks/utility.jsonl, each with commit, seconds of processor time and a digest of
its settings: what is there already is not run again, what was run with other settings is run anew and shown no more.
Accuracy is on people who were never trained on. Settings were chosen with these data sets in view, on a fifth of the
training people where docs/utility.md says so: such settings are unpaid (docs/paid-choices.md).
"""

import argparse
import functools
import hashlib
import itertools
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import torch

import draw
import record
from wholegrain.data.dataset import Dataset
from wholegrain.errors import WholegrainError
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "utility.jsonl"
EPSILONS, SEEDS, DELTA = (0.5, 1.0, 2.0, 4.0, 8.0), (0, 1, 2), 1e-5
POLICIES = ("local_item_dp", "local_group_dp", "higradavg_dp", "user_ldp", "subject_dp")
METHODS = ("fedavg", *POLICIES, "best", "best, by span")
KEY = ("data", "method", "epsilon", "seed", "settings")
Tree = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One run of the benchmark."""

    data: str
    method: str
    epsilon: float | None
    seed: int
    spec: Tree

    @property
    def key(self) -> tuple[Any, ...]:
        return self.data, self.method, self.epsilon, self.seed, self.settings

    @property
    def settings(self) -> str:
        """A digest of the spec; of a backbone's path, its name counts."""
        spec = self.spec
        if "start" in spec.get("model", {}):
            spec = merged(spec, {"model": {"start": Path(spec["model"]["start"]).name}})
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Problem:
    """A data set with its silos and model, and what each method is run with on it."""

    base: Tree
    fedavg: Tree
    policies: Mapping[str, Tree]
    best: Mapping[float, Tree]
    """By ε."""
    by_span: Mapping[float, Tree] | None = None
    """The best recipe where silos know in how many of them a subject is."""

    def cases(self, name: str, epsilons: Iterable[float], seeds: tuple[int, ...] = SEEDS) -> Iterator[Case]:
        """The best recipe first, then FedAvg, then the policies."""
        for seed in seeds:
            for epsilon in epsilons:
                yield self._case(name, "best", epsilon, seed, self.best[epsilon])
                if self.by_span:
                    yield self._case(name, "best, by span", epsilon, seed, self.by_span[epsilon])
            yield self._case(name, "fedavg", None, seed, self.fedavg)
        for seed in seeds:
            for method, tree in self.policies.items():
                for epsilon in epsilons:
                    yield self._case(name, method, epsilon, seed, tree)

    def _case(self, name: str, method: str, epsilon: float | None, seed: int, tree: Tree) -> Case:
        privacy = {"privacy": {"epsilon": epsilon, "delta": DELTA}} if epsilon else {}
        return Case(name, method, epsilon, seed, merged(self.base, {"seed": seed}, privacy, tree))


def merged(*trees: Mapping[str, Any]) -> Tree:
    """Sections side by side; a later value replaces an earlier one."""
    whole: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return whole


def trained(policy: Tree, rounds: Tree, **sections: Tree) -> Tree:
    return {"policy": policy, "rounds": {"averaging": "subjects", "checkpoint_every": 10**6, **rounds}, **sections}


MOMENTUM = {"step": "momentum", "momentum": 0.9, "schedule": "linear"}
LINEAR = {"schedule": "linear"}


def lineup(rounds: int, learning_rate: float, clip: float) -> Mapping[str, Tree]:
    """Every policy with every item in every step, alike in all but what it bounds."""
    given = {"rate": 1.0, "clip_norm": clip}
    long = {"count": rounds, "learning_rate": learning_rate}
    return {
        name: trained({"name": name, **given, **({"group_cap": 2} if name == "local_group_dp" else {})}, long)
        for name in POLICIES
    }


def nlswork() -> Problem:
    return Problem(
        base={
            "data": {"source": "nlswork", "options": {"centred": True}},
            "silos": {"surplus": "refuse"},
            "evaluation": {"test": 0.2},
        },
        fedavg=trained({"name": "fedavg", "rate": 1.0}, {"count": 100, "learning_rate": 2.0}, server=MOMENTUM),
        policies=lineup(30, 2.0, 1.0),
        best={
            epsilon: trained(
                {"name": "subject_dp", "rate": 1.0, "clip_norm": 0.5 if epsilon < 4 else 1.0, "by_span": True},
                {"count": 30, "learning_rate": 4.0},
                server=MOMENTUM,
            )
            for epsilon in EPSILONS
        },
    )


# Rounds and learning rate of the head on whitened features, by ε: fewer, longer steps where noise is dear.
HEAD = {0.5: (12, 200.0), 1.0: (20, 200.0), 2.0: (40, 150.0), 4.0: (60, 150.0), 8.0: (100, 150.0)}


def mnist(backbone: Path, silos: Tree) -> Problem:
    start = {"name": "upright_cnn", "start": str(backbone.absolute())}
    return Problem(
        base={
            "data": {"source": "mnist_writers"},
            "silos": {"count": 16, "items_per_subject": 131, **silos},
            "model": {**start, "train": "head"},
        },
        fedavg=trained(
            {"name": "fedavg", "batch_size": 48},
            {"count": 40, "steps": 5, "learning_rate": 0.1},
            model={"train": "all"},
            server={"schedule": "linear", "learning_rate": 1.0},
        ),
        policies=lineup(30, 100.0, 0.03),
        best={epsilon: head(epsilon) for epsilon in EPSILONS},
        by_span={epsilon: head(epsilon, by_span=True) for epsilon in EPSILONS} if "alpha" in silos else None,
    )


def head(epsilon: float, by_span: bool = False) -> Tree:
    """The head on whitened features; contributions that are divided by √m call for longer steps."""
    count, learning_rate = HEAD[epsilon]
    policy = {"name": "subject_dp", "rate": 1.0, "clip_norm": 0.03, "by_span": by_span}
    return trained(policy, {"count": count, "learning_rate": learning_rate * (2.5 if by_span else 1)}, server=LINEAR)


def steps(clip_norm: float, by_epsilon: Mapping[float, tuple[int, float, Tree]]) -> Mapping[float, Tree]:
    """Everybody in every step; rounds, learning rate and the server's section by ε."""
    policy = {"name": "subject_dp", "rate": 1.0, "clip_norm": clip_norm}
    return {
        epsilon: trained(policy, {"count": count, "learning_rate": rate}, server=server)
        for epsilon, (count, rate, server) in by_epsilon.items()
    }


# With thousands of parameters and hundreds of people. Plays: by a grid; glyphs: as the planner has it.
TEXT = {
    0.5: (40, 10.0, LINEAR),
    1.0: (40, 10.0, LINEAR),
    2.0: (6, 10.0, {}),
    4.0: (6, 10.0, {}),
    8.0: (30, 30.0, LINEAR),
}
PIXELS = {0.5: (20, 0.18, {}), 1.0: (20, 0.35, {}), 2.0: (20, 0.7, {}), 4.0: (20, 1.4, {}), 8.0: (40, 1.4, {})}


def plays() -> Problem:
    return Problem(
        base={
            "data": {"source": "plays", "options": {"stride": 10}},
            "silos": {"partition": "uniform", "count": 16, "items_per_subject": 200},
            "model": {"name": "bigram"},
            "evaluation": {"test": 0.2},
        },
        fedavg=trained({"name": "fedavg", "rate": 0.5}, {"count": 60, "learning_rate": 20.0}, server=MOMENTUM),
        policies=lineup(20, 20.0, 0.1),
        best=steps(0.1, TEXT),
    )


def glyphs() -> Problem:
    return Problem(
        base={
            "data": {"source": "glyphs", "options": {"writers": 600, "items": 20, "classes": 10}},
            "silos": {"partition": "uniform", "count": 16},
            "evaluation": {"test": 0.2},
        },
        fedavg=trained({"name": "fedavg", "rate": 0.5}, {"count": 60, "learning_rate": 0.2}),
        policies=lineup(20, 1.0, 1.0),
        best=steps(1.0, PIXELS),
    )


def problems(backbone: Path) -> Mapping[str, Problem]:
    power = {f"mnist power {a}": mnist(backbone, {"partition": "power", "alpha": float(a)}) for a in (2, 8, 16)}
    uniform = mnist(backbone, {"partition": "uniform"})
    return {"nlswork": nlswork(), "mnist": uniform, "plays": plays(), "glyphs": glyphs(), **power}


@functools.cache
def dataset(source: str) -> Dataset:
    """What a spec's data section names, read once."""
    return load_dataset(RunSpec.of({"data": json.loads(source)}))


def play(case: Case) -> Tree:
    """The result of a case; what is refused says why."""
    spec = RunSpec.of(case.spec)
    found: Tree = dict(zip(KEY, case.key, strict=True))
    try:
        data = dataset(json.dumps(case.spec["data"], sort_keys=True))
        prepared = prepare(spec, dataset=data, pricing=accountant("pld"))
        with open_guard(prepared, "utility") as guard:
            run = execute(prepared, guard)
    except WholegrainError as error:
        return {**found, "refused": str(error)}
    promised = run.plan.guarantee(Unit.SUBJECT)
    spent = {"proved": promised.epsilon, "standing": str(promised.standing)} if case.epsilon else {}
    return {**found, **spent, "accuracy": run.accuracy, "loss": run.scores["test"].loss}


def read(path: Path) -> list[Tree]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(row: Tree) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def shown(rows: list[Tree], known: Mapping[str, Problem]) -> list[Tree]:
    """Results of the settings as they are now."""
    keys = {case.key for name, problem in known.items() for case in problem.cases(name, EPSILONS)}
    return [row for row in rows if key_of(row) in keys]


def run(cases: Iterable[Case], path: Path) -> None:
    """Play what was not played yet; each result is kept as soon as it is there."""
    done = {key_of(row) for row in read(path)}
    commit = record.circumstances("cpu")["commit"]
    for case in cases:
        if case.key in done:
            continue
        before = time.process_time()
        row = {**play(case), "commit": commit, "seconds": round(time.process_time() - before, 1)}
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def table(rows: list[Tree]) -> str:
    """Mean accuracy and spread over seeds at every ε that was run, as Markdown."""
    epsilons = sorted({row["epsilon"] for row in rows} - {None})
    lines = ["| data | method | " + " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons) + " |"]
    lines.append("|---|---|" + "---|" * len(epsilons))
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == name]
        for method in METHODS:
            cells = [cell([r for r in own if r["method"] == method and r["epsilon"] in (e, None)]) for e in epsilons]
            if any(found != "–" for found in cells):
                lines.append(f"| {name} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(rows: list[Tree]) -> str:
    found = [100 * row["accuracy"] for row in rows if "accuracy" in row]
    if not found:
        return "refused" if rows else "–"
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.1f}{spread}" + ("" if len(found) == len(SEEDS) else f" ({len(found)})")


def behind(rows: list[Tree], data: str, epsilon: float) -> list[float]:
    """How many points the best recipe is below FedAvg, seed by seed."""
    free, best = (
        {row["seed"]: row["accuracy"] for row in rows if (row["data"], row["method"], row["epsilon"]) == wanted}
        for wanted in ((data, "fedavg", None), (data, "best", epsilon))
    )
    return [100 * (free[seed] - best[seed]) for seed in sorted(free.keys() & best.keys())]


def constant(problem: Problem, name: str) -> list[float]:
    """How often the most frequent answer of the training part is right, in %, seed by seed."""
    found = []
    for case in problem.cases(name, ()):
        parts = split_dataset(dataset(json.dumps(case.spec["data"], sort_keys=True)), RunSpec.of(case.spec))
        answers = np.bincount(np.concatenate([silo.data.targets for silo in parts.silos.values()]))
        found.append(100 * float((parts.held_out["test"].targets == answers.argmax()).mean()))
    return found


def told(figures: list[float]) -> str:
    spread = f" ± {statistics.stdev(figures):.2f}" if len(figures) > 1 else ""
    return f"{statistics.mean(figures):.2f}{spread} ({len(figures)} seeds)"


def picture(rows: list[Tree], path: Path) -> None:
    """Accuracy by ε, one panel for each data set; a band shows the range over seeds."""
    shown = [{**row, "accuracy": 100 * row["accuracy"]} for row in rows if "accuracy" in row]
    private = [row for row in shown if row["epsilon"]]
    names = list(dict.fromkeys(row["data"] for row in shown))
    charts = []
    for name in names:
        points = alt.Data(values=[row for row in private if row["data"] == name])
        without = alt.Data(values=[row for row in shown if row["data"] == name and not row["epsilon"]])
        look = draw.told_apart("method:N", ["best", "best, by span", *reversed(POLICIES)])
        across = alt.X("epsilon:Q", title="ε (subject, proved)", scale=alt.Scale(type="log", domain=[0.45, 9]),
                       axis=alt.Axis(values=list(EPSILONS)))  # fmt: skip
        down = alt.Y("mean(accuracy):Q", title="accuracy, %", scale=alt.Scale(zero=False))
        line = alt.Chart(points).mark_line(point=True).encode(x=across, y=down, **look)
        ends = {"y": "min(accuracy):Q", "y2": "max(accuracy):Q", "color": look["color"]}
        bars = alt.Chart(points).mark_rule().encode(x=across, **ends)
        rule = alt.Chart(without).mark_rule(strokeDash=[4, 3], color="#777777").encode(y="mean(accuracy):Q")
        charts.append(alt.layer(rule, bars, line).properties(width=260, height=190, title=name))
    whole = alt.concat(*charts, columns=2).resolve_scale(color="shared", strokeDash="shared")
    draw._dressed(whole).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backbone", type=Path, default=record.ROOT / "recipes" / "digits.safetensors")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", help="these data sets")
    record.add_names(parser, "--methods", METHODS)
    parser.add_argument("--epsilons", nargs="+", type=float, choices=EPSILONS, default=EPSILONS)
    parser.add_argument("--quick", action="store_true", help="one seed, ε = 1 and 4")
    parser.add_argument("--draw", action="store_true", help="print the table, and draw the picture beside the results")
    parser.add_argument("--constant", action="store_true", help="how often a constant answer is right")
    given = parser.parse_args()
    known = problems(given.backbone)
    if strange := [name for name in given.only or () if name not in known]:
        parser.error(f"'{strange[0]}' is not one of the data sets: {', '.join(known)}")
    if given.draw:
        rows = shown(read(given.results), known)
        if not rows:
            parser.error(f"there are no results of the settings as they are now in '{given.results}'")
        picture(rows, given.results.with_suffix(".svg"))
        print(table(rows))
        for name, epsilon in itertools.product(known, EPSILONS):
            if gaps := behind(rows, name, epsilon):
                print(f"{name}, ε = {epsilon:g}: best is {told(gaps)} points below fedavg")
        return
    if given.constant:
        for name in given.only or known:
            print(f"{name}: a constant answer is right in {told(constant(known[name], name))} %")
        return
    torch.set_num_threads(1)
    epsilons, seeds = ((1.0, 4.0), (0,)) if given.quick else (given.epsilons, SEEDS)
    cases = [
        case
        for name, problem in known.items()
        if not given.only or name in given.only
        for case in problem.cases(name, epsilons, seeds)
        if not given.methods or case.method in given.methods
    ]
    if not cases:
        parser.error("none of these data sets has one of these methods")
    before = len(read(given.results))
    run(cases, given.results)
    record.say_if_done(before, len(read(given.results)), "--results")


if __name__ == "__main__":
    record.start(main)
