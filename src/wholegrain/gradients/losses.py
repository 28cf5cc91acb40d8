"""Losses that a spec may name: functions of outputs [item, …] and targets [item] that give a mean over items."""

import torch
from torch import nn

from wholegrain import _check
from wholegrain._registry import Registry
from wholegrain.errors import SpecError
from wholegrain.gradients.reference import Loss

LOSSES: Registry[Loss] = Registry(
    "loss",
    "model.loss",
    {"cross_entropy": nn.functional.cross_entropy, "multi_margin": nn.functional.multi_margin_loss},
    lambda name, loss: loss,
)

_ITEMS, _CLASSES = 4, 3


def find_loss(name: str) -> Loss:
    """The named loss, or the user's own `module:function`; one that is no mean over items is refused.

    Guarantee: none is needed. Gradients are clipped whatever the loss; a sum would only make a learning rate mean
    something else for every batch.
    """
    loss = LOSSES.find(name)
    draws = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(_ITEMS, _CLASSES, generator=draws), torch.arange(_ITEMS) % _CLASSES
    try:
        together = loss(outputs, targets)
        alone = torch.stack([loss(outputs[k : k + 1], targets[k : k + 1]) for k in range(_ITEMS)])
        mean = together.dim() == 0 and torch.allclose(together, alone.mean(), rtol=1e-3, atol=1e-5)
    except Exception as error:  # a loss may be the user's own code
        raise SpecError(
            f"The loss '{name}' does not take outputs [item, class] and class numbers [item]: {_check.reason(error)}."
        ) from error
    if not mean:
        raise SpecError(f"The loss '{name}' is not a mean over items: return one number, the mean of each item's loss.")
    return loss
