"""The slow, obvious way: one item at a time. It is the oracle that every faster way is tested against."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from wholegrain.gradients.parameters import Layout, call
from wholegrain.gradients.pooling import Clip, Pooled, pool_gradients

Loss = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of predictions against targets, for a batch of any size."""


class ClippedSum(Protocol):
    """The function behind which every gradient engine stands, for one model and its loss."""

    def __call__(self, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip) -> Pooled:
        """Pool the gradients, at parameters `vector`, of a batch whose item i belongs to subject `groups[i]`."""
        ...


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    vector: Tensor,
    inputs: Tensor,
    targets: Tensor,
    groups: Tensor,
    clip: Clip,
) -> Pooled:
    """Pool by a loop over items; with model and loss bound, a `ClippedSum`."""
    layout = Layout.of(model)
    rows = [
        batch_gradient(model, loss, layout, vector, inputs[i : i + 1], targets[i : i + 1]) for i in range(len(inputs))
    ]
    gradients = torch.stack(rows) if rows else vector.new_zeros(0, layout.size)
    return pool_gradients(gradients, groups, clip)


def batch_gradient(
    model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Gradient [parameter] of the batch's mean loss at `vector`; for a batch of one, that item's gradient."""
    with torch.enable_grad():
        leaf = vector.detach().requires_grad_()
        # A copy: a model may work in place.
        value = loss(call(model, layout, leaf, inputs.clone()), targets)
        (gradient,) = torch.autograd.grad(value, leaf)
    return gradient
