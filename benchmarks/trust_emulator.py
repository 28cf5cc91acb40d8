"""Runs of benchmarks/trust.py as matrix products, many at once.

What is computed is what the library computes: the sum of clipped gradients (or local updates) of a linear model with
two classes, and Gaussian noise of the standard deviation that the library's plan has for all silos together.
`trust_settings.py --check` holds an emulated run against the library's, `trust.py --draw` many with noise.

The model has a score for each of two classes; only their difference counts, so one vector is trained: the difference of
the two rows of weights. Its gradient is twice that of the second row, its noise √2 times as much. A person's gradient
is a combination of its items' inputs; its length follows from the inner products of these, which are computed once.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.stats import rankdata

import trust_cases
from linear_sums import with_short_cut
from trust_cases import METHODS, SCORES, Cell
from utility import Tree, merged
from wholegrain.policies.plan import Plan
from wholegrain.policies.policy import FixedNoise
from wholegrain.policies.policy_catalog import LOCAL_RATE, LOCAL_STEPS
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.planning import plan_for
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

SHARE = 0.2
"""Of the training people, who are left out of training to choose settings by."""
MOMENTUM = 0.9
Floats = NDArray[np.floating[Any]]


class Emulator:
    """Runs of one split of a data set, scored on one part of it: `validation`, out of the training part, or `test`."""

    def __init__(self, data: str, base: Tree, seed: int, part: str = "validation") -> None:
        shares = {"evaluation": {"validation": SHARE}} if part == "validation" else {}
        self.data, self.base, self.part = data, merged(base, shares), part
        self.clip: float = base["policy"]["clip_norm"]
        self.made = self._prepare(Cell(data, "local, by span", 1.0, seed))
        rows = [(self.made.silos[facts.name], facts) for _, facts in self.made.plan.rows]
        self.facts = tuple(facts for _, facts in rows)
        self.inputs = _with_constant(np.concatenate([silo.data.inputs for silo, _ in rows]))
        self.targets = np.concatenate([silo.data.targets for silo, _ in rows]).astype(np.float32)[:, None]
        people = np.concatenate([silo.data.subjects + (number << 40) for number, (silo, _) in enumerate(rows)])
        _, first, self.person, items = np.unique(people, return_index=True, return_inverse=True, return_counts=True)
        self.shares = (1 / items[self.person]).astype(np.float32)[:, None]
        self.spans = np.concatenate([silo.spans for silo, _ in rows])[first].astype(np.float64)[:, None]
        by_silo = [np.full(len(silo.data.targets), facts.subjects / facts.items) for silo, facts in rows]
        self.item_weights = np.concatenate(by_silo).astype(np.float32)[:, None]
        self.subjects = sum(facts.subjects for facts in self.facts)

    def _prepare(self, cell: Cell) -> PreparedRun:
        tree = cell.spec(self.base, 10, 1.0)
        return prepare(RunSpec.of(tree), dataset=trust_cases.dataset(tree))

    @cached_property
    def members(self) -> csr_matrix:
        """A row for each person in a silo, with a one for each of its items."""
        ones = np.ones(len(self.person), np.float32)
        return csr_matrix((ones, (self.person, np.arange(len(ones)))))

    @cached_property
    def products(self) -> csr_matrix:
        """Inner products of the inputs of one person's items, a block for each person."""
        pairs = (self.members.T @ self.members).tocoo()
        values = np.einsum("ij,ij->i", self.inputs[pairs.row], self.inputs[pairs.col])
        return coo_matrix((values, (pairs.row, pairs.col)), pairs.shape).tocsr()

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

    def gradient(self, method: str, vectors: Floats) -> Floats:
        """The sum over people of clipped gradients of the second class, at each column of parameters."""
        outputs = self.inputs @ vectors.astype(np.float32)
        errors = _sigmoid(outputs) - self.targets
        if method == "fedavg":
            return self.inputs.T @ (errors * self.item_weights)
        parts = self.shares * errors
        for _ in range(LOCAL_STEPS - 1 if method == "uldp_avg" else 0):
            moved = outputs - 2 * LOCAL_RATE * (self.products @ parts)
            parts += self.shares * (_sigmoid(moved) - self.targets)
        squares = self.members @ (parts * (self.products @ parts))
        lengths = np.sqrt(2 * np.maximum(squares, 0)) + 1e-30
        kept = np.minimum(1.0, self.clip * self._weights(method) / lengths).astype(np.float32)
        return self.inputs.T @ (parts * kept[self.person])

    def _weights(self, method: str) -> Floats:
        settings = METHODS[method]
        if not settings["policy"].get("by_span"):
            return np.ones_like(self.spans)
        return 1 / self.spans if "trust" in settings else 1 / np.sqrt(self.spans)

    def train(
        self, method: str, noise: float, rounds: int, learning_rates: Sequence[float], draws: Sequence[int]
    ) -> Floats:
        """The vector after all rounds, by momentum and a rate that falls linearly; a column for each rate and draw."""
        rates, size = np.asarray(learning_rates), len(self.start)
        drawn = {draw: np.random.default_rng(draw).normal(size=(rounds, size)) for draw in set(draws)}
        added = np.stack([drawn[draw] for draw in draws], axis=2) * noise * np.sqrt(2)
        vectors = np.repeat(self.start[:, None], len(rates), axis=1)
        speeds = np.zeros_like(vectors)
        for round in range(rounds):
            noisy = 2 * self.gradient(method, vectors) + added[round]
            speeds = MOMENTUM * speeds - rates * noisy / self.subjects
            vectors = vectors + speeds * (1 - round / rounds)
        return vectors

    def scores(self, vectors: Floats) -> list[float]:
        """Of each column, on the people of the part."""
        part = self.made.scored[self.part]
        outputs, targets = _with_constant(part.inputs) @ vectors, part.targets == 1
        if SCORES[self.data] == "accuracy":
            return [float(share) for share in ((outputs > 0) == targets[:, None]).mean(0)]
        above = rankdata(outputs, axis=0)[targets].sum(0) - targets.sum() * (targets.sum() + 1) / 2
        return [float(share) for share in above / (targets.sum() * (~targets).sum())]

    def check(self, method: str) -> float:
        """How far an emulated run is from the library's, relative to how far the run goes, with hardly any noise."""
        cell, little = Cell(self.data, method, None, self.made.spec.seed), {"privacy": {"noise_multiplier": 0.01}}
        tree = merged(cell.spec(self.base, 3, 2.0), {} if method == "fedavg" else little)
        prepared = with_short_cut(prepare(RunSpec.of(tree), dataset=trust_cases.dataset(tree)))
        with open_guard(prepared, "trust") as guard:
            theirs = self.difference(execute(prepared, guard).vector.numpy())
        ours = self.train(method, 0.0, 3, [2.0], [0])[:, 0]
        return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - self.start))


def _sigmoid(outputs: Floats) -> Floats:
    """1/(1 + e^−x), by the fastest function that numpy has for it."""
    return 0.5 + 0.5 * np.tanh(0.5 * outputs)


def _with_constant(inputs: NDArray[Any]) -> NDArray[np.float32]:
    return np.column_stack([inputs, np.ones(len(inputs))]).astype(np.float32)


def _noise_of(plan: Plan) -> float:
    """All silos' noise is added up, on a server as in a secure sum: their sizes are their weights."""
    noises = [policy.noise.multiplier * policy.clip.norm for policy, _ in plan.rows if type(policy.noise) is FixedNoise]
    return float(np.linalg.norm(noises))
