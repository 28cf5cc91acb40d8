"""The reference: per-example gradients one item at a time, which every faster method is tested against."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, pool_gradients
from wholegrain.clipping.parameters import Layout, compute_at

Loss = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of predictions against targets, for a batch of any size."""


class ClippedSum(Protocol):
    """The function behind which every gradient engine stands, for one model and its loss."""

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        """Pool the gradients, at parameters `vector`, of a batch whose item i belongs to subject `groups[i]`.

        `buckets` say in which groups of the sum subjects are added up; without them, no subject has a group of its own.
        """
        ...


@runtime_checkable
class HasItemCoins(Protocol):
    """Gradients of a model whose items have coins (dropout): they are renewed in every step."""

    @property
    def draws_coins(self) -> bool:
        """Whether there are any."""
        ...

    def renew_coins(self, key: int) -> None:
        """Draw the coins of the next step with this key."""
        ...


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    vector: Tensor,
    inputs: Tensor,
    targets: Tensor,
    groups: Tensor,
    clip: Clip,
    buckets: Buckets | None = None,
) -> ClippedTotal:
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

        def differentiate(placed: nn.Module) -> Tensor:
            # A copy: a model may work in place.
            return torch.autograd.grad(loss(placed(inputs.clone()), targets), leaf)[0]

        return compute_at(model, layout.views(leaf), differentiate)


def summed_gradients(
    model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
) -> list[Tensor]:
    """The sum of the gradients of a batch's items, taken one after the other: one tensor for each parameter.

    To put them together as one vector would take the memory of another.
    """
    leaves = {name: view.requires_grad_() for name, view in layout.views(vector.detach()).items()}
    for k in range(len(inputs)):
        with torch.enable_grad():
            compute_at(model, leaves, partial(_add_gradient, loss, list(leaves.values()), inputs[k], targets[k]))
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves.values()]


def _add_gradient(loss: Loss, leaves: list[Tensor], x: Tensor, y: Tensor, placed: nn.Module) -> Tensor:
    value = loss(placed(x[None].clone()), y[None])
    # In place; a gradient that two parameters share is copied first.
    torch.autograd.backward(value, inputs=leaves)
    return value
