"""The gradient of each item's own loss with respect to its outputs."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from wholegrain.clipping.reference import Loss
from wholegrain.clipping.vmap_gradients import silence_vmap
from wholegrain.errors import ModelError

FEW_CLASSES = 8


def _softmax(outputs: Tensor) -> Tensor:
    """Of every row [item, class]. Where rows are short, the logarithm is twice as fast."""
    return outputs.softmax(1) if outputs.shape[1] > FEW_CLASSES else outputs.log_softmax(1).exp_()


@lru_cache(maxsize=64)
def _minus_ones(items: int, kind: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((items, 1), -1.0, dtype=kind, device=device)


def outward_gradient(loss: Loss, outputs: Tensor, targets: Tensor, items: int) -> Tensor:
    """Gradient of each item's own loss with respect to its outputs."""
    if loss is cross_entropy and outputs.dim() == 2 and targets.dtype is torch.int64:
        gradient = _softmax(outputs)
        return gradient.scatter_add_(1, targets[:, None], _minus_ones(targets.shape[0], outputs.dtype, outputs.device))
    if outputs.shape[0] != items or targets.shape[0] != items:
        raise ModelError("The model's outputs, or its targets, do not have an item in each row.")

    # One item at a time, and not the batch's mean: with class weights or ignored targets that is another mean, in which
    # one item changes the weight of the others.
    def own(output: Tensor, target: Tensor) -> Tensor:
        return loss(output[None], target[None])

    # On ordinary tensors: those of inference have no history.
    with torch.inference_mode(False), torch.enable_grad(), silence_vmap():
        gradients: Tensor = vmap(grad(own))(outputs.clone().detach(), targets.clone())
    return gradients
