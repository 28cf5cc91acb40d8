"""A private score of one silo: what the people who are held out add up to, in whole steps of a grid, and noise.

Why the noise is enough, in the arithmetic that runs:

- What a person adds depends on that person's items alone. Outputs are computed in passes of one size, in which an
  item's place follows from the item and its subject (`views.apply_view`); a loss is computed for one item at a time.
- It is made of whole numbers of steps, 2⁻²⁰ each, and every one of them is brought into its range as a whole number:
  2k − 2²⁰ with 0 ≤ k ≤ 2²⁰, or cells that add up to 2²⁰ at most. Nothing that a model puts out, finite or not, can make
  it longer than one for each measure.
- Whole numbers add up exactly, in any order. So one person more or less moves the sum by that person's own part, and
  all the others' stay the same to the last bit.

An answer that is not finite counts as wrong, a loss that is not finite as its bound, a probability that is none as one
half; where the model or the loss raises an error at an item, what it gives is not finite. A silo in which nobody is
held out releases noise, as any other does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain.clipping.errors_as_values import attempt
from wholegrain.clipping.parameters import Layout, call
from wholegrain.clipping.reference import Loss
from wholegrain.data.every_token import EveryToken
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Classification, MultiLabel, Regression, Task
from wholegrain.errors import SpecError
from wholegrain.models.dropout import without_dropout
from wholegrain.policies.score_settings import Measure, ScoreForm, ScoreSettings
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.views import apply_view

STEPS = 1 << 20
"""Steps of the grid in a contribution of 1."""

STREAM = "\x1fscores"
"""What is added to a silo's name, so that scores never have the noise of training."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Whom a silo holds out, if anybody, and in how many silos each item's subject is, where that is known [item].

    Private: all of it.
    """

    data: SubjectData | None
    spans: Counts | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreMaker:
    """Private scores of one model: the part that is trained, its loss, and what it predicts."""

    model: nn.Module
    loss: Loss
    task: Task
    noise: NoiseSource

    def score(self, silo: str, data: SubjectData | None, form: ScoreForm, vector: Tensor, round: int) -> Tensor:
        """The noisy sum over the people of `data` [value], a whole number of steps.

        Guarantee: a Gaussian mechanism of noise multiplier `form.noise_multiplier`, for a person and for an item.
        Private: `data`.
        """
        return self._noisy_steps(silo, HeldOut(data), form, vector, round) / STEPS  # exact

    def add_to_sum(self, silo: str, held_out: "HeldOut", form: ScoreForm, vector: Tensor, round: int) -> Counts:
        """A silo's part of a secure sum of scores [value], in whole steps: by itself it has too little noise.

        Private: the result; masked, it may leave the silo.
        """
        return np.asarray(self._noisy_steps(silo, held_out, form, vector, round).to(torch.int64).numpy())

    def _noisy_steps(self, silo: str, held_out: "HeldOut", form: ScoreForm, vector: Tensor, round: int) -> Tensor:
        total = np.zeros(form.width, np.int64)
        if held_out.data is not None and held_out.data.items:
            total = self.add_up(held_out.data, form, vector, held_out.spans)
        noisy = torch.from_numpy(total.astype(np.float64) / STEPS)
        self.noise.stream(round, silo + STREAM).add_steps_to(noisy, form.noise_multiplier, form.reach, 1 / STEPS)
        return noisy

    def add_up(self, data: SubjectData, form: ScoreForm, vector: Tensor, spans: Counts | None = None) -> Counts:
        """What all people of these items add up to [value], in steps; by span, with the spans of the items [item].

        Private: the result.
        """
        weights = _divisors(data, form, spans)
        with torch.no_grad(), without_dropout(self.model):
            outputs = apply_view(torch.from_numpy(data.inputs), _At(self.model, vector), data.subjects)
        targets = torch.from_numpy(data.targets)
        rows: dict[Measure, Callable[[], Counts]] = {
            "accuracy": lambda: self._centre(data, self._right(outputs, targets), weights),
            "mae": lambda: self._centre(data, self._errors(outputs, targets), weights),
            "loss": lambda: self._centre(data, self._losses(outputs, targets, form.loss_bound), weights),
            "histogram": lambda: self._mass(data, self._cells(data, outputs, form.bins), 2 * form.bins, weights),
        }
        found = [rows[measure]().reshape(-1) for measure in form.measures]
        people = [np.array([(STEPS // weights).sum()], np.int64)] if form.by_span else []
        return np.concatenate([*found, *people])

    def _centre(self, data: SubjectData, shares: Counts, divisors: Counts) -> Counts:
        """Σ (2k − 2²⁰)/s over people, k the mean of a person's shares [item] rounded down, and s what they count for.

        Quotients are rounded towards 0: none is longer than it would be.
        """
        means = _add_within(data, np.clip(shares, 0, STEPS)) // data.index.counts
        moves = 2 * means - STEPS
        return np.asarray((np.sign(moves) * (np.abs(moves) // divisors)).sum(), np.int64)

    def _mass(self, data: SubjectData, cells: Counts, width: int, divisors: Counts) -> Counts:
        """Σ over people of a mass of 2²⁰/s, spread over the cells of their items [cell]."""
        people = data.index.subjects.astype(np.int64)
        places, counts = np.unique(people * width + cells, return_counts=True)
        mass = counts * STEPS // data.index.counts[places // width] // divisors[places // width]
        total = np.zeros(width, np.int64)
        np.add.at(total, places % width, mass)
        return total

    def _right(self, outputs: Tensor, targets: Tensor) -> Counts:
        """The share of right answers of each item, in steps."""
        finite = torch.isfinite(outputs).all(1)
        if isinstance(self.task, MultiLabel):
            right = ((outputs > 0) == (targets > 0)).sum(1) * finite
            return np.asarray(right.numpy().astype(np.int64) * STEPS // targets.shape[1])
        outputs, targets = self.task.in_units(outputs), self.task.in_units(targets)
        return np.asarray(((outputs.argmax(1) == targets) & finite).numpy().astype(np.int64) * STEPS)

    def _errors(self, outputs: Tensor, targets: Tensor) -> Counts:
        """The absolute error of each item as a share of the declared range, which is 2 in stored units."""
        errors = (outputs.double().clamp(-1, 1) - targets.double()).abs()[:, 0] / 2
        return _in_steps(errors.nan_to_num(1.0).numpy())

    def _losses(self, outputs: Tensor, targets: Tensor, bound: float) -> Counts:
        """The loss of each item as a share of its bound. One by one: what is computed beside it must not matter."""
        found = np.array([self._loss(outputs[[i]], targets[[i]]) for i in range(len(outputs))], np.float64)
        return _in_steps(np.where(np.isfinite(found), found, bound) / bound)

    def _loss(self, output: Tensor, target: Tensor) -> float:
        """The loss of one item; what it raises is told to nobody."""
        found = attempt(lambda: float(self.loss(output, target)))
        return math.nan if found is None else found

    def _cells(self, data: SubjectData, outputs: Tensor, bins: int) -> Counts:
        """The cell of each item: the range of its predicted probability, of what came true and of what did not.

        Of two classes the probability of the second, and whether it is that; of more, that of the most likely one, and
        whether it is right.
        """
        targets = torch.from_numpy(data.targets)
        likely = apply_view(outputs, lambda some: some.double().softmax(1), data.subjects)
        two = outputs.shape[1] == 2
        chosen = likely[:, 1] if two else likely.max(1).values
        true = targets == 1 if two else outputs.argmax(1) == targets
        bin = (chosen.nan_to_num(0.5) * bins).long().clamp(0, bins - 1)
        return np.asarray((bin + bins * true.long()).numpy(), np.int64)


class _At(nn.Module):
    """A model with these values of its trainable parameters."""

    def __init__(self, model: nn.Module, vector: Tensor) -> None:
        super().__init__()
        self.model, self._vector, self._layout = model, vector, Layout.of(model)

    def forward(self, inputs: Tensor) -> Tensor:
        """The model's outputs."""
        return call(self.model, self._layout, self._vector, inputs)


def make_form(settings: ScoreSettings, task: Task, noise_multiplier: float, *, by_span: bool = False) -> ScoreForm:
    """The form of a score of this task; measures that are none of its are refused."""
    known: dict[type[Task], tuple[Measure, ...]] = {
        Regression: ("mae", "loss"),
        MultiLabel: ("accuracy", "loss"),
        EveryToken: ("accuracy", "loss"),
        Classification: ("accuracy", "loss", "histogram"),
    }
    usual = next(measures for kind, measures in known.items() if isinstance(task, kind))
    for measure in settings.measures:
        if measure not in usual:
            raise SpecError(f"The private measure '{measure}' is not for {task}; known: {', '.join(usual)}.")
    return ScoreForm(
        noise_multiplier=noise_multiplier,
        measures=settings.measures or usual[:1],
        bins=settings.bins,
        loss_bound=settings.loss_bound or 1.0,
        by_span=by_span,
    )


def _in_steps(shares: NDArray[np.float64]) -> Counts:
    """Shares in steps, rounded down; what is not between 0 and 1 is brought there."""
    bounded = np.clip(np.nan_to_num(shares, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    return np.asarray((bounded * STEPS).astype(np.int64))


def _divisors(data: SubjectData, form: ScoreForm, spans: Counts | None) -> Counts:
    """By what a person's part is divided [subject]: 1, or by span the number of silos that the person is in."""
    if not form.by_span:
        return np.ones(len(data.index.counts), np.int64)
    if spans is None:
        raise SpecError("Scores by span need to know in how many silos each person is.")
    return np.maximum(np.maximum.reduceat(spans[data.index.order], data.index.starts), 1)


def _add_within(data: SubjectData, values: Counts) -> Counts:
    """Values [item] added up within each subject [subject], as whole numbers."""
    return np.add.reduceat(values[data.index.order], data.index.starts)
