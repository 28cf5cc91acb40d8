"""What secure sums gain: scores at the same proved ε, when silos release by themselves and when only sums are seen.

Run: python benchmarks/trust_settings.py --table diabetes130.csv.gz   (rounds and learning rates; see there)
Then: python benchmarks/trust.py --table diabetes130.csv.gz [--only nlswork diabetes130] [--seeds 0 1 2] [--draws 10]
Then: python benchmarks/trust.py --table diabetes130.csv.gz --library --draws 8
Then: python benchmarks/trust.py --draw

Results are kept line by line: what is there already is not run again. Every method has the same model, people, clip
norm and server, and the rounds and learning rate that were chosen for it by one rule. Scores are of people who were
neither trained on nor looked at for that choice. The table is of emulated runs (trust_emulator.py; trust.jsonl).
`--library` has the library play the cells that the aims are about (trust_library.jsonl), and `--draw` says how far the
two are apart.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import altair as alt
import numpy as np
from scipy.stats import t as student

import draw
import record
import trust_cases
from linear_sums import quick_engine, with_short_cut
from trust_cases import CHOSEN, EPSILONS, METHODS, SCORES, Cell, by_cell, cells, key
from trust_emulator import Emulator
from utility import Tree
from wholegrain._random import Purpose, derive
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import play_rounds, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.tuning_trials import PaidBefore
from wholegrain.silo.noise import SeededNoise

RESULTS = record.ROOT / "benchmarks" / "trust.jsonl"
LIBRARY = record.ROOT / "benchmarks" / "trust_library.jsonl"
CELL = ("data", "method", "epsilon", "seed", "rounds", "learning_rate")
"""What the draws of noise in one cell have in common."""
PICTURE = record.ROOT / "docs" / "images" / "trust.svg"
BASELINE, SUMMED = "local, by span", "secure sum, by span"
AIMS = {"nlswork": (0.25, 0.5), "diabetes130": (0.25, 0.75)}
"""At the first ε the secure sum by span is to be where local noise by span is at the second."""


def prepared_run(tree: Tree) -> PreparedRun:
    """A run of the library, with its short cuts for linear models."""
    return with_short_cut(prepare(RunSpec.of(tree), dataset=trust_cases.dataset(tree)))


def play(prepared: PreparedRun, data: str, number: int) -> Tree:
    """The score of one draw of the library's noise. The plan says what all rounds cost, so no ledger prices each."""
    seed = derive(prepared.spec.seed, Purpose.NOISE, "draw", number)
    run, proved = replace(prepared, noise=SeededNoise(seed)), prepared.plan.guarantee(Unit.SUBJECT).epsilon
    vector = play_rounds(run, PaidBefore(run.plan, proved), engine=quick_engine(run)).vector
    scores = Scorer.of(run.task, run.loss, run.task.metrics).score(run.learner.trained, vector, run.scored["test"])
    return {"proved": proved, "score": scores.metrics[SCORES[data]]}


def settings(path: Path, asked: list[Cell], draws: int) -> Iterator[tuple[Cell, Tree, list[int]]]:
    """Cells whose settings have been chosen, and the draws of noise that have no result with them yet."""
    chosen, rows = by_cell(trust_cases.read(CHOSEN)), trust_cases.read(path)
    done = {(*(row[name] for name in CELL), row["draw"]) for row in rows}
    for cell in asked:
        if key(cell) not in chosen:
            print(f"No settings for {cell}: run benchmarks/trust_settings.py")
            continue
        setting = {name: chosen[key(cell)][name] for name in ("rounds", "learning_rate")}
        wanted = range(draws if cell.epsilon else 1)  # without privacy there is no noise
        missing = [number for number in wanted if (*key(cell), *setting.values(), number) not in done]
        if missing:
            yield cell, setting, missing


def deciding(data: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """The cells that the aims are about, one seed after the other."""
    return [
        Cell(name, method, epsilon, seed)
        for seed in seeds
        for name in data
        for method, epsilon in zip((SUMMED, BASELINE), AIMS[name], strict=True)
    ]


def run_library(asked: argparse.Namespace) -> None:
    """Have the library play the cells that decide, with its seeded noise."""
    bases = trust_cases.problems(asked.table)
    wanted = deciding([name for name in bases if name in asked.only], asked.seeds)
    for cell, setting, missing in settings(LIBRARY, wanted, asked.draws):
        prepared = prepared_run(cell.spec(bases[cell.data], **setting))
        for number in missing:
            found = play(prepared, cell.data, number)
            trust_cases.keep(LIBRARY, {**asdict(cell), **setting, "draw": number, **found})


def run(asked: argparse.Namespace) -> None:
    """Emulate cells, all draws of noise of one at once."""
    bases = {name: tree for name, tree in trust_cases.problems(asked.table).items() if name in asked.only}
    emulators = {(name, seed): Emulator(name, bases[name], seed, "test") for name in bases for seed in asked.seeds}
    for cell, setting, missing in settings(RESULTS, cells(bases, asked.methods, asked.seeds), asked.draws):
        emulator, rounds = emulators[cell.data, cell.seed], setting["rounds"]
        noise = emulator.noise(cell, rounds)
        # Other noise for each seed, and none that a setting was chosen with.
        draws = [1000 * (cell.seed + 1) + number for number in missing]
        vectors = emulator.train(cell.method, noise, rounds, [setting["learning_rate"]] * len(draws), draws)
        for number, score in zip(missing, emulator.scores(vectors), strict=True):
            trust_cases.keep(RESULTS, {**asdict(cell), **setting, "draw": number, "score": score})


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


def tell(rows: list[Tree], played: list[Tree], data: str) -> None:
    """The table, for each ε the one at which local noise by span is as good, and whether the aim is met."""
    print(table(rows, data), end="\n\n")
    baseline, summed = means(rows, data, BASELINE), means(rows, data, SUMMED)
    for epsilon, score in summed.items():
        print(f"{SUMMED} at ε = {epsilon:g}: {score:.2f}, as {BASELINE} at ε = {same_score(baseline, score)}")
    for title, found in (("emulated", rows), ("library", played)):
        ahead = differences(found, data)
        if all(len(draws) > 1 for draws in ahead.values()) and ahead:
            print(f"{data}, {SUMMED} at ε = {AIMS[data][0]:g} less {BASELINE} at ε = {AIMS[data][1]:g}, {title}:")
            print(
                f"  {interval(ahead)}; by seed", ", ".join(f"{statistics.mean(each):+.2f}" for each in ahead.values())
            )
    print()


def differences(rows: Iterable[Tree], data: str) -> dict[int, list[float]]:
    """By seed: how many points the secure sum is ahead in each draw of noise that both have."""
    found: dict[tuple[str, int, int], float] = {}
    for row in rows:
        if (row["data"], row["method"], row["epsilon"]) in zip([data] * 2, (SUMMED, BASELINE), AIMS[data], strict=True):
            found[row["method"], row["seed"], row["draw"]] = 100 * row["score"]
    ahead: dict[int, list[float]] = {}
    for method, seed, number in sorted(found):
        if method == SUMMED and (BASELINE, seed, number) in found:
            gain = found[SUMMED, seed, number] - found[BASELINE, seed, number]
            ahead.setdefault(seed, []).append(gain)
    return ahead


def interval(ahead: Mapping[int, list[float]]) -> str:
    """The mean over seeds of the mean over draws, with 95 % for the noise; seeds are taken as they are."""
    mean = statistics.mean(statistics.mean(draws) for draws in ahead.values())
    variance = sum(statistics.variance(draws) / len(draws) for draws in ahead.values()) / len(ahead) ** 2
    freedom = sum(len(draws) - 1 for draws in ahead.values())
    count = sum(len(draws) for draws in ahead.values())
    return f"{mean:+.2f} ± {student.ppf(0.975, freedom) * math.sqrt(variance):.2f} (95 %, {count} pairs of runs)"


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
        look = draw.told_apart("method:N", [method for method in METHODS if method != "fedavg"])
        line = alt.Chart(private).mark_line(point=True).encode(x=across, y=down, **look)
        ends = {"y": "min(score):Q", "y2": "max(score):Q", "color": look["color"]}
        bars = alt.Chart(private).mark_rule().encode(x=across, **ends)
        rule = alt.Chart(without).mark_rule(strokeDash=[4, 3], color="#777777").encode(y="mean(score):Q")
        charts.append(alt.layer(rule, bars, line).properties(width=260, height=220, title=data))
    draw._dressed(alt.concat(*charts, columns=2).resolve_scale(color="shared", strokeDash="shared")).save(PICTURE)


def compare(rows: list[Tree], played: list[Tree]) -> None:
    """How far runs of the library are from emulated ones with the same settings and other noise, by cell."""
    emulated, library = by_settings(rows), by_settings(played)
    for cell in sorted(library.keys() & emulated.keys(), key=str):
        ours, theirs = library[cell], emulated[cell]
        if min(len(ours), len(theirs)) > 1:
            error = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs))
            gap = statistics.mean(ours) - statistics.mean(theirs)
            print(*cell, f"library less emulated: {gap:+.2f} ± {error:.2f} (standard error)")


def by_settings(rows: Iterable[Tree]) -> dict[tuple[object, ...], list[float]]:
    """Scores in %, of all draws of a cell with its settings."""
    found: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in CELL), []).append(100 * row["score"])
    return found


def show(asked: argparse.Namespace) -> None:
    """Print the tables, and draw the picture: of runs that have the settings that were chosen last."""
    chosen = by_cell(trust_cases.read(CHOSEN))
    wanted = {key(cell) for cell in cells(asked.only, asked.methods, asked.seeds)}
    current = {tuple(row[name] for name in CELL) for cell, row in chosen.items() if cell in wanted}
    rows, played = (
        [row for row in trust_cases.read(path) if tuple(row[name] for name in CELL) in current]
        for path in (RESULTS, LIBRARY)
    )
    for data in asked.only:
        tell(rows, played, data)
    compare(rows, played)
    picture(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(SCORES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draws", type=int, default=10, help="of noise, for each seed")
    parser.add_argument("--library", action="store_true", help="have the library play what the aims are about")
    parser.add_argument("--draw", action="store_true", help="tables and picture of what is on record")
    asked = parser.parse_args()
    if asked.draw:
        show(asked)
    else:
        run_library(asked) if asked.library else run(asked)


if __name__ == "__main__":
    main()
