"""nn.MultiheadAttention: linear maps around scaled dot products, which have no parameters and stay with autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from wholegrain.clipping.layers.base import ModuleSlots, RuleError
from wholegrain.clipping.layers.linear import LinearLayer
from wholegrain.clipping.parameters import Slot

Apply = Callable[..., Any]


class Attention:
    """What the module's own forward computes, with its linear maps as rules."""

    def __init__(self, module: nn.MultiheadAttention, owned: ModuleSlots) -> None:
        if module.bias_k is not None or module.add_zero_attn:
            raise RuleError("it adds keys of its own (add_bias_kv, add_zero_attn)")
        if not module._qkv_same_embed_dim:
            raise RuleError("its keys or values have another width (kdim, vdim)")
        owned.require("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
        self._module, self._owned = module, owned
        width = module.embed_dim
        # Query, key and value by one product where they come from one tensor, else by their parts of the matrix.
        self._maps = {
            (first, last): self._projection(slice(first * width, last * width))
            for first, last in ((0, 3), (0, 1), (1, 3), (1, 2), (2, 3))
        }
        out = module.out_proj
        self._out = LinearLayer(
            lambda: (out.weight.data, None if out.bias is None else out.bias.data),
            owned.slot("out_proj.weight"),
            owned.slot("out_proj.bias"),
        )

    def __call__(
        self,
        apply: Apply,
        items: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What the module's own forward returns; a causal hint is always given together with its mask."""
        module = self._module
        if (
            query.dim() != 3
            or query.shape[0 if module.batch_first else 1] != items
            or (is_causal and attn_mask is None)
        ):
            raise RuleError(f"its query has shape {list(query.shape)} for {items} items")
        parts = [self._heads(part) for part in self._project(apply, query, key, value)]
        mask = self._mask(attn_mask, key_padding_mask, parts[0])
        weights: Tensor | None = None
        if need_weights:
            scores = parts[0] @ parts[1].transpose(2, 3) * module.head_dim**-0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            seen = weights @ parts[2]
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            seen = scaled_dot_product_attention(parts[0], parts[1], parts[2], mask)
        out = apply(self._out, seen.transpose(1, 2).flatten(2))
        return (out if module.batch_first else out.transpose(0, 1)), weights

    def _projection(self, rows: slice) -> LinearLayer:
        module = self._module

        def values() -> tuple[Tensor, Tensor | None]:
            bias = module.in_proj_bias
            return module.in_proj_weight.data[rows], None if bias is None else bias.data[rows]

        def part(name: str) -> Slot | None:
            slot = self._owned.slot(name)
            return None if slot is None else Slot(slot.name, (rows.start, rows.stop))

        return LinearLayer(values, part("in_proj_weight"), part("in_proj_bias"))

    def _project(self, apply: Apply, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value [item, position, width], each after its map."""
        first = self._module.batch_first

        def project(which: tuple[int, int], rows: Tensor) -> tuple[Tensor, ...]:
            out: Tensor = apply(self._maps[which], rows if first else rows.transpose(0, 1))
            return out.chunk(which[1] - which[0], -1)

        if query is key and key is value:
            return project((0, 3), query)
        if key is value:
            return project((0, 1), query) + project((1, 3), key)
        return project((0, 1), query) + project((1, 2), key) + project((2, 3), value)

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self._module.num_heads, -1).transpose(1, 2)

    def _mask(self, attention: Tensor | None, padding: Tensor | None, query: Tensor) -> Tensor | None:
        """Both masks as one that is added to the scores."""
        added: Tensor | None = None
        if attention is not None:
            added = _add_optional(attention, query)
            added = added.view(len(query), -1, *added.shape[1:]) if added.dim() == 3 else added
        if padding is not None:
            ignored = _add_optional(padding, query)[:, None, None]
            added = ignored if added is None else added + ignored
        return added


def _add_optional(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
