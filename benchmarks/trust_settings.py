"""Rounds and learning rate of every method in benchmarks/trust.py, chosen without a look at test people.

Run: python benchmarks/trust_settings.py [--only nlswork diabetes130] [--table diabetes130.csv.gz] [--seeds 0 1 2]
Check: python benchmarks/trust_settings.py --check

One rule for all methods, ε and data sets: every pair of ROUNDS and LENGTHS is tried, DRAWS times with other noise, on a
fifth of the *training* people of the seed, who are left out of training meanwhile. The best mean score wins. Nobody
pays for this choice (docs/paid-choices.md), which is alike for all methods.

Thousands of runs are tried, so they are emulated: the sum of clipped gradients of a linear model with two classes by
matrix products, and Gaussian noise of the standard deviation that the library's plan has for all silos together.
`--check` holds emulated runs against the library's, with hardly any noise. Choices are kept in trust_settings.jsonl.
"""

import argparse
import itertools
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import expit
from scipy.stats import rankdata

import trust_cases
from linear_sums import with_short_cut
from trust_cases import CHOSEN, METHODS, SCORES, Cell, by_cell, cells, key
from utility import Tree, merged
from wholegrain.policies.plan import Plan
from wholegrain.policies.policy import FixedNoise
from wholegrain.policies.policy_catalog import LOCAL_RATE, LOCAL_STEPS
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.planning import plan_for
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

ROUNDS = (10, 20, 40)
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Learning rates times the clip norm: how far a step goes if everybody is clipped."""
DRAWS = 2
SHARE = 0.2
MOMENTUM = 0.9
Floats = NDArray[np.floating[Any]]


class Emulator:
    """Runs of one split of a data set, with people of the training part held out.

    The model has a score for each of two classes; only their difference counts, so one vector is trained: the
    difference of the two rows of weights. Its gradient is twice that of the second row, its noise √2 times as much.
    """

    def __init__(self, data: str, base: Tree, seed: int) -> None:
        self.data, self.base = data, merged(base, {"evaluation": {"validation": SHARE}})
        self.made = self._prepare(Cell(data, "local, by span", 1.0, seed))
        rows = [(self.made.silos[facts.name], facts) for _, facts in self.made.plan.rows]
        self.facts = tuple(facts for _, facts in rows)
        self.inputs = _with_constant(np.concatenate([silo.data.inputs for silo, _ in rows]))
        self.targets = np.concatenate([silo.data.targets for silo, _ in rows])
        people = np.concatenate([silo.data.subjects + (number << 40) for number, (silo, _) in enumerate(rows)])
        _, first, self.person, items = np.unique(people, return_index=True, return_inverse=True, return_counts=True)
        share = (1 / items[self.person]).astype(np.float32)
        self.means = csr_matrix((share, (self.person, np.arange(len(share)))))
        self.spans = np.concatenate([silo.spans for silo, _ in rows])[first].astype(np.float64)
        by_silo = [np.full(len(silo.data.targets), facts.subjects / facts.items) for silo, facts in rows]
        self.item_weights = np.concatenate(by_silo).astype(np.float32)
        self.subjects = sum(facts.subjects for facts in self.facts)

    def _prepare(self, cell: Cell) -> PreparedRun:
        tree = cell.spec(self.base, 10, 1.0)
        return prepare(RunSpec.of(tree), dataset=trust_cases.dataset(tree))

    @cached_property
    def start(self) -> Floats:
        """What the library's model begins with."""
        return self.difference(self.made.first.numpy())

    def difference(self, parameters: Floats) -> Floats:
        """The vector that is trained here, from the library's parameters: two rows of weights and two constants."""
        features = self.inputs.shape[1] - 1
        first, second, constants = np.split(parameters.astype(np.float64), [features, 2 * features])
        return np.append(second - first, constants[1] - constants[0])

    def noise(self, cell: Cell, rounds: int) -> float:
        """The standard deviation of the noise of all silos together."""
        spec = RunSpec.of(cell.spec(self.base, rounds, 1.0))
        return 0.0 if cell.epsilon is None else _noise_of(plan_for(spec, self.facts, accountant("pld")))

    def gradient(self, method: str, vector: Floats) -> Floats:
        """The sum over people of clipped gradients of the second class."""
        vector = vector.astype(np.float32)
        errors = expit(self.inputs @ vector) - self.targets.astype(np.float32)
        if method == "fedavg":
            return (errors * self.item_weights) @ self.inputs
        each = self.means @ (errors[:, None] * self.inputs)
        if method == "uldp_avg":
            each = self._updates(vector, each)
        clip: float = self.base["policy"]["clip_norm"]
        lengths = np.sqrt(2 * np.einsum("ij,ij->i", each, each)) + 1e-30
        return np.minimum(1.0, clip * self._weights(method) / lengths).astype(np.float32) @ each

    def _weights(self, method: str) -> Floats:
        settings = METHODS[method]
        if not settings["policy"].get("by_span"):
            return np.ones_like(self.spans)
        return 1 / self.spans if "trust" in settings else 1 / np.sqrt(self.spans)

    def _updates(self, vector: Floats, first: Floats) -> Floats:
        """How far each person comes in its local steps, of which the first is given."""
        total, mean = first.copy(), first
        own = np.repeat(vector[None], len(first), 0)
        for _ in range(LOCAL_STEPS - 1):
            own -= LOCAL_RATE * 2 * mean
            errors = expit(np.einsum("ij,ij->i", own[self.person], self.inputs)) - self.targets.astype(np.float32)
            mean = self.means @ (errors[:, None] * self.inputs)
            total += mean
        return total

    def train(self, method: str, noise: float, rounds: int, learning_rate: float, draw: int = 0) -> Floats:
        """The vector after all rounds, by momentum and a learning rate that falls linearly."""
        draws, vector, speed = np.random.default_rng(draw), self.start, np.zeros_like(self.start)
        for round in range(rounds):
            noisy = 2 * self.gradient(method, vector) + draws.normal(size=len(vector)) * noise * np.sqrt(2)
            speed = MOMENTUM * speed - learning_rate * noisy / self.subjects
            vector = vector + speed * (1 - round / rounds)
        return vector

    def score(self, vector: Floats) -> float:
        """On the people held out."""
        part = self.made.scored["validation"]
        outputs, targets = _with_constant(part.inputs) @ vector, part.targets == 1
        if SCORES[self.data] == "accuracy":
            return float(((outputs > 0) == targets).mean())
        above = rankdata(outputs)[targets].sum() - targets.sum() * (targets.sum() + 1) / 2
        return float(above / (targets.sum() * (~targets).sum()))

    def choose(self, cell: Cell) -> Tree:
        """The best of all settings, as a row."""
        clip: float = self.base["policy"]["clip_norm"]
        tried = []
        for rounds, length in itertools.product(ROUNDS, LENGTHS):
            noise, rate = self.noise(cell, rounds), length / clip
            draws = range(DRAWS if noise else 1)
            scores = [self.score(self.train(cell.method, noise, rounds, rate, draw)) for draw in draws]
            tried.append((float(np.mean(scores)), {"rounds": rounds, "learning_rate": rate}))
        best, setting = max(tried, key=lambda found: found[0])
        return {**asdict(cell), **setting, "validation": best}

    def check(self, method: str) -> float:
        """How far an emulated run is from the library's, relative to how far the run goes, with hardly any noise."""
        cell, little = Cell(self.data, method, None, self.made.spec.seed), {"privacy": {"noise_multiplier": 0.01}}
        tree = merged(cell.spec(self.base, 3, 2.0), {} if method == "fedavg" else little)
        prepared = with_short_cut(prepare(RunSpec.of(tree), dataset=trust_cases.dataset(tree)))
        with open_guard(prepared, "trust") as guard:
            theirs = self.difference(execute(prepared, guard).vector.numpy())
        ours = self.train(method, 0.0, 3, 2.0)
        return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - self.start))


def _with_constant(inputs: NDArray[Any]) -> NDArray[np.float32]:
    return np.column_stack([inputs, np.ones(len(inputs))]).astype(np.float32)


def _noise_of(plan: Plan) -> float:
    """All silos' noise is added up, on a server as in a secure sum: their sizes are their weights."""
    noises = [policy.noise.multiplier * policy.clip.norm for policy, _ in plan.rows if type(policy.noise) is FixedNoise]
    return float(np.linalg.norm(noises))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(SCORES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    known = {name: tree for name, tree in trust_cases.problems(asked.table).items() if name in asked.only}
    for data, seed in itertools.product(known, asked.seeds[:1] if asked.check else asked.seeds):
        emulator = Emulator(data, known[data], seed)
        for method in asked.methods if asked.check else ():
            print(f"{data}, {method}: off by {emulator.check(method):.1e} of the way")
        for cell in [] if asked.check else cells([data], asked.methods, [seed]):
            if key(cell) not in by_cell(trust_cases.read(CHOSEN)):
                trust_cases.keep(CHOSEN, emulator.choose(cell))


if __name__ == "__main__":
    main()
