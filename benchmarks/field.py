"""The benchmark of the field: rivals and our methods on five tables of repeated people, at the same proved ε.

Run: python benchmarks/field.py --table diabetes130.csv.gz [--only star …] [--seeds 0 1 2]
Then: python benchmarks/field.py --draw

Every method trains the same linear model on the same people, with momentum and a falling learning rate. One rule for
all: clip norm and length of a step are those of CLIPS and LENGTHS with the best score on a fifth of the training
people, left out of training meanwhile; nobody pays for that choice. Scores are of test people, means over two draws of
noise, which are not the one that a setting was chosen with. Runs are emulated (rivals.py); our noise is that of the
library's plan. Results are kept line by line in benchmarks/field.jsonl: what is there is not run again.
"""

import argparse
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from scipy.stats import rankdata

import draw
import record
import trust_cases
from default_tables import TABLES
from rivals import METHODS, OURS, Bounds, Floats, Records, multiplier, proved, total
from trust_settings import _noise_of, _with_constant
from utility import Tree, merged
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.planning import plan_for
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "field.jsonl"
PAGE = record.ROOT / "benchmarks" / "FIELD.md"
IMAGES = record.ROOT / "docs" / "images"
EPSILONS, DELTA = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-5
LENGTHS = (0.3, 1.0, 3.0, 10.0)
"""How far a step goes if everybody is clipped and points the same way."""
CLIPS = (0.1, 0.5)
ROUNDS, FREE_ROUNDS, MOMENTUM = 20, 100, 0.9
DRAWS = 2
NAMES = ("fedavg", *METHODS)
SCORES = {"nlswork": "accuracy", "diabetes130": "auc", "rwm5yr": "auc", "star": "auc", "nafld2": "auc"}
MOST = {"nlswork": 15, "diabetes130": 40, "rwm5yr": 5, "star": 4, "nafld2": 40}
"""Records that one person can have in all: what the surveys' designs say, of diabetes130 a bound as for K."""


def problems(table: Path) -> dict[str, Tree]:
    """What all methods share, by data set."""
    own = {
        name: {
            "data": {"source": f"default_tables:{name}"},
            "silos": dict(TABLES[name].silos),
            "policy": {"rate": 1.0, "clip_norm": 0.5},
            "evaluation": {"test": trust_cases.TEST},
        }
        for name in ("rwm5yr", "star", "nafld2")
    }
    return {**own, **trust_cases.problems(table)}


class Split:
    """The people of one seed: those to train on, and those of one part to score."""

    def __init__(self, data: str, base: Tree, seed: int, part: str) -> None:
        shares = {"evaluation": {"validation": 0.2}} if part == "validation" else {}
        self.data, self.part, self.tree = data, part, merged(base, shares, {"seed": seed})
        self.made = self._prepared()
        rows = [self.made.silos[facts.name] for _, facts in self.made.plan.rows]
        self.facts = tuple(facts for _, facts in self.made.plan.rows)
        _, person = np.unique(np.concatenate([silo.data.subjects for silo in rows]), return_inverse=True)
        self.records = Records(
            _with_constant(np.concatenate([silo.data.inputs for silo in rows])),
            np.concatenate([silo.data.targets for silo in rows]).astype(np.float32),
            person,
            np.repeat(np.arange(len(rows)), [len(silo.data.targets) for silo in rows]),
        )
        span = base["silos"].get("span") or len(rows)
        self.bounds = Bounds(len(rows), min(span, MOST[data]), MOST[data])

    def _prepared(self) -> PreparedRun:
        spec = RunSpec.of(self._private("ours, local", 1.0, 1.0))
        return prepare(spec, dataset=trust_cases.dataset(self.tree))

    def _private(self, name: str, epsilon: float, clip: float) -> Tree:
        policy, trust = OURS[name]
        sections = {
            "policy": {"name": policy, "by_span": True, "clip_norm": clip},
            "privacy": {"epsilon": epsilon, "delta": DELTA},
            "rounds": {"count": ROUNDS},
            "trust": {"model": trust},
        }
        return merged(self.tree, sections)

    @functools.cache  # noqa: B019 (a split lives as long as its benchmark)
    def noise(self, name: str, epsilon: float, clip: float) -> tuple[float, float]:
        """The standard deviation of all noise of a round, and the ε that is proved of it."""
        if name in OURS:
            plan = plan_for(RunSpec.of(self._private(name, epsilon, clip)), self.facts, accountant("pld"))
            return _noise_of(plan), plan.guarantee(Unit.SUBJECT).epsilon
        return METHODS[name].noise(multiplier(epsilon, DELTA, ROUNDS), self.bounds) * clip, epsilon

    @functools.cache  # noqa: B019
    def used(self, cap: int | None) -> Records:
        """The records that a method trains on."""
        return self.records if cap is None else self.records.capped(cap)

    def train(self, name: str, epsilon: float | None, clip: float, length: float, draw: int) -> Floats:
        """The vector after all rounds."""
        draws = np.random.default_rng([draw, NAMES.index(name)])
        vector = speed = np.zeros(self.records.inputs.shape[1])
        noise = self.noise(name, epsilon, clip)[0] if epsilon else 0.0
        rounds = ROUNDS if epsilon else FREE_ROUNDS
        for round in range(rounds):
            gradient, reach = self._gradient(name, vector, clip)
            noisy = 2 * gradient + draws.normal(size=len(vector)) * noise * np.sqrt(2)
            speed = MOMENTUM * speed - length / clip * noisy / reach
            vector = vector + speed * (1 - round / rounds)
        return vector

    def _gradient(self, name: str, vector: Floats, clip: float) -> tuple[Floats, float]:
        if name == "fedavg":
            endless = METHODS["DP-SGD, group"]
            return total(endless, self.records, self.bounds, vector, 1e9)
        method = METHODS[name]
        return total(method, self.used(method.cap), self.bounds, vector, clip)

    def score(self, vector: Floats) -> float:
        """On the people of the part, in %."""
        part = self.made.scored[self.part]
        outputs, right = _with_constant(part.inputs) @ vector, part.targets == 1
        if SCORES[self.data] == "accuracy":
            return 100 * float(((outputs > 0) == right).mean())
        above = rankdata(outputs)[right].sum() - right.sum() * (right.sum() + 1) / 2
        return 100 * float(above / (right.sum() * (~right).sum()))

    def constant(self) -> float:
        """The score of one and the same answer, the more frequent one of the people to train on."""
        if SCORES[self.data] == "auc":
            return 50.0
        often = float(self.records.targets.mean() > 0.5)
        return 100 * float((self.made.scored[self.part].targets == often).mean())


def play(name: str, epsilon: float | None, choice: Split, test: Split) -> Tree:
    """One cell: the length chosen on people held out, and the score on test people with it."""
    begun = time.process_time()
    settings = list(itertools.product(CLIPS, LENGTHS))
    clip, length = max(settings, key=lambda each: choice.score(choice.train(name, epsilon, *each, 0)))
    draws = range(100, 100 + (DRAWS if epsilon else 1))
    scores = [test.score(test.train(name, epsilon, clip, length, draw)) for draw in draws]
    found: Tree = {"clip": clip, "length": length, "score": statistics.mean(scores), "constant": test.constant()}
    if epsilon:
        found["proved"] = test.noise(name, epsilon, clip)[1]
    return {**found, "seconds": round(time.process_time() - begun, 1)}


def run(asked: argparse.Namespace) -> None:
    """Play what was not played yet."""
    bases, commit = problems(asked.table), record._commit()
    done = {(r["data"], r["method"], r["epsilon"], r["seed"]) for r in trust_cases.read(RESULTS)}
    for seed in asked.seeds:
        for data in (name for name in asked.only if name in bases):
            cells = [(n, e) for n in NAMES for e in ((None,) if n == "fedavg" else EPSILONS)]
            cells = [(n, e) for n, e in cells if (data, n, e, seed) not in done]
            if not cells:
                continue
            splits = [Split(data, bases[data], seed, part) for part in ("validation", "test")]
            for name, epsilon in cells:
                row = {"data": data, "method": name, "epsilon": epsilon, "seed": seed}
                command = f"python benchmarks/field.py --only {data} --seeds {seed}"
                trust_cases.keep(RESULTS, {**row, **play(name, epsilon, *splits), "commit": commit, "command": command})


def scores(rows: Iterable[Tree], data: str, method: str, epsilon: float) -> list[float]:
    """One for each seed."""
    return [r["score"] for r in rows if (r["data"], r["method"]) == (data, method) and r["epsilon"] in (epsilon, None)]


def table(rows: list[Tree], data: str) -> str:
    """Mean and spread over seeds, as Markdown."""
    head = f"| {data}, {SCORES[data]} in % | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |"
    lines = [head, "|---|" + "---:|" * len(EPSILONS)]
    for name in NAMES:
        found = [scores(rows, data, name, e) for e in EPSILONS]
        lines.append(f"| {name} | " + " | ".join(_cell(each) for each in found) + " |")
    constant = statistics.mean(r["constant"] for r in rows if r["data"] == data)
    lines.append("| constant answer | " + " | ".join([f"{constant:.1f}"] * len(EPSILONS)) + " |")
    return "\n".join(lines)


def _cell(found: list[float]) -> str:
    if not found:
        return "–"
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.1f}{spread}" + ("" if len(found) == 3 else f" ({len(found)})")


def behind(rows: list[Tree], data: str) -> list[str]:
    """Where a rival's mean is above the best of ours, by how much; the upper line is not counted."""
    lines = []
    for epsilon in EPSILONS:
        means = {n: statistics.mean(s) for n in METHODS if (s := scores(rows, data, n, epsilon))}
        ours = max(means[name] for name in OURS)
        above = {n: m - ours for n, m in means.items() if n not in (*OURS, "central") and m > ours}
        lines += [f"{data}, ε = {epsilon:g}: {n} is {gap:.2f} points above" for n, gap in above.items()]
    return lines


def picture(rows: list[Tree], data: str) -> None:
    """Scores by ε, one line for each method; FedAvg and the constant answer are dashed."""
    own: list[dict[str, Any]] = [r for r in rows if r["data"] == data]
    private = alt.Data(values=[r for r in own if r["epsilon"]])
    constant = statistics.mean(r["constant"] for r in own)
    free = statistics.mean(r["score"] for r in own if not r["epsilon"])
    across = alt.X("epsilon:Q", title="ε (one person, proved)", scale=alt.Scale(type="log", domain=[0.45, 9]),
                   axis=alt.Axis(values=list(EPSILONS)))  # fmt: skip
    down = alt.Y("mean(score):Q", title=f"{SCORES[data]}, %", scale=alt.Scale(zero=False))
    kind = alt.condition("indexof(datum.method, 'ours') == 0", alt.value(3.5), alt.value(1.2))
    colour = alt.Color("method:N", title=None, sort=list(METHODS), scale=alt.Scale(scheme="category20"))
    line = alt.Chart(private).mark_line(point=True).encode(x=across, y=down, color=colour, strokeWidth=kind)
    lines = alt.Data(values=[{"y": free, "words": "FedAvg"}, {"y": constant, "words": "constant answer"}])
    rule = alt.Chart(lines).mark_rule(strokeDash=[4, 3], color="#777777").encode(y="y:Q")
    words = alt.Chart(lines).mark_text(align="left", dy=-6, x=4, color="#777777").encode(y="y:Q", text="words:N")
    chart = alt.layer(rule, words, line).properties(width=430, height=300, title=data)
    draw._dressed(chart).save(IMAGES / f"benchmark_{data}.svg")


def show(asked: argparse.Namespace) -> None:
    """Print tables and what is behind; draw the pictures; renew the tables of the page."""
    rows = trust_cases.read(RESULTS)
    known = [name for name in asked.only if any(r["data"] == name for r in rows)]
    tables = "\n\n".join(f"![{name}](../docs/images/benchmark_{name}.svg)\n\n{table(rows, name)}" for name in known)
    for name in known:
        picture(rows, name)
    print(tables, *(line for name in known for line in behind(rows, name)), sep="\n")
    for claimed in EPSILONS:
        print(f"NAIVE and DP-FedAvg with half the noise: claimed {claimed:g}, proved {proved(claimed, DELTA, 2):.3g}")
    if PAGE.exists():
        before, _, rest = PAGE.read_text().partition("<!-- tables -->\n")
        _, _, after = rest.partition("<!-- end of tables -->")
        PAGE.write_text(f"{before}<!-- tables -->\n{tables}\n<!-- end of tables -->{after}")


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(SCORES))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draw", action="store_true", help="tables and pictures of what is on record")
    asked = parser.parse_args()
    show(asked) if asked.draw else run(asked)


if __name__ == "__main__":
    main()
