"""Metrics that a spec may name: functions of all outputs and targets that give one number.

Outputs are [item, output]. Targets are class numbers [item], or labels (0 and 1) or numbers [item, output]; numbers are
in the target's own units.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from scipy.stats import rankdata
from torch import Tensor

from wholegrain._registry import Registry
from wholegrain.data.tasks import Task
from wholegrain.errors import SpecError

Metric = Callable[[Tensor, Tensor], "Tensor | float"]

BINS = 10
TOP = 5


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of items whose largest output is their class; of labels, the share that is told right.

    >>> accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    0.5
    """
    return float(_is_right(outputs, targets).double().mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean, over the classes that occur, of the share of a class's items that are found; the mean over labels.

    >>> balanced_accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1, 0]))
    0.25
    """
    found = _is_right(outputs, targets).double()
    if targets.dim() == 1:
        return float(torch.stack([found[targets == each].mean() for each in sorted(set(targets.tolist()))]).mean())
    of_labels = [balanced_accuracy(_two(outputs[:, k]), targets[:, k].long()) for k in range(targets.shape[1])]
    return sum(of_labels) / len(of_labels)


def auc(outputs: Tensor, targets: Tensor) -> float:
    """The chance that an item of a class is ranked above one of another; the mean over classes or labels that occur.

    >>> auc(torch.tensor([[0.0, 1.0], [0.0, 0.5], [0.0, -1.0]]), torch.tensor([1, 0, 0]))
    1.0
    """
    likely, hits = _one_against_rest(outputs, targets)
    inside, outside = hits.sum(0), (~hits).sum(0)
    # Equal outputs may differ in the last bit, by their place in memory.
    ranks = torch.from_numpy(rankdata(likely.round(decimals=12).numpy(), axis=0))
    above = (ranks * hits).sum(0) - inside * (inside + 1) / 2
    mixed = (inside > 0) & (outside > 0)
    return float((above[mixed] / (inside * outside)[mixed]).mean())


def log_loss(outputs: Tensor, targets: Tensor) -> float:
    """The mean of −log of the probability that was given to what is right, in nats."""
    _require_classes(outputs, targets)
    if targets.dim() == 1:
        return float(torch.nn.functional.cross_entropy(outputs.double(), targets))
    return float(torch.nn.functional.binary_cross_entropy_with_logits(outputs.double(), targets.double()))


def brier(outputs: Tensor, targets: Tensor) -> float:
    """The squared distance of probabilities from what is right (Brier 1950); of two classes, of one of them."""
    likely, hits = _one_against_rest(outputs, targets)
    squares = (likely - hits.double()).square()
    return float(squares.mean() if targets.dim() == 2 else squares.sum(1).mean())


def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """How far probabilities lie from shares, over ten bins of the probability (ECE, Naeini et al. 2015).

    Of two classes that of the second, of more that of the most likely one, of labels their mean.
    """
    likely, hits = _one_against_rest(outputs, targets)
    if targets.dim() == 1 and outputs.shape[1] > 2:
        likely, hits = likely.max(1, keepdim=True).values, _is_right(outputs, targets)[:, None]
    bins = (likely * BINS).long().clamp(0, BINS - 1)
    gaps = torch.stack([((likely - hits.double()) * (bins == each)).mean(0).abs() for each in range(BINS)])
    return float(gaps.sum(0).mean())


def top_5(outputs: Tensor, targets: Tensor) -> float:
    """The share of items whose class is among the five largest outputs."""
    if targets.dim() != 1 or outputs.shape[1] <= TOP:
        raise ValueError("there are not more than five classes")
    best = outputs.topk(TOP, dim=1).indices
    return float((best == targets[:, None]).any(1).double().mean())


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """Among how many equally likely ones a model would be as unsure: e to the log loss."""
    return float(torch.tensor(log_loss(outputs, targets)).exp())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """The mean absolute error."""
    _require_numbers(outputs, targets)
    return float((outputs.double() - targets.double()).abs().mean())


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """The root of the mean squared error."""
    _require_numbers(outputs, targets)
    return float((outputs.double() - targets.double()).square().mean().sqrt())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of the targets' variance that is explained; 0 for their mean, below it for worse."""
    _require_numbers(outputs, targets)
    left = (outputs.double() - targets.double()).square().sum()
    whole = (targets.double() - targets.double().mean(0)).square().sum()
    return float(1 - left / whole)


METRICS: Registry[Metric] = Registry(
    "metric",
    "evaluation.metrics",
    {
        "accuracy": accuracy,
        "balanced_accuracy": balanced_accuracy,
        "auc": auc,
        "log_loss": log_loss,
        "brier": brier,
        "calibration_error": calibration_error,
        "top_5": top_5,
        "perplexity": perplexity,
        "mae": mae,
        "rmse": rmse,
        "r2": r2,
    },
    lambda name, metric: metric,
)

LESS_IS_BETTER = frozenset({"loss", "log_loss", "brier", "calibration_error", "perplexity", "mae", "rmse"})
"""Of the others of the catalogue, more is; of the user's own, nobody knows."""


def find_metrics(names: Iterable[str], task: Task | None = None) -> Mapping[str, Metric]:
    """The named metrics, or the user's own as `module:function`; one of the catalogue that is not for the task is
    refused.
    """
    found = {name: METRICS.find(name) for name in names}
    for name, metric in found.items() if task is not None else ():
        if name in METRICS and task is not None and not fits(metric, task):
            raise SpecError(f"The metric '{name}' is not for {task}; usual are {', '.join(task.metrics)}.")
    return found


def fits(metric: Metric, task: Task) -> bool:
    """Whether a metric can be computed for a task, on made-up items."""
    targets = torch.from_numpy(task.made_up(4))
    try:
        metric(task.in_units(torch.zeros(4, task.outputs)), task.in_units(targets))
    except (ValueError, RuntimeError, IndexError):
        return False
    return True


def _is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """[item] or [item, label] whether the answer is right."""
    _require_classes(outputs, targets)
    return outputs.argmax(1) == targets if targets.dim() == 1 else (outputs > 0) == (targets > 0)


def _one_against_rest(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """[item, case] probabilities and whether each is so; of two classes the second stands for both."""
    _require_classes(outputs, targets)
    if targets.dim() == 2:
        return outputs.double().sigmoid(), targets > 0
    likely = outputs.double().softmax(1)
    hits = torch.nn.functional.one_hot(targets, outputs.shape[1]).bool()
    return (likely[:, 1:], hits[:, 1:]) if outputs.shape[1] == 2 else (likely, hits)


def _two(logit: Tensor) -> Tensor:
    """A label's logit as outputs of two classes."""
    return torch.stack([torch.zeros_like(logit), logit], dim=1)


def _require_classes(outputs: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point() and not bool(((targets == 0) | (targets == 1)).all()):
        raise ValueError("the targets are numbers, not classes or labels")


def _require_numbers(outputs: Tensor, targets: Tensor) -> None:
    if outputs.shape != targets.shape:
        raise ValueError("the targets are classes, not numbers")
