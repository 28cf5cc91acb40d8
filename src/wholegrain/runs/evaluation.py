"""Scores of a model on items, beside those of a constant answer.

They read raw data and are not private: never to leave a silo in a deployment.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from wholegrain import _check
from wholegrain.clipping.parameters import Layout, call
from wholegrain.clipping.reference import Loss
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Task
from wholegrain.federation.round_record import Score
from wholegrain.models.dropout import without_dropout
from wholegrain.models.model_inputs import values
from wholegrain.runs.metrics import LESS_IS_BETTER, Metric, find_metrics
from wholegrain.silo.views import view_items

log = logging.getLogger("wholegrain.runs")

CHUNK = 512


@dataclass(frozen=True, eq=False)
class Scorer:
    """How items of a task are scored: by the loss and by metrics, headline first."""

    task: Task
    loss: Loss
    metrics: Mapping[str, Metric]

    @staticmethod
    def of(task: Task, loss: Loss, names: Iterable[str] = ()) -> "Scorer":
        """With the task's headline and these metrics."""
        return Scorer(task, loss, find_metrics(dict.fromkeys([task.headline, *names]), task))

    def score(self, model: nn.Module, vector: Tensor, data: SubjectData) -> Score:
        """The model's score at parameters `vector`; an item at which it raises an error has no finite answer."""
        view, inputs = partial(call, model, Layout.of(model), vector), torch.from_numpy(data.inputs)
        with torch.no_grad(), without_dropout(model):
            like = view(values(inputs.new_zeros(1, *inputs.shape[1:])))
            outputs = torch.cat([view_items(view, some, like) for some in torch.split(inputs, CHUNK)])
            return self.of_outputs(outputs, torch.from_numpy(data.targets))

    def constant(self, data: SubjectData) -> Score:
        """The best that one answer for all items reaches in each metric, known from these items themselves.

        That is the harder yardstick: a constant that was chosen on training items would score no better.
        """
        targets = torch.from_numpy(data.targets)
        candidates = torch.from_numpy(self.task.constants(data.targets)).float()
        found = [self.of_outputs(each.expand(len(targets), -1), targets) for each in candidates]
        best = {name: _best(name, [score.metrics[name] for score in found]) for name in self.metrics}
        return Score(min(score.loss for score in found), best)

    def of_outputs(self, outputs: Tensor, targets: Tensor) -> Score:
        """The score of these outputs."""
        pieces = zip(torch.split(outputs, CHUNK), torch.split(targets, CHUNK), strict=True)
        total = sum(float(self.loss(x, y)) * len(y) for x, y in pieces)
        shown, right = self.task.in_units(outputs), self.task.in_units(targets)
        measured = {name: _measure(name, metric, shown, right) for name, metric in self.metrics.items()}
        return Score(total / len(targets), measured)


def _best(name: str, found: list[float]) -> float:
    return min(found) if name in LESS_IS_BETTER else max(found)


def _measure(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """A metric's value, or nan where the user's own code fails: no score is worth the rounds that were paid for."""
    try:
        return float(metric(outputs, targets))
    except Exception as error:
        log.warning("The metric '%s' cannot be computed: %s.", name, _check.reason(error))
        return math.nan
