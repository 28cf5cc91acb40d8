"""Linear model, MLP and FT-Transformer on tables, by the library: FedAvg, and a secure sum at two ε.

    python benchmarks/table_models.py [--only males rwm5yr] [--models ft_transformer …] [--seeds 0]
    python benchmarks/table_models.py --draw

Silos, people and scores are those of the benchmark of the field. One rule for all: the length of a step with the best
AUC on a fifth of the *training* people, left out of training meanwhile. If the best length is the shortest or the
longest of those tried, the next one beyond is tried too. Nobody pays for that choice. The trust model is the
library's default secure sum with weights by span. Sums and noise are computed in C (`compute.compiled`), which takes
a sixth of the time of a transformer's private rounds. Results are kept line by line in
benchmarks/table_models.jsonl (`--out FILE` keeps them elsewhere).
"""

import argparse
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import field
import record
import trust_cases
from utility import Tree, merged
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "table_models.jsonl"
MODELS: dict[str, Tree] = {
    "logistic": {"name": "logistic"},
    "mlp": {"name": "mlp", "options": {"hidden": [16]}},
    "ft_transformer": {"name": "ft_transformer"},
}
EPSILONS = (None, 1.0, 4.0)
ROUNDS, CLIP, SHARE = 60, 0.2, 0.2
LENGTHS, APART, BEYOND = (0.5, 2.5, 12.5), 5, 3
"""Learning rates (of private runs, times the clip norm) tried first, what lies between two of them, and how many are
tried beyond."""
SERVER = {"step": "momentum", "momentum": 0.9, "schedule": "linear"}


def settings(base: Tree, model: str, epsilon: float | None, length: float, seed: int) -> Tree:
    """The spec of a run."""
    shared = {
        "model": MODELS[model],
        "server": SERVER,
        "seed": seed,
        "compute": {"compiled": True},
        "evaluation": {"metrics": ["auc"]},
        "rounds": {"count": ROUNDS, "averaging": "subjects", "checkpoint_every": 10**6, "learning_rate": length},
    }
    if epsilon is None:
        return merged(base, shared, {"policy": {"name": "fedavg", "rate": 1.0}})
    private = {
        "policy": {"name": "subject_dp", "rate": 1.0, "by_span": True, "pool": "sum", "clip_norm": CLIP},
        "privacy": {"epsilon": epsilon, "delta": field.DELTA},
        "trust": {"model": "secure_sum"},
        "rounds": {"learning_rate": length / CLIP},
    }
    return merged(base, shared, private)


def play(tree: Tree, part: str) -> Tree:
    """The AUC of the last model on a part's people, and what is proved."""
    shares = {"evaluation": {"validation": SHARE}} if part == "validation" else {}
    spec = RunSpec.of(merged(tree, shares))
    made = prepare(spec, dataset=trust_cases.dataset(tree), pricing=accountant("pld"))
    trained = sum(p.numel() for p in made.model.parameters() if p.requires_grad)
    with open_guard(made, "table models") as guard:
        done = execute(made, guard)
    promised = done.plan.guarantee(Unit.SUBJECT)
    proved = {"proved": promised.epsilon, "standing": str(promised.standing)} if "privacy" in tree else {}
    found = done.scores[part].metrics["auc"]
    return {"auc": 100 * float(found), "items": made.scored[part].items, "trained": trained, **proved}


def search(score: Callable[[float], float]) -> tuple[float, dict[float, float]]:
    """The length with the best score, and all scores; the grid grows on the side where its best length is the last."""
    tried = {each: score(each) for each in LENGTHS}
    for _ in range(BEYOND):
        best = _best(tried)
        if min(tried) < best < max(tried):
            break
        further = best * APART if best == max(tried) else best / APART
        tried[further] = score(further)
    return _best(tried), tried


def _best(tried: Mapping[float, float]) -> float:
    # What diverged has no score, and loses.
    return max(tried, key=lambda each: tried[each] if math.isfinite(tried[each]) else -math.inf)


def run(asked: argparse.Namespace) -> None:
    """Play what was not played yet."""
    bases, chosen = field.on_tables(asked.table, asked.only), [epsilon or None for epsilon in asked.epsilons]
    before = len(trust_cases.read(asked.out))
    done = {(r["data"], r["model"], r["epsilon"], r["seed"]) for r in trust_cases.read(asked.out)}
    for seed, data, model, epsilon in itertools.product(asked.seeds, asked.only, asked.models, chosen):
        if (data, model, epsilon, seed) in done:
            continue
        begun, base = time.process_time(), bases[data]
        run_of = functools.partial(settings, base, model, epsilon, seed=seed)
        length, tried = search(lambda each, run_of=run_of: play(run_of(length=each), "validation")["auc"])
        found = play(run_of(length=length), "test")
        row = {
            "data": data,
            "model": model,
            "epsilon": epsilon,
            "seed": seed,
            "length": length,
            "tried": tried,
            **found,
        }
        row["seconds"] = round(time.process_time() - begun)
        command = f"python benchmarks/table_models.py --only {data} --models {model} --seeds {seed}"
        trust_cases.keep(asked.out, {**row, "commit": record._commit(), "command": command})
    record.say_if_done(before, len(trust_cases.read(asked.out)))


def show(results: Path) -> None:
    """Means over seeds, as Markdown."""
    rows = trust_cases.kept(results)
    print("| AUC in % | parameters | FedAvg | ε = 1 | ε = 4 | seeds | seconds of one ε |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for data, model in itertools.product(field.SCORES, MODELS):
        own = [row for row in rows if (row["data"], row["model"]) == (data, model)]
        if own:
            cells = [_told([row["auc"] for row in own if row["epsilon"] == epsilon]) for epsilon in EPSILONS]
            seeds, seconds = len({row["seed"] for row in own}), max(row["seconds"] for row in own)
            print(f"| {data}, `{model}` | {own[0]['trained']:,} | {' | '.join(cells)} | {seeds} | {seconds} |")


def _told(found: list[float]) -> str:
    if not found:
        return "–"
    return f"{statistics.mean(found):.1f}" + (f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=["males"], choices=field.TABLED)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.0, 1.0, 4.0], help="0 is FedAvg")
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--draw", action="store_true", help="the table of what is on record")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are kept")
    asked = parser.parse_args()
    show(asked.out) if asked.draw else run(asked)


if __name__ == "__main__":
    record.start(main)
