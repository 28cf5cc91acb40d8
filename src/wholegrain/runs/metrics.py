"""Metrics that a spec may name: functions of all outputs [item, class] and targets [item] that give one number."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from wholegrain._registry import Registry

Metric = Callable[[Tensor, Tensor], "Tensor | float"]


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of items whose largest output is their class.

    >>> accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    0.5
    """
    return int((outputs.argmax(1) == targets).sum()) / len(targets)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean, over the classes that occur, of the share of a class's items that are found.

    >>> balanced_accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1, 0]))
    0.25
    """
    found = (outputs.argmax(1) == targets).double()
    return float(torch.stack([found[targets == each].mean() for each in sorted(set(targets.tolist()))]).mean())


METRICS: Registry[Metric] = Registry(
    "metric",
    "evaluation.metrics",
    {"accuracy": accuracy, "balanced_accuracy": balanced_accuracy},
    lambda name, metric: metric,
)


def find_metrics(names: Iterable[str]) -> Mapping[str, Metric]:
    """The named metrics, or the user's own as `module:function`; accuracy is always told, and not twice."""
    found = {name: METRICS.find(name) for name in names}
    return {name: metric for name, metric in found.items() if metric is not accuracy}
