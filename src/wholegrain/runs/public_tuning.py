"""Tuning for nothing: the same search on public or synthetic data, ranked by scores that need no noise.

Trials are trained as the run would be, with its budget and the noise for it: what is best without noise is not what is
best with it.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wholegrain._random import Purpose, derive
from wholegrain.data.dataset import Dataset
from wholegrain.errors import RunError, SpecError
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.accounts import guard_run
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.metrics import LESS_IS_BETTER
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.runner import execute, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.tuning_space import SearchSpace, Settings, apply_settings
from wholegrain.runs.tuning_trials import Trial


@dataclass(frozen=True)
class PublicChoice:
    """The best trial, and all of them: their data is public."""

    best: Trial
    trials: tuple[Trial, ...]

    def changes(self) -> tuple[str, ...]:
        """What to put after --set to have the chosen settings, and to have it said where they come from."""
        chosen = self.best.settings
        values = [f"{place}={value}" for place, value in chosen.items()]
        places = dict.fromkeys(".".join(place.split(".")[:2]) for place in chosen)
        return (*values, *(f"origin.{place}=public" for place in places))


def tune_on_public(
    spec: RunSpec,
    public: RunSpec,
    space: SearchSpace,
    trials: int,
    dataset: Dataset | None = None,
    tell: Callable[[Trial], None] | None = None,
) -> PublicChoice:
    """The best of so many trials of the spec on the data and silos of another one, which is public or synthetic."""
    asked = _on(spec, public)
    dataset = dataset or load_dataset(asked)
    asked = prepare(asked, dataset=dataset).spec
    done = []
    for number in range(trials):
        settings = space.draw(np.random.default_rng(derive(spec.seed, Purpose.TUNING, "public", number)))
        done.append(_make(asked, settings, number, dataset))
        if tell is not None:
            tell(done[-1])
    best = max(done, key=lambda trial: trial.score)
    if not math.isfinite(best.score):
        raise RunError("No trial came to its end with a finite score; lower the learning rates of the space.")
    return PublicChoice(best, tuple(done))


def _on(spec: RunSpec, public: RunSpec) -> RunSpec:
    """The spec on other data, as a simulation that keeps no ledger."""
    if spec.privacy.epsilon is None and spec.privacy.noise_multiplier is None:
        raise SpecError("Trials are made with the noise that the run will have: set privacy.epsilon.")
    changes = {"data": public.data, "silos": public.silos, "ledger": RunSpec().ledger}
    changes |= {"evaluation": public.evaluation.model_copy(update={"private": None})}
    changes |= {"privacy": spec.privacy.model_copy(update={"noise": "seeded"})}
    return spec.model_copy(update=changes)


def _make(spec: RunSpec, settings: Settings, number: int, dataset: Dataset) -> Trial:
    run = prepare(apply_settings(spec, settings), dataset=dataset)
    try:
        with Ledger.in_memory() as ledger:
            guard = guard_run(ledger, secrets.token_hex(8), run.spec, run.data, run.plan, run.noise)
            result = execute(run, guard)
    except RunError:
        return Trial(number, settings, -math.inf, 0.0)
    return Trial(number, settings, _rank(result), result.seconds)


def _rank(result: RunResult) -> float:
    """The headline of the test part, so that more is better."""
    if not result.scores:
        raise SpecError("Nothing is held out of the public data to rank trials by; set its evaluation.test.")
    name, value = (result.scores.get("validation") or result.scores["test"]).headline
    return -value if name in LESS_IS_BETTER else value
