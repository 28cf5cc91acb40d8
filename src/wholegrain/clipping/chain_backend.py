"""A plain sequence of layers with rules, run forward and backward without autograd."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wholegrain.clipping.backends import Slots, outward_gradient
from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.layers import IN_SEQUENCE, LAYERS
from wholegrain.clipping.layers.activations import ByAutograd, Copy, InPlace, MaxPool, Relu, Reshape, Sigmoid, Tanh
from wholegrain.clipping.layers.base import Layer, RuleError, Space, form_early
from wholegrain.clipping.pooled_rows import pool_small_layers
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.workspace import Workspace


@dataclass(frozen=True, eq=False)
class Chain:
    """Layers one after the other, as in nn.Sequential."""

    links: tuple[Layer, ...]
    first: int
    workspace: Workspace
    once: bool = True
    """Whether no parameter is used twice; several uses are put together before anything is formed."""
    # Without autograd's own book-keeping, which small tensors spend a tenth of their time on.
    mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode

    @staticmethod
    def of(model: nn.Module, slots: Slots, workspace: Workspace) -> "Chain | None":
        """The model as a chain, or None where it is not one or a layer has no rule."""
        modules = in_sequence(model)
        if modules is None:
            return None
        try:
            links = _insert_copies([_link(module, slots) for module in _pool_first(modules)])
        except RuleError:
            return None
        first = next(k for k, link in enumerate(links) if not isinstance(link, PLAIN))
        names = [slot.name for module in modules for slot in slots.of_module(module).slots.values()]
        return Chain(tuple(links), first, workspace, len(set(names)) == len(names))

    def run(self, loss: Loss, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """Forward through all links, back to the first that has parameters."""
        workspace, items = self.workspace, inputs.shape[0]
        spaces = [Space(workspace, k, units, items) for k in range(len(self.links))]
        saved = []
        x = inputs
        for link, space in zip(self.links, spaces, strict=True):
            x, keeps = link.forward(space, x)
            saved.append(keeps)
            if workspace.watcher is not None:
                workspace.watch(x)
        shares: list[Share] = []
        g: Tensor | None = outward_gradient(loss, x, targets, inputs.shape[0])
        for k in range(len(self.links) - 1, self.first - 1, -1):
            # Popped, so that what a layer has kept is free again as soon as it was used.
            (g,), new = self.links[k].backward(spaces[k], saved.pop(), (g,), (k > self.first,))
            # Now, because what gradients are formed from is free then.
            shares.extend([form_early(share, spaces[k]) for share in new] if self.once else new)
            if workspace.watcher is not None:
                workspace.watch(g)
        return pool_small_layers(shares, units, workspace)


def in_sequence(model: nn.Module) -> list[nn.Module] | None:
    """The modules of a sequence, nested ones laid out; None where there is more to it than their order."""
    if has_hooks(model):
        return None
    if type(model) is not nn.Sequential:
        return [model] if type(model) in LAYERS else None
    modules: list[nn.Module] = []
    for child in model:
        inner = in_sequence(child) if type(child) is nn.Sequential else [child]
        if inner is None:
            return None
        modules += inner
    return [module for module in modules if type(module) is not nn.Identity]


def has_hooks(model: nn.Module) -> bool:
    """Whether something else is called before or after a module, on its way forwards or backwards."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in model.modules()
    )


def _pool_first(modules: list[nn.Module]) -> list[nn.Module]:
    """A maximum of rectified values is the rectified maximum, and there are fewer of those."""
    modules = list(modules)
    for k in range(len(modules) - 1):
        if type(modules[k]) is nn.ReLU and type(modules[k + 1]) is nn.MaxPool2d:
            modules[k], modules[k + 1] = modules[k + 1], modules[k]
    return modules


def _link(module: nn.Module, slots: Slots) -> Layer:
    rule = LAYERS.get(type(module)) or IN_SEQUENCE.get(type(module))
    if rule is not None:
        return rule(module, slots.of_module(module))
    if next(module.parameters(), None) is not None:
        raise RuleError("it has parameters and no rule")
    plain: dict[type[nn.Module], Callable[[], Layer]] = {
        nn.ReLU: Relu,
        nn.Tanh: Tanh,
        nn.Sigmoid: Sigmoid,
        nn.Flatten: lambda: Reshape(module),
        nn.Unflatten: lambda: Reshape(module),
        nn.MaxPool2d: lambda: MaxPool(module),  # type: ignore[arg-type]
    }
    return plain.get(type(module), lambda: ByAutograd(module))()


IN_PLACE = (InPlace, MaxPool)
PLAIN = (*IN_PLACE, Reshape, ByAutograd, Copy)


def _insert_copies(links: list[Layer]) -> list[Layer]:
    """Put a copy before each link that overwrites what an earlier link, or the caller, still needs."""
    spared, free = list[Layer](), False
    for link in links:
        if isinstance(link, IN_PLACE):
            if not free:
                spared.append(Copy())
            # A maximum is a new tensor that nobody needs; the others need what they wrote.
            free = isinstance(link, MaxPool)
        elif not isinstance(link, Reshape):
            free = not isinstance(link, ByAutograd)
        spared.append(link)
    return spared
