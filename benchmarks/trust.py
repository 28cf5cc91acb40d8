"""What secure sums gain: scores at the same proved ε, when silos release by themselves and when only sums are seen.

Run: python benchmarks/trust_settings.py --table diabetes130.csv.gz   (rounds and learning rates; see there)
Then: python benchmarks/trust.py --table diabetes130.csv.gz [--only nlswork diabetes130] [--seeds 0 1 2] [--draws 3]
Then: python benchmarks/trust.py --draw

Results are kept line by line in benchmarks/trust.jsonl: what is there already is not run again. Every method has the
same model, people, clip norm and server, and the rounds and learning rate that were chosen for it by one rule. Scores
are of people who were neither trained on nor looked at for that choice. Runs are emulated (trust_settings.py), with the
noise of the library's plan. `--library` plays the same cells by the library into trust_library.jsonl, and `--draw` says
how far the two are apart.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import altair as alt
import numpy as np

import draw
import record
import trust_cases
from linear_sums import quick_engine, with_short_cut
from trust_cases import CHOSEN, EPSILONS, METHODS, SCORES, Cell, by_cell, cells, key
from trust_settings import Emulator
from utility import Tree
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "trust.jsonl"
LIBRARY = record.ROOT / "benchmarks" / "trust_library.jsonl"
ROW = ("data", "method", "epsilon", "seed", "rounds", "learning_rate", "draw")
"""What tells a result from others."""
PICTURE = record.ROOT / "docs" / "images" / "trust.svg"
BASELINE, SUMMED = "local, by span", "secure sum, by span"
AIMS = {"nlswork": (0.25, 0.5), "diabetes130": (0.25, 0.75)}
"""At the first ε the secure sum by span is to be where local noise by span is at the second."""


def play(tree: Tree, data: str) -> Tree:
    """One run of the library: its score, and what it has proved."""
    prepared = with_short_cut(prepare(RunSpec.of(tree), dataset=trust_cases.dataset(tree)))
    with open_guard(prepared, "trust") as guard:
        run = execute(prepared, guard, engine=quick_engine(prepared))
    proved = run.plan.guarantee(Unit.SUBJECT).epsilon
    return {**({} if math.isinf(proved) else {"proved": proved}), "score": run.scores["test"].metrics[SCORES[data]]}


def settings(path: Path, wanted: list[Cell], draw: int) -> Iterator[tuple[Cell, Tree]]:
    """Cells whose settings have been chosen and that have no result with them and this draw of noise yet."""
    chosen = by_cell(trust_cases.read(CHOSEN))
    done = [{name: row.get(name) for name in ROW} for row in trust_cases.read(path)]
    for cell in wanted:
        if key(cell) not in chosen:
            print(f"No settings for {cell}: run benchmarks/trust_settings.py")
            continue
        setting = {name: chosen[key(cell)][name] for name in ("rounds", "learning_rate")}
        if {**asdict(cell), **setting, "draw": draw} not in done:
            yield cell, setting


def run_library(asked: argparse.Namespace) -> None:
    """Play cells by the library, with its seeded noise."""
    bases = trust_cases.problems(asked.table)
    wanted = cells([name for name in bases if name in asked.only], asked.methods, asked.seeds)
    for cell, setting in settings(LIBRARY, wanted, 0):
        found = play(cell.spec(bases[cell.data], **setting), cell.data)
        trust_cases.keep(LIBRARY, {**asdict(cell), **setting, "draw": 0, **found})


def run(asked: argparse.Namespace) -> None:
    """Emulate cells, one draw of noise after the other."""
    bases = {name: tree for name, tree in trust_cases.problems(asked.table).items() if name in asked.only}
    emulators = {(name, seed): Emulator(name, bases[name], seed, "test") for name in bases for seed in asked.seeds}
    for number in range(asked.draws):
        for cell, setting in settings(RESULTS, cells(bases, asked.methods, asked.seeds), number):
            emulator = emulators[cell.data, cell.seed]
            noise = emulator.noise(cell, setting["rounds"])
            # Other noise for each seed, and none that a setting was chosen with.
            vector = emulator.train(cell.method, noise, **setting, draw=1000 * (cell.seed + 1) + number)
            row = {**asdict(cell), **setting, "draw": number, "score": emulator.score(vector)}
            trust_cases.keep(RESULTS, row)


def scores_of(rows: Iterable[Tree], data: str, method: str, epsilon: float) -> list[float]:
    """In %, one for each seed: the mean over draws of noise; a method without an ε has the same at each."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if (row["data"], row["method"]) == (data, method) and row["epsilon"] in (epsilon, None):
            by_seed.setdefault(row["seed"], []).append(100 * row["score"])
    return [statistics.mean(found) for _, found in sorted(by_seed.items())]


def table(rows: list[Tree], data: str) -> str:
    """Mean and spread over seeds, as Markdown."""
    lines = [f"| {data}, {SCORES[data]} in % | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |"]
    lines.append("|---|" + "---|" * len(EPSILONS))
    for method in METHODS:
        cells = []
        for epsilon in EPSILONS:
            found = scores_of(rows, data, method, epsilon)
            spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
            cells.append(f"{statistics.mean(found):.1f}{spread}" if found else "–")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def means(rows: list[Tree], data: str, method: str) -> Mapping[float, float]:
    """Mean over seeds, by ε."""
    found = {epsilon: scores_of(rows, data, method, epsilon) for epsilon in EPSILONS}
    return {epsilon: statistics.mean(scores) for epsilon, scores in found.items() if scores}


def same_score(baseline: Mapping[float, float], score: float) -> str:
    """The ε at which the baseline has this score, between two of its ε on a logarithmic scale."""
    points = sorted(baseline)
    if score < baseline[points[0]]:
        return f"below {points[0]:g}"
    for low, high in itertools.pairwise(points):
        if baseline[low] <= score < baseline[high]:
            share = (score - baseline[low]) / (baseline[high] - baseline[low])
            return f"{math.exp(np.interp(share, [0, 1], [math.log(low), math.log(high)])):.2f}"
    return f"{points[-1]:g} or more"


def tell(rows: list[Tree], data: str) -> None:
    """The table, whether the aim is met, and for each ε the one at which local noise by span is as good."""
    print(table(rows, data), end="\n\n")
    baseline, summed = means(rows, data, BASELINE), means(rows, data, SUMMED)
    for epsilon, score in summed.items():
        print(f"{SUMMED} at ε = {epsilon:g}: {score:.2f}, as {BASELINE} at ε = {same_score(baseline, score)}")
    at, like = AIMS[data]
    pairs = zip(scores_of(rows, data, SUMMED, at), scores_of(rows, data, BASELINE, like), strict=True)
    ahead = [one - other for one, other in pairs]
    print(f"ε = {at:g} against {like:g}: {statistics.mean(ahead):+.2f}, by seed", [f"{each:+.2f}" for each in ahead])
    print()


def picture(rows: list[Tree]) -> None:
    """Scores by ε, one panel for each data set; bars show the range over seeds."""
    charts = []
    for data, score in SCORES.items():
        own = [
            {"method": method, "epsilon": epsilon, "score": each}
            for method in METHODS
            for epsilon in EPSILONS
            for each in scores_of(rows, data, method, epsilon)
        ]
        private = alt.Data(values=[row for row in own if row["method"] != "fedavg"])
        without = alt.Data(values=[row for row in own if row["method"] == "fedavg"])
        across = alt.X("epsilon:Q", title="ε (subject, proved)", scale=alt.Scale(type="log", domain=[0.09, 2.2]),
                       axis=alt.Axis(values=list(EPSILONS)))  # fmt: skip
        down = alt.Y("mean(score):Q", title=f"{score}, %", scale=alt.Scale(zero=False))
        colour = alt.Color("method:N", title=None, sort=list(METHODS))
        line = alt.Chart(private).mark_line(point=True).encode(x=across, y=down, color=colour)
        bars = alt.Chart(private).mark_rule().encode(x=across, y="min(score):Q", y2="max(score):Q", color=colour)
        rule = alt.Chart(without).mark_rule(strokeDash=[4, 3], color="#777777").encode(y="mean(score):Q")
        charts.append(alt.layer(rule, bars, line).properties(width=300, height=220, title=data))
    draw._dressed(alt.concat(*charts, columns=2).resolve_scale(color="shared")).save(PICTURE)


def compare(rows: list[Tree], played: list[Tree]) -> None:
    """How far runs of the library are from the mean of emulated ones, with other noise."""
    emulated: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        emulated.setdefault(tuple(row[name] for name in ROW[:-1]), []).append(row["score"])
    pairs = [(row["score"], emulated.get(tuple(row[name] for name in ROW[:-1]))) for row in played]
    gaps = [100 * (score - statistics.mean(found)) for score, found in pairs if found]
    if len(gaps) > 1:
        print(f"{len(gaps)} runs of the library: {statistics.mean(gaps):+.2f} ± {statistics.stdev(gaps):.2f} points")


def show(asked: argparse.Namespace) -> None:
    """Print the tables, and draw the picture."""
    wanted = {key(cell) for cell in cells(asked.only, asked.methods, asked.seeds)}
    rows = [row for row in trust_cases.read(RESULTS) if tuple(row[name] for name in ROW[:4]) in wanted]
    for data in asked.only:
        tell(rows, data)
    compare(rows, trust_cases.read(LIBRARY))
    picture(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(SCORES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draws", type=int, default=3, help="of noise, for each seed")
    parser.add_argument("--library", action="store_true", help="play by the library instead of emulating")
    parser.add_argument("--draw", action="store_true", help="tables and picture of what is on record")
    asked = parser.parse_args()
    if asked.draw:
        show(asked)
    else:
        run_library(asked) if asked.library else run(asked)


if __name__ == "__main__":
    main()
