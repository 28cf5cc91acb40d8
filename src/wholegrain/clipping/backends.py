"""What the backends of the engine have in common: a model that runs forward and backward over the rules of its layers.

There are two. `chain_backend` runs a plain sequence of layers without autograd, on which small models spend most of
their time; `graph_backend` runs any module.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.layers.base import ModuleSlots, RuleError
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.vmap_gradients import silence_vmap


class Program(Protocol):
    """A model that runs forward and backward."""

    @property
    def mode(self) -> Callable[[], AbstractContextManager[Any]]:
        """What the program and its shares are to be run in."""
        ...

    def run(self, loss: Loss, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """The shares of every layer, for the gradients of each item's own loss."""
        ...


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
        raise RuleError("its outputs or targets do not have an item in each row")

    # One item at a time, and not the batch's mean: with class weights or ignored targets that is another mean, in which
    # one item changes the weight of the others.
    def own(output: Tensor, target: Tensor) -> Tensor:
        return loss(output[None], target[None])

    # On ordinary tensors: those of inference have no history.
    with torch.inference_mode(False), torch.enable_grad(), silence_vmap():
        gradients: Tensor = vmap(grad(own))(outputs.clone().detach(), targets.clone())
    return gradients


class Slots:
    """Where each trainable parameter of a model lies in its vector; a shared parameter has one slot."""

    def __init__(self, model: nn.Module) -> None:
        self._by_parameter = {id(p): Slot(name) for name, p in model.named_parameters() if p.requires_grad}

    def of_module(self, module: nn.Module, recurse: bool = True) -> ModuleSlots:
        """The trainable parameters of a module."""
        parameters = module.named_parameters(recurse=recurse, remove_duplicate=False)
        return ModuleSlots({name: self._by_parameter[id(p)] for name, p in parameters if id(p) in self._by_parameter})
