"""Losses that a spec may name: functions of outputs [item, …] and targets [item, …] that give a mean over items."""

import torch
from torch import Tensor, nn

from wholegrain import _check
from wholegrain._registry import Registry
from wholegrain.clipping.reference import Loss
from wholegrain.data.tasks import Classification, Task
from wholegrain.errors import SpecError


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance, whose gradient is the distance itself."""
    _require_same_shape(outputs, targets)
    return 0.5 * nn.functional.mse_loss(outputs, targets)


def cross_entropy_of_positions(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over items and positions of outputs [item, position · class] and class numbers [item, position]."""
    by_position = outputs.reshape(targets.numel(), -1)
    return nn.functional.cross_entropy(by_position, targets.long().reshape(-1))


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance, linear from half the range of a bounded target on (Huber 1964)."""
    _require_same_shape(outputs, targets)
    return nn.functional.huber_loss(outputs, targets, delta=1.0)


def _require_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Torch would compare every output with every target."""
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs are {list(outputs.shape)} and targets {list(targets.shape)}")


LOSSES: Registry[Loss] = Registry(
    "loss",
    "model.loss",
    {
        "cross_entropy": nn.functional.cross_entropy,
        "cross_entropy_of_positions": cross_entropy_of_positions,
        "multi_margin": nn.functional.multi_margin_loss,
        "binary_cross_entropy": nn.functional.binary_cross_entropy_with_logits,
        "squared_error": squared_error,
        "huber": huber,
    },
    lambda name, loss: loss,
)

_ITEMS = 4
_CLASSES = Classification.of(3)


def find_loss(name: str | None, task: Task = _CLASSES) -> Loss:
    """The named loss, or the user's own `module:function`, or the task's usual one."""
    name = name or task.loss
    return require_mean(LOSSES.find(name), name, task)


def require_mean(loss: Loss, name: str, task: Task = _CLASSES) -> Loss:
    """The loss itself, refused where it does not fit the task or is no mean over items.

    Guarantee: none is needed. Gradients are clipped whatever the loss; a sum would only make a learning rate mean
    something else for every batch.
    """
    if isinstance(loss, type):
        raise SpecError(f"The loss '{name}' is a class; give an instance, {name.rpartition(':')[2]}().")
    draws = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(_ITEMS, task.outputs, generator=draws), torch.from_numpy(task.made_up(_ITEMS))
    try:
        together = loss(outputs, targets)
        alone = torch.stack([loss(outputs[k : k + 1], targets[k : k + 1]) for k in range(_ITEMS)])
        mean = together.dim() == 0 and torch.allclose(together, alone.mean(), rtol=1e-3, atol=1e-5)
    except Exception as error:  # a loss may be the user's own code
        raise SpecError(f"The loss '{name}' does not take {_forms(task)}: {_check.reason(error)}.") from error
    if not mean:
        raise SpecError(f"The loss '{name}' is not a mean over items: return one number, the mean of each item's loss.")
    if torch.equal(loss(-outputs, targets), together):  # as a softmax over one output is, for any target
        raise SpecError(f"The loss '{name}' does not depend on the outputs, so that nothing can be learnt of {task}.")
    return loss


def _forms(task: Task) -> str:
    if task.class_count:
        return "outputs [item, class] and class numbers [item]"
    return f"outputs and targets [item, {task.outputs}] (the task is to predict {task})"
