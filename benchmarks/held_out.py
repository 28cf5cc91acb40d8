"""Settings tried on people who are neither tested nor trained on: a fifth of the training part, held out.

A data set is read, split and seen through a frozen backbone once; each setting then costs its training alone.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

import utility
from utility import Tree, merged
from wholegrain.clipping.parameters import flatten
from wholegrain.errors import WholegrainError
from wholegrain.federation.rounds import State
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import StartState, execute, open_guard, plan_for, prepare
from wholegrain.runs.spec import RunSpec

SHARE = 0.2


@dataclass(frozen=True)
class Trial:
    """One setting on one split of one data set."""

    data: str
    epsilon: float | None
    seed: int
    tree: Tree

    @property
    def settings(self) -> str:
        """A digest of what is tried."""
        return hashlib.sha256(json.dumps(self.tree, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def key(self) -> tuple[Any, ...]:
        return self.data, self.epsilon, self.seed, self.settings

    def spec(self, base: Tree) -> RunSpec:
        """The whole run; the test part stays unseen, or where the source has its own, unread."""
        shares = {"validation": SHARE, "test": base.get("evaluation", {}).get("test", 0.0)}
        privacy = {"privacy": {"epsilon": self.epsilon, "delta": utility.DELTA}} if self.epsilon else {}
        return RunSpec.of(merged(base, {"seed": self.seed, "evaluation": shares}, privacy, self.tree))


@functools.lru_cache(maxsize=2)
def _prepared(text: str) -> tuple[PreparedRun, Tensor]:
    """A run, and the parameters that it begins with: a finished run leaves its own in the model."""
    tree = json.loads(text)
    made = prepare(RunSpec.of(tree), dataset=utility.dataset(json.dumps(tree["data"], sort_keys=True)))
    return made, flatten(made.model).clone()


def ready(trial: Trial, base: Tree) -> tuple[PreparedRun, StartState]:
    """The run and where it begins, with what trials share made once."""
    spec = trial.spec(base)
    by_span = {"policy": {"name": "subject_dp", "rate": 1.0, "by_span": spec.policy.by_span}}
    shared = merged(trial.spec(base).model_dump(include={"seed", "data", "silos", "model", "evaluation"}), by_span)
    made, first = _prepared(json.dumps(merged(shared, {"privacy": {"noise_multiplier": 1.0}}), sort_keys=True))
    facts = tuple(facts for _, facts in made.plan.rows)
    return replace(made, spec=spec, plan=plan_for(spec, facts, accountant("pld"))), StartState(State(0, first.clone()))


def play(trial: Trial, base: Tree) -> Tree:
    """Accuracy on the people held out; what is refused says why."""
    found: Tree = {"data": trial.data, "epsilon": trial.epsilon, "seed": trial.seed, "settings": trial.settings}
    try:
        prepared, start = ready(trial, base)
        with open_guard(prepared, "held out") as guard:
            score = execute(prepared, guard, start=start).scores["validation"]
    except WholegrainError as error:
        return {**found, "tree": trial.tree, "refused": str(error)}
    return {**found, "tree": trial.tree, "accuracy": score.accuracy, "loss": score.loss}


def keep(row: Mapping[str, Any], path: Any) -> None:
    """Add a row to a file of rows."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
