"""nn.LayerNorm, nn.GroupNorm and nn.InstanceNorm without running statistics: norms within an item."""

from typing import Any

import torch
from torch import Tensor, nn

from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.layers.base import Gradients, ModuleSlots, Needed, Outward, RuleError, Space


class LayerNormLayer:
    """Normalises the last dimensions at each position of an item."""

    def __init__(self, module: nn.LayerNorm, owned: ModuleSlots) -> None:
        owned.require("weight", "bias")
        self._module, self._owned = module, owned

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The library's, keeping mean and deviation."""
        (x,) = inputs
        if x.shape[0] != space.items or x.dim() <= len(self._module.normalized_shape):
            raise RuleError(f"its input has shape {list(x.shape)} for {space.items} items")
        weight, bias = _values(self._module)
        y, mean, deviation = torch.native_layer_norm(x, self._module.normalized_shape, weight, bias, self._module.eps)
        return y, (x, mean, deviation)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """The library's gradient of the input; the parameters' rows are sums over positions."""
        (g,), (x, mean, deviation) = outward, saved
        assert g is not None
        shape = self._module.normalized_shape
        weight, bias = _values(self._module)
        gx = None
        if needed[0]:
            gx = torch.ops.aten.native_layer_norm_backward(
                g, x, shape, mean, deviation, weight, bias, [True, False, False]
            )[0]
        between = tuple(range(1, x.dim() - len(shape)))

        def normalise() -> Tensor:
            # What is summed over positions need not outlive this call; rows without positions are kept as they are.
            out = space.borrow("normal", tuple(x.shape), x) if between else None
            return torch.sub(x, mean, out=out).mul_(deviation)

        return (gx,), _rows(self._owned, space, g, normalise, between)


class GroupNormLayer:
    """Normalises groups of channels over all places of an item; an instance norm has a group for each channel."""

    def __init__(self, module: Any, owned: ModuleSlots, groups: int, channels: int) -> None:
        owned.require("weight", "bias")
        self._module, self._owned, self._groups, self._channels = module, owned, groups, channels

    @staticmethod
    def of_groups(module: nn.GroupNorm, owned: ModuleSlots) -> "GroupNormLayer":
        """The rule for a group norm."""
        return GroupNormLayer(module, owned, module.num_groups, module.num_channels)

    @staticmethod
    def of_instances(module: Any, owned: ModuleSlots) -> "GroupNormLayer":
        """The rule for an instance norm."""
        if module.track_running_stats:
            raise RuleError("it keeps running statistics")
        return GroupNormLayer(module, owned, module.num_features, module.num_features)

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The library's, keeping mean and deviation."""
        (x,) = inputs
        if x.dim() < 2 or tuple(x.shape[:2]) != (space.items, self._channels):
            raise RuleError(f"its input has shape {list(x.shape)} for {space.items} items")
        x = x.contiguous()
        weight, bias = _values(self._module)
        y, mean, deviation = torch.native_group_norm(x, weight, bias, *self._sizes(x), self._module.eps)
        return y, (x, mean, deviation)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """The library's gradient of the input; the parameters' rows are sums over places."""
        (g,), (x, mean, deviation) = outward, saved
        assert g is not None
        g = g.contiguous()
        weight, _ = _values(self._module)
        gx = None
        if needed[0]:
            gx = torch.ops.aten.native_group_norm_backward(
                g, x, mean, deviation, weight, *self._sizes(x), [True, False, False]
            )[0]

        def normalise() -> Tensor:
            apart = x.view(len(x), self._groups, -1)
            normal: Tensor = ((apart - mean[..., None]) * deviation[..., None]).view(x.shape)
            return normal

        return (gx,), _rows(self._owned, space, g, normalise, tuple(range(2, x.dim())))

    def _sizes(self, x: Tensor) -> tuple[int, int, int, int]:
        return len(x), self._channels, x[0, 0].numel(), self._groups


def _values(module: Any) -> tuple[Tensor | None, Tensor | None]:
    return tuple(None if value is None else value.data for value in (module.weight, module.bias))  # type: ignore[return-value]


def _rows(owned: ModuleSlots, space: Space, g: Tensor, normal: Any, summed: tuple[int, ...]) -> tuple[Share, ...]:
    """Σ g·x̂ for the weight and Σ g for the bias, over these dimensions; `normal` gives an x̂ to overwrite."""
    held = []
    for name, slot in owned.slots.items():
        values = normal().mul_(g) if name == "weight" else g
        rows = values.sum(summed) if summed else values
        held.append((slot, space.units.pool(rows)))
    return (Rows(held),) if held else ()
