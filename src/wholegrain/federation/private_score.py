"""What noisy sums say: scores with intervals. Everything here is done to what was released, and costs nothing.

With S the noisy sum of 2x − 1 over the people who are held out, n how many they are by declaration (or, in a
simulation, by count) and σ√m the noise, x is estimated as 1/2 + S/2n. If n is the expected number of people, who are
drawn one by one with a coin, this estimator is unbiased: its variance is at most 1/4n for the draw, and σ²m/4n² for the
noise. By span n is itself a noisy sum, and x a ratio. Intervals are of 95 %, by the normal law. `noise` counts the
noise alone: where the score of these very people lies. `both` also counts who happened to be held out: where the score
of all people like them lies.

A score that was chosen because it was the best of several is too high; nothing here corrects that.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain._json_numbers import finite
from wholegrain.clipping.rounding import SLACK
from wholegrain.data.tasks import Regression, Task
from wholegrain.policies.score_settings import ScoreForm

ALL = "all silos"
NORMAL = 1.959964
"""Standard deviations to either side of 95 % of the normal law."""
DRAWS = 400
"""Histograms drawn to see how far noise and chance move what follows from one."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and how far it may be off: by noise, and by noise and the draw of people together."""

    value: float
    noise: float
    both: float

    def facts(self) -> dict[str, float | None]:
        """The estimate as JSON has it."""
        return {"value": _round(self.value), "noise": _round(self.noise), "both": _round(self.both)}

    @staticmethod
    def read(facts: Mapping[str, Any]) -> "Estimate":
        """The estimate that `facts` wrote."""
        return Estimate(*(math.nan if facts[key] is None else facts[key] for key in ("value", "noise", "both")))

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.noise:.4f}"


PrivateScore = Mapping[str, Estimate]
"""Estimates by the name of the metric, the task's headline first."""


@dataclass(frozen=True, eq=False)
class ScoreReader:
    """Reads noisy sums of one form."""

    form: ScoreForm
    task: Task

    def read(self, sums: Values, people: float, silos: int = 1) -> PrivateScore:
        """The scores of a noisy sum [value] over so many people, with the noise of so many silos in it."""
        spread = self.form.noise_multiplier * self.form.reach * (1 + SLACK) * math.sqrt(silos)
        found: dict[str, Estimate] = {}
        if self.form.by_span:
            people = max(float(sums[-1]), 1.0)  # noisy, as everything is; fewer than one would be nobody
        for measure, place in self.form.places.items():
            if measure == "histogram":
                found |= self._of_histogram(sums[place], people, spread)
            else:
                found[measure] = self._of_number(measure, float(sums[place][0]), people, spread)
        return found

    def read_all(self, sums: Mapping[str, Values], people: Mapping[str, int]) -> dict[str, PrivateScore]:
        """Scores of all silos together and of each by itself, of those that answered."""
        if not sums:
            return {}
        total = np.sum(list(sums.values()), axis=0)
        together = self.read(total, sum(people[silo] for silo in sums), len(sums))
        return {ALL: together, **{silo: self.read(found, people[silo]) for silo, found in sums.items()}}

    def _of_number(self, measure: str, total: float, people: float, spread: float) -> Estimate:
        scale = self._scale(measure)
        noise, chance = spread / (2 * people), 1 / (2 * math.sqrt(people))
        if self.form.by_span:
            noise *= math.hypot(1.0, total / people)  # of a ratio of two noisy sums
        return Estimate(
            value=scale * (0.5 + total / (2 * people)),
            noise=scale * NORMAL * noise,
            both=scale * NORMAL * math.hypot(noise, chance),
        )

    def _scale(self, measure: str) -> float:
        """What a share of 1 means."""
        if measure == "mae" and isinstance(self.task, Regression):
            return self.task.high - self.task.low
        return self.form.loss_bound if measure == "loss" else 1.0

    def _of_histogram(self, cells: Values, people: float, spread: float) -> dict[str, Estimate]:
        metrics: dict[str, Callable[[Values], float]] = {"calibration_error": calibration_of_cells}
        if self.task.class_count == 2:
            metrics = {"auc": auc_of_cells, **metrics}
        return {name: _estimate(metric, cells, spread) for name, metric in metrics.items()}


def headline_value(score: PrivateScore) -> float:
    """The first estimate, so that more is better: what trials are ranked by."""
    name, estimate = next(iter(score.items()))
    return -estimate.value if name in ("mae", "loss") else estimate.value


def auc_of_cells(cells: Values) -> float:
    """The chance that what came true was ranked above what did not; equal cells count half. Of people, not of items.

    >>> auc_of_cells(np.array([2.0, 0.0, 0.0, 2.0]))
    1.0
    """
    false, true = cells[: len(cells) // 2], cells[len(cells) // 2 :]
    below = np.cumsum(false) - false / 2
    mass = float(false.sum() * true.sum())
    return float(np.clip((true * below).sum() / mass, 0.0, 1.0)) if mass > 0 else math.nan


def calibration_of_cells(cells: Values) -> float:
    """How far the middle of each range of probability lies from the share that came true, weighted by people.

    >>> calibration_of_cells(np.array([3.0, 1.0, 1.0, 3.0]))
    0.0
    """
    false, true = cells[: len(cells) // 2], cells[len(cells) // 2 :]
    middles = (np.arange(len(false)) + 0.5) / len(false)
    mass = float(cells.sum())
    return float(np.abs(true - middles * (false + true)).sum() / mass) if mass > 0 else math.nan


def _estimate(metric: Callable[[Values], float], cells: Values, spread: float) -> Estimate:
    """The metric's value, and how far it moves when noise, or noise and chance, are drawn again. The draws are seeded:
    the same release always reads the same.
    """
    draws = np.random.default_rng(0)
    shape = (DRAWS, len(cells))
    noise = draws.normal(0, spread, shape)
    chance = draws.poisson(np.maximum(cells, 0.0), shape) - np.maximum(cells, 0.0)
    moved = [_deviation([metric(cells + each) for each in some]) for some in (noise, noise + chance)]
    return Estimate(metric(cells), NORMAL * moved[0], NORMAL * moved[1])


def _deviation(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return float(np.std(known)) if known else math.nan


def _round(value: float) -> float | None:
    return finite(round(value, 6)) if math.isfinite(value) else None


def private_score_facts(scores: Mapping[str, PrivateScore]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Scores by place, as JSON has them."""
    return {place: {name: each.facts() for name, each in score.items()} for place, score in scores.items()}


def read_private_scores(facts: Mapping[str, Any]) -> dict[str, PrivateScore]:
    """The scores that `private_score_facts` wrote."""
    return {place: {name: Estimate.read(each) for name, each in score.items()} for place, score in facts.items()}
