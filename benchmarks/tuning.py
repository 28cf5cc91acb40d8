"""What choosing settings costs: defaults, the planner, paid tuning, and the tuning that everybody does.

    python benchmarks/tuning.py --data PATH/diabetes130.csv.gz --out benchmarks/tuning.jsonl
    python benchmarks/tuning.py --out benchmarks/tuning.jsonl --show

At a total ε of 4 for a person, on nlswork and diabetes130, for three seeds:

    defaults  what `run` fills in from public facts
    planner   what `plan --optimise` chooses from public facts
    paid      `tune` with Poisson(10) trials around the defaults, ranked by private scores; ε = 4 pays for all of it
    unpaid    ten trials, each at ε = 4, ranked by raw scores of the same people

All have the same people to train on, the same to choose by (validation) and the same to be judged by (test), whom
nobody looks at before. Accuracy, loss and AUC are those of the test part, without noise. Gradients of the linear model
are summed by matrix products (linear_sums.py). A line for each run is added to the file when it is done; what is there
is not done again.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from linear_sums import LinearSum
from wholegrain._random import Purpose, derive
from wholegrain.data.dataset import Dataset
from wholegrain.federation.round_record import Score
from wholegrain.policies.plan import Plan
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import repeat
from wholegrain.privacy.renyi import renyi_epsilon
from wholegrain.privacy.trial_count import TrialCount
from wholegrain.runs import tuning_trials
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.optimise_spec import optimise
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import play_rounds, prepare
from wholegrain.runs.spec import RunSpec, load
from wholegrain.runs.tuning import tune
from wholegrain.runs.tuning_setup import prepare_tuning
from wholegrain.runs.tuning_space import SearchSpace, apply_settings
from wholegrain.runs.tuning_trials import PaidBefore

EPSILON, DELTA, TRIALS = 4.0, 1e-5, 10
SEEDS = (0, 1, 2)
EXAMPLE = Path(__file__).parent.parent / "examples" / "diabetes130.toml"


def nlswork(asked: argparse.Namespace) -> RunSpec:
    return RunSpec.of({"data": {"source": "nlswork"}})


def diabetes130(asked: argparse.Namespace) -> RunSpec:
    """The example's data and bounds, without its settings."""
    spec = load(EXAMPLE, (f"data.table.path={asked.data}",))
    return RunSpec.of({"data": spec.data.model_dump(), "silos": spec.silos.model_dump()})


DATA: dict[str, Callable[[argparse.Namespace], RunSpec]] = {"nlswork": nlswork, "diabetes130": diabetes130}


def at_seed(spec: RunSpec, seed: int) -> RunSpec:
    tree = spec.model_dump(exclude_unset=True)
    tree |= {"seed": seed, "privacy": {"epsilon": EPSILON, "delta": DELTA}}
    tree |= {"evaluation": {"test": 0.2, "validation": 0.2}}
    return RunSpec.of(tree)


@dataclass(frozen=True)
class Played:
    """A simulated run: its plan, and the scores of its model by part."""

    plan: Plan
    scores: Mapping[str, Score]

    @property
    def epsilon(self) -> float:
        return self.plan.guarantee().epsilon


def prepare_quick(spec: RunSpec, *, dataset: Dataset) -> PreparedRun:
    """The run, with clipped sums by matrix products."""
    run = prepare(spec, dataset=dataset)
    return replace(run, clipped_sum=LinearSum(run.clipped_sum, run.task.outputs))


def play(spec: RunSpec, dataset: Dataset) -> Played:
    """Train as planned. No ledger is kept: it would price every round anew, and the plan says what all of them cost."""
    run = prepare_quick(spec, dataset=dataset)
    vector = play_rounds(run, PaidBefore(run.plan, run.plan.guarantee().epsilon)).vector
    scorer = Scorer.of(run.task, run.loss, run.task.metrics)
    return Played(run.plan, {part: scorer.score(run.learner.trained, vector, run.scored[part]) for part in PARTS})


PARTS = ("validation", "test")


def scores_of(scores: Mapping[str, Score]) -> dict[str, Any]:
    test = scores["test"]
    return {"accuracy": test.accuracy, "loss": test.loss, "auc": test.metrics["auc"]}


def run_defaults(spec: RunSpec, dataset: Dataset) -> dict[str, Any]:
    result = play(spec, dataset)
    return {**scores_of(result.scores), "epsilon": result.epsilon}


def run_planner(spec: RunSpec, dataset: Dataset) -> dict[str, Any]:
    result = play(optimise(spec, dataset=dataset).spec, dataset)
    return {**scores_of(result.scores), "epsilon": result.epsilon}


def space_around(spec: RunSpec, dataset: Dataset) -> SearchSpace:
    """Learning rate, clip norm and rounds around what public facts propose: itself public."""
    filled = prepare(spec, dataset=dataset).spec
    rate, norm = filled.rounds.learning_rate, filled.policy.clip_norm
    return SearchSpace.of(
        {
            "rounds.learning_rate": {"low": rate / 5, "high": rate * 5, "scale": "log"},
            "policy.clip_norm": [norm / 2, norm, norm * 2],
            "rounds.count": [filled.rounds.count // 2, filled.rounds.count],
        }
    )


def run_paid(spec: RunSpec, dataset: Dataset) -> dict[str, Any]:
    tree = spec.model_dump(exclude_unset=True)
    tree["evaluation"]["private"] = {"part": "validation"}
    prepared = prepare_tuning(RunSpec.of(tree), space_around(spec, dataset), TrialCount(float(TRIALS)), dataset)
    found = tune(prepared)
    if found.chosen is None:
        return {"accuracy": math.nan, "loss": math.nan, "auc": math.nan, "epsilon": found.guarantees[0].epsilon}
    alone = DEFAULT.epsilon(prepared.selection.trial_event(Unit.SUBJECT), DELTA)
    score = next(iter(found.chosen.private["all silos"].values()))
    return {
        **scores_of(found.chosen.scores),
        "epsilon": found.chosen.guarantee.epsilon,
        "trials": len(found.trials),
        "epsilon_of_a_trial": alone,
        "private_score": score.facts(),
        "settings": dict(found.settings),
    }


def run_unpaid(spec: RunSpec, dataset: Dataset) -> dict[str, Any]:
    """Ten trials, each with the whole budget, chosen by raw scores; and what that really costs.

    Whoever is in the validation part is protected by nothing. Whoever is trained on met the best of ten trials: if
    their number had been Poisson(10) and hidden, that would cost `epsilon_if_hidden`; as it is, all ten count.
    """
    space, best = space_around(spec, dataset), None
    filled = prepare(spec, dataset=dataset).spec
    for number in range(TRIALS):
        draws = np.random.default_rng(derive(spec.seed, Purpose.TUNING, "unpaid", number))
        settings = space.draw(draws)
        result = play(apply_settings(filled, settings), dataset)
        if best is None or result.scores["validation"].accuracy > best[0]:
            best = result.scores["validation"].accuracy, result, settings
    assert best is not None
    _, result, settings = best
    event = result.plan.terms.event(Unit.SUBJECT, result.plan.horizon.releases(), {})
    return {
        **scores_of(result.scores),
        "epsilon": result.epsilon,
        "epsilon_if_hidden": renyi_epsilon(RepeatAndSelectDpEvent(event, float(TRIALS), math.inf), DELTA),
        "epsilon_of_all_trials": DEFAULT.epsilon(repeat(event, TRIALS), DELTA),
        "epsilon_of_validation": math.inf,
        "settings": dict(settings),
    }


WAYS = {"defaults": run_defaults, "planner": run_planner, "paid": run_paid, "unpaid": run_unpaid}


def done(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def show(path: Path) -> None:
    """The table of docs/paid-choices.md."""
    found = done(path)
    print("| data | way | seeds | accuracy | AUC | loss | total ε |")
    print("|---|---|---|---|---|---|---|")
    for data in DATA:
        for way in WAYS:
            rows = [row for row in found if (row["data"], row["way"]) == (data, way)]
            if not rows:
                continue
            accuracy = [100 * row["accuracy"] for row in rows]
            spread = f" ± {statistics.stdev(accuracy):.2f}" if len(rows) > 1 else ""
            auc, loss = (statistics.fmean(row[key] for row in rows) for key in ("auc", "loss"))
            shown = f"{statistics.fmean(accuracy):.2f}{spread} %"
            print(f"| {data} | {_title(way, rows)} | {len(rows)} | {shown} | {auc:.3f} | {loss:.4f} | {_cost(rows)} |")


def _title(way: str, rows: list[dict[str, Any]]) -> str:
    if way == "paid":
        trials = ", ".join(str(row["trials"]) for row in rows)
        return f"paid, {trials} trials of ε = {_mean(rows, 'epsilon_of_a_trial'):.3g} each"
    return f"unpaid, {TRIALS} trials of ε = {_mean(rows, 'epsilon'):.3g} each" if way == "unpaid" else way


def _cost(rows: list[dict[str, Any]]) -> str:
    """What was spent; of unpaid tuning what it says, and what it really costs."""
    said = f"{_mean(rows, 'epsilon'):.3f}"
    if "epsilon_of_all_trials" not in rows[0]:
        return said
    real, hidden = _mean(rows, "epsilon_of_all_trials"), _mean(rows, "epsilon_if_hidden")
    return f"{said} printed; {real:.2f} really ({hidden:.2f}, had the number of trials been hidden)"


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="diabetes130.csv.gz; without it, nlswork alone")
    parser.add_argument("--only", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("tuning.jsonl"))
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    if asked.show:
        show(asked.out)
        return
    torch.set_num_threads(1)
    tuning_trials.prepare = prepare_quick  # type: ignore[assignment]
    known = {(row["data"], row["seed"], row["way"]) for row in done(asked.out)}
    for name in asked.only if asked.data else ["nlswork"]:
        dataset = load_dataset(DATA[name](asked))
        for seed in asked.seeds:
            for way, play_way in WAYS.items():
                if (name, seed, way) in known:
                    continue
                found = play_way(at_seed(DATA[name](asked), seed), dataset)
                with asked.out.open("a") as file:
                    file.write(json.dumps({"data": name, "seed": seed, "way": way, **found}) + "\n")
                print(name, seed, way, f"{found['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    main()
