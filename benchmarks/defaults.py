"""What a run reaches when nothing is set but ε, δ and the table, beside a constant answer and scikit-learn.

Run: python benchmarks/defaults.py [--only nlswork …] [--methods fedavg …] [--seeds 0 1 2]
Then: python benchmarks/defaults.py --table

Everybody is scored on the same held-out people, and trained on the same rows: those that are left after the hold-out
and K. FedAvg is tuned on a further fifth of the people. Sums of `subject_dp` and steps of `fedavg` are matrix products
(`linear_sums.py`, `pooled_descent.py`), each held against the library's own. Results are kept in
benchmarks/defaults.jsonl with commit and seconds; what is there is not run again.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

import record
from default_tables import TABLES, Tree
from linear_sums import LinearSum
from pooled_descent import descend, require_same
from wholegrain.runs.optimise_spec import optimise
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "defaults.jsonl"
EPSILONS, SEEDS, DELTA = (4.0, 1.0), (0, 1, 2), 1e-5
RATES, LENGTHS = (0.3, 1.0, 3.0), (50, 100, 200)
"""FedAvg's grid: learning rates as multiples of the default, and rounds."""
CHECKED_ROUNDS = 3
COLUMNS = (
    ("constant", None), ("logistic regression", None), ("gradient boosting", None), ("fedavg", None),
    ("fedavg tuned", None), ("subject_dp", 4.0), ("subject_dp planned", 4.0), ("subject_dp", 1.0),
    ("subject_dp planned", 1.0),
)  # fmt: skip
METHODS = tuple(dict.fromkeys(method for method, _ in COLUMNS))
Probabilities = NDArray[np.float64]


def base(name: str, seed: int, policy: str, epsilon: float | None = None) -> Tree:
    """Nothing but the table, the silos and the budget."""
    return {
        "seed": seed,
        "silos": dict(TABLES[name].silos),
        "policy": {"name": policy},
        "privacy": {"epsilon": epsilon, "delta": DELTA} if epsilon else {},
    }


def probabilities(prepared: PreparedRun, part: str, weights: Tensor) -> Probabilities:
    """[item, class] what a linear model with these parameters [class, feature + 1] answers."""
    outputs = torch.from_numpy(prepared.scored[part].inputs) @ weights[:, :-1].T + weights[:, -1]
    return torch.softmax(outputs.double(), 1).numpy()


def settings(spec: RunSpec) -> Tree:
    return {
        "rounds": spec.rounds.count, "learning_rate": spec.rounds.learning_rate, "momentum": spec.server.momentum,
        "clip_norm": spec.policy.clip_norm, "pool": spec.policy.pool, "policy": spec.policy.name,
        "rate": spec.policy.rate, "spec": spec.digest,
    }  # fmt: skip


class Bench:
    """One table and seed. Runs repeat to the bit, so that two specs that are filled in alike are played once."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed, self.dataset = name, seed, TABLES[name].load()
        self.plain = self.prepare(self.spec("fedavg"))
        self._same = False
        self._answers: dict[str, Probabilities] = {}

    def spec(self, policy: str, epsilon: float | None = None) -> RunSpec:
        return RunSpec.of(base(self.name, self.seed, policy, epsilon))

    def prepare(self, spec: RunSpec) -> PreparedRun:
        return prepare(spec, dataset=self.dataset)

    def by_default(self, policy: str, epsilon: float | None) -> tuple[Probabilities, Tree]:
        return self.answer(self.spec(policy, epsilon))

    def plan(self, epsilon: float) -> RunSpec:
        """What `plan --optimise` writes, with every policy to choose from."""
        return optimise(self.spec("subject_dp", epsilon), dataset=self.dataset).spec

    def tuned(self) -> tuple[Probabilities, Tree]:
        """FedAvg with the least loss of a grid (steadier than accuracy) on people who are not trained on nor tested."""
        found: dict[tuple[float, int], float] = {}
        for rate in RATES:  # FedAvg's steps do not know how long the run is: a long one begins as a short one
            prepared = self.prepare(fedavg(self.plain.spec, rate, max(LENGTHS), 0.2))
            targets, steps = prepared.scored["validation"].targets, list(descend(prepared))
            found |= {
                (rate, length): log_loss(targets, probabilities(prepared, "validation", steps[length - 1]))
                for length in LENGTHS
            }
        best = min(found, key=lambda each: found[each])
        return self.answer(fedavg(self.plain.spec, *best, 0.0))

    def answer(self, spec: RunSpec) -> tuple[Probabilities, Tree]:
        """What a run of the spec answers to the test items, and by which settings."""
        prepared = self.prepare(spec)
        key = prepared.spec.model_dump_json()
        if key not in self._answers:
            self._answers[key] = probabilities(prepared, "test", self.play(prepared))
        return self._answers[key], settings(prepared.spec)

    def play(self, prepared: PreparedRun) -> Tensor:
        """The trained parameters [class, feature + 1], the constant's last."""
        if prepared.spec.policy.name == "fedavg":
            if not self._same:
                require_same(self.prepare(fedavg(self.plain.spec, 1.0, CHECKED_ROUNDS, 0.0)))
            self._same = True
            *_, last = descend(prepared)
            return last
        if prepared.spec.policy.name == "subject_dp":
            prepared = replace(prepared, clipped_sum=LinearSum(prepared.clipped_sum, prepared.task.outputs))
        with open_guard(prepared, "benchmark") as guard:
            layer = execute(prepared, guard).model[1]  # type: ignore[index]
        return torch.cat([layer.weight, layer.bias[:, None]], 1).detach()


def fedavg(usual: RunSpec, rate: float, length: int, validation: float) -> RunSpec:
    tree = usual.model_dump()
    tree["rounds"] |= {"count": length, "learning_rate": usual.rounds.learning_rate * rate}
    tree["evaluation"] |= {"validation": validation}
    return RunSpec.of(tree)


def baseline(make: Callable[[], Any], prepared: PreparedRun) -> Probabilities:
    inputs = np.concatenate([silo.data.inputs for silo in prepared.silos.values()])
    targets = np.concatenate([silo.data.targets for silo in prepared.silos.values()])
    return np.asarray(make().fit(inputs, targets).predict_proba(prepared.scored["test"].inputs))


def constant(prepared: PreparedRun) -> Probabilities:
    targets = np.concatenate([silo.data.targets for silo in prepared.silos.values()])
    shares = np.bincount(targets, minlength=2) / len(targets)
    return np.tile(shares, (len(prepared.scored["test"].targets), 1))


BASELINES: Mapping[str, Callable[[PreparedRun], Probabilities]] = {
    "constant": constant,
    "logistic regression": lambda ready: baseline(lambda: LogisticRegression(max_iter=1000), ready),
    "gradient boosting": lambda ready: baseline(lambda: HistGradientBoostingClassifier(random_state=0), ready),
}


def scores(targets: NDArray[np.int64], found: Probabilities) -> Tree:
    return {
        "accuracy": float((found.argmax(1) == targets).mean()),
        "auc": float(roc_auc_score(targets, found[:, 1])),
        "log_loss": float(log_loss(targets, found)),
    }


def measure(bench: Bench, method: str, epsilon: float | None) -> Tree:
    start, chosen = time.perf_counter(), Tree()
    if method in BASELINES:
        found = BASELINES[method](bench.plain)
    elif method == "fedavg tuned":
        found, chosen = bench.tuned()
    elif method == "subject_dp planned":
        found, chosen = bench.answer(bench.plan(epsilon or 0.0))
    else:
        found, chosen = bench.by_default(method, epsilon)
    seconds = round(time.perf_counter() - start, 1)
    row = {"data": bench.name, "method": method, "epsilon": epsilon, "seed": bench.seed}
    return row | scores(bench.plain.scored["test"].targets, found) | {
        "seconds": seconds, "settings": chosen, "commit": record.circumstances("wall")["commit"],
    }  # fmt: skip


def known_row(bench: Bench, method: str, epsilon: float | None, rows: list[Tree]) -> Tree | None:
    """The row of the very same run, where the planner chooses what the defaults are: runs repeat to the bit."""
    if method != "subject_dp planned":
        return None
    digest = bench.prepare(bench.plan(epsilon or 0.0)).spec.digest
    same = [row for row in rows if key(row)[::3] == (bench.name, bench.seed) and row["settings"].get("spec") == digest]
    return same[0] | {"method": method, "seconds": 0.0} if same else None


def read(path: Path) -> list[Tree]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(row: Tree) -> tuple[Any, ...]:
    return row["data"], row["method"], row["epsilon"], row["seed"]


def run(names: list[str], methods: list[str], seeds: list[int], path: Path) -> None:
    done = {key(row) for row in read(path)}
    wanted = [(method, epsilon) for method, epsilon in COLUMNS if method in methods]
    for seed in seeds:
        for name in names:
            missing = [(method, epsilon) for method, epsilon in wanted if (name, method, epsilon, seed) not in done]
            if not missing:
                continue
            bench = Bench(name, seed)
            for method, epsilon in missing:
                row = known_row(bench, method, epsilon, read(path)) or measure(bench, method, epsilon)
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


def lines(rows: list[Tree]) -> Iterator[list[str]]:
    for name in TABLES:
        for what, factor, digits in (("accuracy", 100, 1), ("auc", 100, 1), ("log_loss", 1, 3)):
            cells = []
            for method, epsilon in COLUMNS:
                values = [factor * row[what] for row in rows if key(row)[:3] == (name, method, epsilon)]
                count = "" if len(values) == len(SEEDS) else f" ({len(values)})"
                cells.append(f"{statistics.mean(values):.{digits}f}{count}" if values else "–")
            if set(cells) != {"–"}:
                yield [name, what.replace("_", " "), *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what was found, and run nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.table:
        run(given.only, given.methods, given.seeds, given.results)
    heads = ["table", "score", *(m if e is None else f"{m}, ε = {e:g}" for m, e in COLUMNS)]
    print(record.table(heads, lines(read(given.results)), markdown=True))


if __name__ == "__main__":
    main()
