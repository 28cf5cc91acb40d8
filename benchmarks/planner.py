"""Is what `plan --optimise` chooses as good as what a grid search finds? Both on people who were held out.

Run: python benchmarks/planner.py [--only nlswork …]

The planner gets public facts, and as the way to go the settings that benchmarks/utility.py gives every policy. The grid
reads the data: rounds, learning rate, clip norm and schedule, on one split. Its best and the planner's choice are then
compared on this split and two others. Results are kept in benchmarks/planner.jsonl; what is there is not run again.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import held_out
import record
import utility
from held_out import Trial
from utility import LINEAR, Tree, merged, trained
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.optimise_spec import optimise
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "planner.jsonl"
EPSILONS, SEEDS = (1.0, 4.0), (10, 11, 12)
# By data set: rounds; clip norms; and learning rates at the first of them, which grow as the norm falls.
GRIDS: Mapping[str, tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]] = {
    "nlswork": ((10, 30, 60), (1.0,), (1.0, 4.0, 16.0)),
    "glyphs": ((6, 20, 40), (1.0,), (0.5, 2.0, 8.0)),
    "plays": ((6, 20, 40), (0.1,), (10.0, 30.0, 90.0)),
    "mnist": ((20, 60), (0.03,), (50.0, 150.0, 450.0)),
}


def setting(rounds: int, clip_norm: float, learning_rate: float, server: Tree) -> Tree:
    policy = {"name": "subject_dp", "rate": 1.0, "clip_norm": clip_norm}
    return trained(policy, {"count": rounds, "learning_rate": learning_rate}, server=server)


def grid(name: str) -> Iterator[Tree]:
    """Everybody in every step."""
    rounds, norms, rates = GRIDS[name]
    for count, norm, rate, server in itertools.product(rounds, norms, rates, (LINEAR, {})):
        yield setting(count, norm, rate * norms[0] / norm, server)


def choice(name: str, epsilon: float, seed: int, problem: utility.Problem) -> Tree:
    """What the planner makes of the policies' common settings and of public facts."""
    common = problem.policies["subject_dp"]
    prepared, _ = held_out.ready(Trial(name, epsilon, seed, common), problem.base)
    facts = [facts for _, facts in prepared.plan.rows]
    silos = [{"name": f.name, "items": f.items, "subjects": f.subjects, "items_per_subject": f.items_per_subject}
             for f in facts]  # fmt: skip
    shape = prepared.scored["validation"].inputs.shape[1:]
    classes = utility.dataset(json.dumps(problem.base["data"], sort_keys=True)).classes
    federation = {"shape": shape, "classes": classes, "silos": silos}
    asked = merged(prepared.spec.model_dump(exclude={"federation"}), {"federation": federation})
    if "start" in problem.base.get("model", {}):  # a head is logistic regression on what the frozen part makes
        asked["model"] = {"name": "logistic"}
    chosen = optimise(RunSpec.of(asked), ("subject_dp",), accountant("pld")).spec
    policy = {"name": chosen.policy.name, "rate": chosen.policy.rate, "clip_norm": chosen.policy.clip_norm}
    rounds = {"count": chosen.rounds.count, "steps": chosen.rounds.steps, "learning_rate": chosen.rounds.learning_rate}
    return trained(policy, rounds, server={"step": chosen.server.step, "schedule": chosen.server.schedule})


def rows_of(path: Path) -> dict[tuple[Any, ...], Tree]:
    return {(row["data"], row["epsilon"], row["seed"], row["settings"]): row for row in utility.read(path)}


def played(trial: Trial, problem: utility.Problem, path: Path) -> float:
    """Accuracy of a trial, from the file where it is there."""
    row = rows_of(path).get(trial.key)
    if row is None:
        row = held_out.play(trial, problem.base)
        held_out.keep(row, path)
        print(json.dumps(row), flush=True)
    return float(row.get("accuracy", 0.0))


def compare(name: str, epsilon: float, problem: utility.Problem, path: Path) -> Tree:
    """The grid's best and the planner's choice, on the same three splits."""
    found = {json.dumps(tree): played(Trial(name, epsilon, SEEDS[0], tree), problem, path) for tree in grid(name)}
    best = json.loads(max(found, key=lambda text: found[text]))
    ours = choice(name, epsilon, SEEDS[0], problem)
    scores = {who: [100 * played(Trial(name, epsilon, seed, tree), problem, path) for seed in SEEDS]
              for who, tree in (("grid", best), ("planner", ours))}  # fmt: skip
    return {"data": name, "epsilon": epsilon, "tried": len(found), "best": best, "ours": ours, **scores}


def line(row: Tree) -> str:
    def told(tree: Tree) -> str:
        rounds, server = tree["rounds"], tree["server"]
        rate = f"{rounds['learning_rate']:.3g} ({server.get('schedule', 'constant')})"
        return f"{rounds['count']} × {rate}, C = {tree['policy']['clip_norm']:g}"

    behind = [best - ours for best, ours in zip(row["grid"], row["planner"], strict=True)]
    spread = f"{statistics.mean(behind):+.1f} ± {statistics.stdev(behind):.1f}"
    means = [f"{statistics.mean(row[who]):.1f}" for who in ("grid", "planner")]
    return (f"| {row['data']} | {row['epsilon']:g} | {told(row['best'])} | {means[0]} |"
            f" {told(row['ours'])} | {means[1]} | {spread} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backbone", type=Path, default=record.ROOT / "recipes" / "digits.safetensors")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=list(GRIDS))
    parser.add_argument("--grid", action="store_true", help="the grid alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = utility.problems(given.backbone)
    for name, epsilon in itertools.product(given.only, EPSILONS):
        if given.grid:
            for tree in grid(name):
                played(Trial(name, epsilon, SEEDS[0], tree), known[name], given.results)
            continue
        print(line(compare(name, epsilon, known[name], given.results)), flush=True)


if __name__ == "__main__":
    main()
