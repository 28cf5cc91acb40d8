"""What secure sums gain: scores at the same proved ε, when silos release by themselves and when only sums are seen.

Run: python benchmarks/trust_settings.py --table diabetes130.csv.gz   (rounds and learning rates; see there)
Then: python benchmarks/trust.py --table diabetes130.csv.gz [--only nlswork diabetes130] [--seeds 0 1 2]
Then: python benchmarks/trust.py --draw

Results are kept line by line in benchmarks/trust.jsonl: what is there already is not run again. Every method has the
same model, people, clip norm and server, and the rounds and learning rate that were chosen for it by one rule. Scores
are of people who were neither trained on nor looked at for that choice. Runs are the library's own but for two short
cuts (linear_sums.py): clipped sums of the linear model by matrix products, and no masks.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import altair as alt
import numpy as np

import draw
import record
import trust_cases
from linear_sums import quick_engine, with_short_cut
from trust_cases import CHOSEN, EPSILONS, METHODS, SCORES, by_cell, cells, key
from utility import Tree
from wholegrain.errors import WholegrainError
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "trust.jsonl"
PICTURE = record.ROOT / "docs" / "images" / "trust.svg"
BASELINE, SUMMED = "local, by span", "secure sum, by span"
AIMS = {"nlswork": (0.25, 0.5), "diabetes130": (0.25, 0.75)}
"""At the first ε the secure sum by span is to be where local noise by span is at the second."""


def play(tree: Tree) -> Tree:
    """The scores of one run; what is refused says why."""
    try:
        prepared = with_short_cut(prepare(RunSpec.of(tree), dataset=trust_cases.dataset(tree)))
        with open_guard(prepared, "trust") as guard:
            run = execute(prepared, guard, engine=quick_engine(prepared))
    except WholegrainError as error:
        return {"refused": str(error)}
    promised = run.plan.guarantee(Unit.SUBJECT)
    proved = {} if math.isinf(promised.epsilon) else {"proved": promised.epsilon}
    test = run.scores["test"]
    return {**proved, **{name: test.metrics[name] for name in ("accuracy", "auc") if name in test.metrics}}


def run(asked: argparse.Namespace) -> None:
    """Play every cell whose settings have been chosen and that has no result with them yet."""
    chosen, bases = by_cell(trust_cases.read(CHOSEN)), trust_cases.problems(asked.table)
    for cell in cells([name for name in bases if name in asked.only], asked.methods, asked.seeds):
        if key(cell) not in chosen:
            print(f"No settings for {cell}: run benchmarks/trust_settings.py")
            continue
        setting = {name: chosen[key(cell)][name] for name in ("rounds", "learning_rate")}
        if setting.items() <= by_cell(trust_cases.read(RESULTS)).get(key(cell), {}).items():
            continue
        tree = cell.spec(bases[cell.data], **setting)
        trust_cases.keep(RESULTS, {**asdict(cell), **setting, **play(tree)})


def scores_of(rows: Iterable[Tree], data: str, method: str, epsilon: float) -> list[float]:
    """In %, one for each seed; a method without an ε has the same at each."""
    found = [row for row in rows if (row["data"], row["method"]) == (data, method)]
    return [100 * row[SCORES[data]] for row in found if row["epsilon"] in (epsilon, None) and SCORES[data] in row]


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
        own = [{**row, "score": 100 * row[score]} for row in rows if row["data"] == data and score in row]
        private = alt.Data(values=[row for row in own if row["epsilon"]])
        without = alt.Data(values=[row for row in own if not row["epsilon"]])
        across = alt.X("epsilon:Q", title="ε (subject, proved)", scale=alt.Scale(type="log", domain=[0.09, 2.2]),
                       axis=alt.Axis(values=list(EPSILONS)))  # fmt: skip
        down = alt.Y("mean(score):Q", title=f"{score}, %", scale=alt.Scale(zero=False))
        colour = alt.Color("method:N", title=None, sort=list(METHODS))
        line = alt.Chart(private).mark_line(point=True).encode(x=across, y=down, color=colour)
        bars = alt.Chart(private).mark_rule().encode(x=across, y="min(score):Q", y2="max(score):Q", color=colour)
        rule = alt.Chart(without).mark_rule(strokeDash=[4, 3], color="#777777").encode(y="mean(score):Q")
        charts.append(alt.layer(rule, bars, line).properties(width=300, height=220, title=data))
    draw._dressed(alt.concat(*charts, columns=2).resolve_scale(color="shared")).save(PICTURE)


def show(asked: argparse.Namespace) -> None:
    """Print the tables, and draw the picture."""
    wanted = {key(cell) for cell in cells(asked.only, asked.methods, asked.seeds)}
    rows = [row for name, row in by_cell(trust_cases.read(RESULTS)).items() if name in wanted]
    for data in asked.only:
        tell(rows, data)
    picture(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(SCORES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draw", action="store_true")
    asked = parser.parse_args()
    show(asked) if asked.draw else run(asked)


if __name__ == "__main__":
    main()
