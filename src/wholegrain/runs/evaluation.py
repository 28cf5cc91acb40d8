"""Scores of a model on items. They read raw data and are not private: never to leave a silo in a deployment."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor, nn

from wholegrain import _check
from wholegrain.data.subjects import SubjectData
from wholegrain.gradients.parameters import Layout, call
from wholegrain.gradients.reference import Loss
from wholegrain.models.model_inputs import values
from wholegrain.runs.metrics import Metric, accuracy

log = logging.getLogger("wholegrain.runs")

CHUNK = 512
NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over items, and further metrics by name."""

    loss: float
    accuracy: float
    further: Mapping[str, float] = field(default_factory=dict)


def score(
    model: nn.Module, loss: Loss, vector: Tensor, data: SubjectData, metrics: Mapping[str, Metric] = NO_METRICS
) -> Score:
    """The model's score at parameters `vector`."""
    layout = Layout.of(model)
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    total, parts = 0.0, []
    with torch.no_grad():
        for x, y in zip(torch.split(inputs, CHUNK), torch.split(targets, CHUNK), strict=True):
            parts.append(call(model, layout, vector, values(x)))
            total += float(loss(parts[-1], y)) * len(y)
        outputs = torch.cat(parts)
        further = {name: _measure(name, metric, outputs, targets) for name, metric in metrics.items()}
    return Score(total / data.items, accuracy(outputs, targets), further)


def _measure(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """A metric's value, or nan where the user's own code fails: no score is worth the rounds that were paid for."""
    try:
        return float(metric(outputs, targets))
    except Exception as error:
        log.warning("The metric '%s' cannot be computed: %s.", name, _check.reason(error))
        return math.nan
