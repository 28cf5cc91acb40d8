"""All items at once by `torch.func.vmap`; the per-item gradients [item, parameter] are held in memory, whole.

Chunks bound what vmap needs besides. A model whose per-item gradients do not fit needs smaller batches.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from wholegrain.gradients.clip_units import Buckets
from wholegrain.gradients.clipping import Clip, ClipPer, Pooled, pool_gradients
from wholegrain.gradients.parameters import Layout, call
from wholegrain.gradients.reference import Loss, batch_gradient

# 2²⁶ values: 256 MB of float32 per-item gradients made at a time.
MOST_VALUES = 1 << 26


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    vector: Tensor,
    inputs: Tensor,
    targets: Tensor,
    groups: Tensor,
    clip: Clip,
    buckets: Buckets | None = None,
) -> Pooled:
    """Pool by vmap; where nothing is clipped within the batch, by one ordinary backward pass."""
    layout = Layout.of(model)
    if len(inputs) == 0:
        return Pooled(vector.new_zeros(layout.size), 0)
    if clip.per in (ClipPer.NONE, ClipPer.BATCH):
        mean = batch_gradient(model, loss, layout, vector, inputs, targets)
        if clip.per is ClipPer.BATCH:
            return pool_gradients(mean[None], groups[:1] * 0, clip)
        if bool(torch.isfinite(mean).all()):
            return Pooled(mean * len(inputs), 0)
        # Otherwise find the items at fault, one by one.
    gradients = item_gradients(model, loss, layout, vector, inputs, targets)
    return pool_gradients(gradients, groups, clip)


def item_gradients(
    model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Each item's gradient [item, parameter]."""

    def item_loss(parameters: Tensor, item: Tensor, target: Tensor) -> Tensor:
        return loss(call(model, layout, parameters, item[None].clone()), target[None])

    chunk = max(1, MOST_VALUES // max(1, layout.size))
    with quietly():
        many = vmap(grad(item_loss), in_dims=(None, 0, 0), chunk_size=chunk)
        gradients: Tensor = many(vector.detach(), inputs, targets)
    return gradients


@contextmanager
def quietly() -> Iterator[None]:
    """Vmap warns of every operation that it has no rule for; whoever chose it knows that it is slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield
