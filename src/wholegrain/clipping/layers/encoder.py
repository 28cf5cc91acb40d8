"""nn.TransformerEncoderLayer in a plain sequence: forward and backward written out, so that it needs no autograd.

It is put together from rules: linear layers, norms, an activation, and the products of self-attention. Where a model is
more than a sequence, autograd carries the gradients between the same rules (`graph_backend`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.layers.activations import Relu
from wholegrain.clipping.layers.base import Gradients, Layer, ModuleSlots, Needed, Outward, RuleError, Space
from wholegrain.clipping.layers.linear import LinearLayer
from wholegrain.clipping.layers.normalisation import LayerNormLayer

aten = torch.ops.aten


class Steps:
    """Layers one after the other, each with buffers of its own; the output of none is needed by itself."""

    def __init__(self, *layers: Layer) -> None:
        self._layers = layers

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """Through all of them."""
        (x,) = inputs
        saved = []
        for layer, own in zip(self._layers, self._spaces(space), strict=True):
            x, keeps = layer.forward(own, x)
            space.workspace.watch(x)
            saved.append(keeps)
        return x, saved

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """And back; a first layer is asked for its input's gradient where somebody needs it."""
        (g,), shares = outward, list[Share]()
        steps = list(zip(self._layers, self._spaces(space), saved, strict=True))
        for k, (layer, own, keeps) in reversed(list(enumerate(steps))):
            (g,), new = layer.backward(own, keeps, (g,), (k > 0 or needed[0],))
            space.workspace.watch(g)
            shares.extend(new)
        return (g,), tuple(shares)

    def _spaces(self, space: Space) -> Iterator[Space]:
        for k in range(len(self._layers)):
            yield Space(space.workspace, (space.key, k), space.units, space.items)


class Residual:
    """norm(x + inner(x)), or x + inner(norm(x)) with `norm_first`; what `inner` gives is overwritten."""

    def __init__(self, inner: Steps, norm: LayerNormLayer, norm_first: bool) -> None:
        self._inner, self._norm, self._norm_first = inner, norm, norm_first

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The sum takes the place of the inner output."""
        (x,) = inputs
        if self._norm_first:
            normal, keeps = self._norm.forward(space, x)
            made, saved = self._inner.forward(space, normal)
            return made.add_(x), (keeps, saved)
        made, saved = self._inner.forward(space, x)
        y, keeps = self._norm.forward(space, made.add_(x))
        return y, (keeps, saved)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """The gradient of the sum goes both ways."""
        keeps, inner = saved
        if self._norm_first:
            (g,), shares = self._inner.backward(space, inner, outward, (True,))
            (back,), own = self._norm.backward(space, keeps, (g,), needed)
            around = outward[0]
        else:
            (around,), own = self._norm.backward(space, keeps, outward, (True,))
            (back,), shares = self._inner.backward(space, inner, (around,), needed)
        if not needed[0]:
            return (None,), (*shares, *own)
        assert back is not None
        assert around is not None
        return (back.add_(around),), (*shares, *own)


class Gelu:
    """x·Φ(x)."""

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """By the library; the input is kept."""
        (x,) = inputs
        return aten.gelu.out(x, out=space.take("gelu", tuple(x.shape), x)), x

    def backward(self, space: Space, saved: Tensor, outward: Outward, needed: Needed) -> Gradients:
        """The gradient is overwritten."""
        (g,) = outward
        return (aten.gelu_backward.grad_input(g, saved, grad_input=g),), ()


class DotProducts:
    """Self-attention between its linear maps: [item, position, 3 × width] to [item, position, width]."""

    def __init__(self, heads: int) -> None:
        self._heads = heads

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The library's, keeping what its backward pass asks for."""
        (packed,) = inputs
        parts = packed.view(*packed.shape[:2], 3, self._heads, -1).permute(2, 0, 3, 1, 4).unbind()
        seen, logs = aten._scaled_dot_product_flash_attention_for_cpu(*parts)
        return seen.transpose(1, 2).flatten(2), (parts, seen, logs)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """The three gradients side by side, as the linear map before gave its outputs."""
        parts, seen, logs = saved
        (g,) = outward
        assert g is not None
        items, heads, positions, width = seen.shape
        own = g.view(items, positions, heads, width).transpose(1, 2)
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(own, *parts, seen, logs, 0.0, False)
        packed = space.take("packed", (items, positions, 3, heads, width), g)
        torch.stack([each.transpose(1, 2) for each in found], 2, out=packed)
        return (packed.view(items, positions, -1),), ()


def encoder_layer(module: nn.TransformerEncoderLayer, owned: ModuleSlots) -> Steps:
    """The rule for a module without dropout that is given nothing but its input."""
    attention = module.self_attn
    require_own_parts(module)
    if not attention.batch_first or attention.in_proj_weight is None or attention.in_proj_weight.device.type != "cpu":
        raise RuleError("its items are not the first dimension, or it is not on the CPU")
    if any(part.p for part in (module.dropout, module.dropout1, module.dropout2)) or attention.dropout:
        raise RuleError("it has dropout")

    def values() -> tuple[Tensor, Tensor | None]:
        bias = attention.in_proj_bias
        return attention.in_proj_weight.data, None if bias is None else bias.data

    maps = owned.within("self_attn")
    attend = Steps(
        LinearLayer(values, maps.slot("in_proj_weight"), maps.slot("in_proj_bias")),
        DotProducts(attention.num_heads),
        LinearLayer.of(attention.out_proj, maps.within("out_proj")),
    )
    feed = Steps(
        LinearLayer.of(module.linear1, owned.within("linear1")),
        _activation(module.activation),
        LinearLayer.of(module.linear2, owned.within("linear2")),
    )
    norms = (LayerNormLayer(getattr(module, name), owned.within(name)) for name in ("norm1", "norm2"))
    return Steps(*(Residual(inner, norm, module.norm_first) for inner, norm in zip((attend, feed), norms, strict=True)))


def require_own_parts(module: nn.TransformerEncoderLayer) -> None:
    """Refuse a layer of which a part was replaced: it may compute something else."""
    kinds = {
        nn.MultiheadAttention: (module.self_attn,),
        nn.modules.linear.NonDynamicallyQuantizableLinear: (module.self_attn.out_proj,),
        nn.Linear: (module.linear1, module.linear2),
        nn.LayerNorm: (module.norm1, module.norm2),
        nn.Dropout: (module.dropout, module.dropout1, module.dropout2),
    }
    if any(type(part) is not kind for kind, parts in kinds.items() for part in parts):
        raise RuleError("some of its parts were replaced")
    if module.self_attn.bias_k is not None or module.self_attn.add_zero_attn:
        raise RuleError("it adds keys of its own (add_bias_kv, add_zero_attn)")


def _activation(given: Any) -> Layer:
    if given is functional.relu or type(given) is nn.ReLU:
        return Relu()
    if given is functional.gelu or (type(given) is nn.GELU and given.approximate == "none"):
        return Gelu()
    raise RuleError("its activation is neither relu nor gelu")
