"""Parameters of a module that has no rule: each item's gradient by vmap over that module alone."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from wholegrain.clipping.bookkeeping import Rows
from wholegrain.clipping.layers.base import Gradients, Layer, ModuleSlots, Needed, Outward, RuleError, Space
from wholegrain.clipping.parameters import parameter_places
from wholegrain.clipping.vmap_gradients import silence_vmap


class TapHost(Protocol):
    """What a tap needs of the program around it."""

    def apply(self, layer: Layer, *inputs: Tensor) -> Any:
        """One use of a layer."""
        ...

    def axes(self, tensors: list[Tensor]) -> tuple[int | None, ...]:
        """Along which dimension each tensor counts items; None for those that do not."""
        ...


class Tap:
    """Sits at a module's outputs: it lets values and gradients through, and keeps what the module was given.

    Only the module's own parameters are its business; those of modules inside it have taps or rules of their own.
    """

    def __init__(self, module: nn.Module, owned: ModuleSlots, shadow: nn.Module, recording: TapHost) -> None:
        self._module, self._owned, self._shadow, self._recording = module, owned, shadow, recording

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The module's forward, tapped."""

        def run_tapped(*args: Any, **kwargs: Any) -> Any:
            outputs = forward(*args, **kwargs)
            leaves, shape = tree_flatten(outputs)
            where = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            given = tree_flatten((args, kwargs))[0]
            axes = iter(self._recording.axes([leaf for leaf in given if isinstance(leaf, Tensor)]))
            batched = [isinstance(leaf, Tensor) and next(axes) == 0 for leaf in given]
            use = _TapUse(self, args, kwargs, where, batched)
            through = self._recording.apply(use, *(leaves[k] for k in where))
            for k, leaf in zip(where, through if isinstance(through, tuple) else (through,), strict=True):
                leaves[k] = leaf
            return tree_unflatten(leaves, shape)

        return run_tapped

    def gradients(self, use: "_TapUse", outward: tuple[Tensor | None, ...], items: int) -> dict[str, Tensor]:
        """Each item's gradient [item, ...] of the own parameters."""
        leaves, shape = tree_flatten((use.args, use.kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        batched = use.batched
        if any(varies and len(leaf) != items for varies, leaf in zip(batched, leaves, strict=True)):
            raise RuleError("its inputs do not have the items in their first dimension")
        given = [leaf for leaf, varies in zip(leaves, batched, strict=True) if varies]
        if any(g is not None and len(g) != items for g in outward):
            raise RuleError("its output does not have the items in its first dimension")
        values = {name: p.detach() for name, p in parameter_places(self._shadow).items()}
        own = {name: values[name] for name in self._owned.slots}

        def agreement(parameters: dict[str, Tensor], inputs: list[Tensor], ends: list[Tensor | None]) -> Tensor:
            singles = iter(inputs)
            args, kwargs = tree_unflatten(
                [next(singles)[None] if varies else leaf for leaf, varies in zip(leaves, batched, strict=True)], shape
            )
            result = functional_call(self._module, values | parameters, args, kwargs, tie_weights=False)
            outputs = tree_flatten(result)[0]
            pairs = zip((outputs[k] for k in use.where), ends, strict=True)
            return torch.stack([(y[0] * g).sum() for y, g in pairs if g is not None]).sum()

        dims = (None, [0] * len(given), [None if g is None else 0 for g in outward])
        with silence_vmap():
            formed: dict[str, Tensor] = vmap(grad(agreement), in_dims=dims)(own, given, list(outward))
        return formed


class _TapUse:
    """One call of a tapped module, as a layer that changes nothing."""

    def __init__(self, tap: Tap, args: Any, kwargs: Any, where: list[int], batched: list[bool]) -> None:
        self._tap, self.args, self.kwargs, self.where, self.batched = tap, args, kwargs, where, batched

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Any, Any]:
        """The outputs as they are."""
        return (inputs if len(inputs) > 1 else inputs[0]), None

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """The gradients as they are, and the rows of the own parameters."""
        with torch.enable_grad():
            formed = self._tap.gradients(self, outward, space.items)
        slots = self._tap._owned.slots
        return outward, (Rows([(slots[name], space.units.pool(rows)) for name, rows in formed.items()]),)
