"""The clipped sum from per-item gradients by `torch.func.vmap`: a second reference beside the one item by item."""

import torch
from torch import Tensor, nn

from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, pool_gradients
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import Loss, batch_gradient
from wholegrain.clipping.vmap_gradients import item_gradients


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
    """Pool by vmap; where nothing is clipped within the batch, by one ordinary backward pass."""
    layout = Layout.of(model)
    if len(inputs) == 0:
        return ClippedTotal(vector.new_zeros(layout.size), 0)
    if clip.per in (ClipPer.NONE, ClipPer.BATCH):
        mean = batch_gradient(model, loss, layout, vector, inputs, targets)
        if clip.per is ClipPer.BATCH:
            return pool_gradients(mean[None], groups[:1] * 0, clip)
        if bool(torch.isfinite(mean).all()):
            return ClippedTotal(mean * len(inputs), 0)
        # Otherwise find the items at fault, one by one.
    gradients = item_gradients(model, loss, layout, vector, inputs, targets)
    return pool_gradients(gradients, groups, clip)
