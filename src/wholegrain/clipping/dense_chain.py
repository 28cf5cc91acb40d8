"""The whole clipped sum of a small dense model in one function: the operations of the rules, and nothing between them.

A step of such a model takes a fraction of a millisecond, more than half of which went into the objects that rules need
to work together. Rows and norms are the same to the last bit, so that all that was tried of the rules holds here, too
(`tests/clipping/test_dense_chain.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from wholegrain.clipping.backends import Program, outward_gradient
from wholegrain.clipping.chain_backend import Chain
from wholegrain.clipping.clipping import Clip, ClipPer
from wholegrain.clipping.ghost_norms import SMALL
from wholegrain.clipping.layers.activations import InPlace, Reshape
from wholegrain.clipping.layers.linear import LinearLayer
from wholegrain.clipping.parameters import Layout, Slot, Views
from wholegrain.clipping.piece_gradients import compute_weights, pad_weights
from wholegrain.clipping.pieces import Piece, fill_up
from wholegrain.clipping.pooled_rows import Product, pool_products
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.rounding import SUM, all_finite, raised_product, raised_squares, squared_norms
from wholegrain.clipping.sum_groups import most_units
from wholegrain.clipping.workspace import Lease, Workspace


class Dense(NamedTuple):
    """A linear layer, and the function before it, which the first layer has none of."""

    before: InPlace | None
    weight: Slot
    bias: Slot


class Pair(NamedTuple):
    """A layer's parameters, or the sums of their gradients."""

    weight: Tensor
    bias: Tensor


def find_layers(chain: Chain, layout: Layout) -> list[Dense] | None:
    """The layers of a chain that is nothing but dense layers, all of them trained, in the vector's order."""
    first, links = chain.links[0], chain.links
    if isinstance(first, Reshape) and first.lays_out_rows:
        links = links[1:]
    layers, before = list[Dense](), None
    for link in links:
        if isinstance(link, InPlace):
            before = link
            continue
        slots = link.trained() if isinstance(link, LinearLayer) else None
        if slots is None or (before is None) != (not layers):
            return None
        layers.append(Dense(before, *slots))
        before = None
    in_order = tuple(slot.name for layer in layers for slot in (layer.weight, layer.bias)) == layout.names
    return layers if layers and before is None and in_order else None


class DenseChain:
    """Linear layers with functions between them, of so few parameters that time goes into calls."""

    def __init__(self, layers: Sequence[Dense], layout: Layout) -> None:
        self._layers, self._layout = layers, layout
        self._workspace = Workspace()
        self._small = layout.size <= SMALL
        self._place: int | None = None
        self._parameters: list[Pair] = []

    @staticmethod
    def of(program: Program, loss: Loss, layout: Layout) -> "DenseChain | None":
        """The same model, or None where it is more than dense layers or where its rows need special care."""
        if not isinstance(program, Chain) or program.workspace.aligned or loss is not cross_entropy:
            return None
        layers = find_layers(program, layout)
        return None if layers is None else DenseChain(layers, layout)

    def covers(self, batch: Piece, clip: Clip) -> bool:
        """Whether it knows how to sum up such a batch."""
        return batch.inputs.dim() == 2 and (clip.per is ClipPer.ITEM or (clip.per is ClipPer.SUBJECT and self._small))

    def sum_up(self, vector: Tensor, batch: Piece, clip: Clip, size: int, total: Views, wide: Lease) -> Tensor | None:
        """The clipped sum of a batch, filled up to a size; None where a norm is not certain.

        It is written into `total`, or added up in double precision in as few parts as rounding allows
        (docs/arithmetic.md).
        """
        units = batch.units.pad(size - batch.inputs.shape[0])
        inputs, targets = fill_up(batch, size)
        layers = self._attach(vector)
        rows = self._forward(layers, inputs)
        outward = outward_gradient(cross_entropy, rows.pop(), targets, size)
        products = self._backward(layers, rows, outward)
        # Side by side in the vector's order, so that one product serves all of them.
        pooled = None if units.sizes is None else pool_products(products[::-1], units, self._workspace)
        squared = _squared_norms(products) if pooled is None else squared_norms(pooled)
        if not all_finite(squared):
            return None
        weights = pad_weights(compute_weights(squared, batch, clip), units)
        count = batch.units.count
        most = max(1, most_units(1, count * clip.norm, SUM * clip.norm, vector.dtype))
        if count <= most:
            return self._write(products, pooled, weights, total)
        added = wide.take(vector.numel(), torch.float64).zero_()
        for start in range(0, count, most):
            part = slice(start, min(count, start + most))
            some = [(g[part], x[part]) for g, x in products] if pooled is None else products
            added.add_(self._write(some, None if pooled is None else pooled[part], weights[part], total))
        return added

    def _write(self, products: Sequence[Product], pooled: Tensor | None, weights: Tensor, total: Views) -> Tensor:
        if pooled is not None:
            return total.vector.addmv_(pooled.t(), weights, beta=0)
        _write_products(products, weights, self._pairs(total)[::-1])
        return total.vector

    def _attach(self, vector: Tensor) -> list[Pair]:
        # What was attached stays in memory, so that no other vector can come to lie at its place.
        if vector.data_ptr() != self._place or not vector.is_contiguous():
            self._place = vector.data_ptr() if vector.is_contiguous() else None
            self._parameters = self._pairs(Views.of(self._layout, vector))
        return self._parameters

    def _pairs(self, values: Views) -> list[Pair]:
        views = values.views
        return [Pair(views[layer.weight.name], views[layer.bias.name]) for layer in self._layers]

    def _forward(self, layers: list[Pair], inputs: Tensor) -> list[Tensor]:
        """The inputs of all layers, and the last one's output."""
        rows, items, take = [inputs], inputs.shape[0], self._workspace.take
        for k, (layer, (weight, bias)) in enumerate(zip(self._layers, layers, strict=True)):
            if layer.before is not None:
                layer.before.compute(rows[-1])
            out = take(k, (items, weight.shape[0]), inputs)
            rows.append(torch.addmm(bias, rows[-1], weight.t(), out=out))
        return rows

    def _backward(self, layers: list[Pair], rows: list[Tensor], g: Tensor) -> list[Product]:
        """The gradient of each layer's output with its input, the last layer first."""
        products = []
        for k in range(len(layers) - 1, -1, -1):
            products.append((g, rows[k]))
            before = self._layers[k].before
            if before is not None:
                weight = layers[k].weight
                g = torch.mm(g, weight, out=self._workspace.take(~k, rows[k].shape, g))
                before.reverse(g, rows[k])
        return products


def _squared_norms(products: Sequence[Product]) -> Tensor:
    """Of each item: ‖g‖²·(‖x‖² + 1), from all layers."""
    own = [raised_product(raised_squares(g), raised_squares(x, 1.0)) for g, x in products]
    return sum(own[1:], own[0])


def _write_products(products: Sequence[Product], weights: Tensor, sums: Sequence[Pair]) -> None:
    """Σ_i w_i·g_i ⊗ x_i; the narrower factor is weighted."""
    column = weights[:, None]
    for (g, x), (weight, bias) in zip(products, sums, strict=True):
        if x.shape[1] < g.shape[1]:
            weight.addmm_(g.t(), x * column, beta=0)
        else:
            weight.addmm_((g * column).t(), x, beta=0)
        bias.addmv_(g.t(), weights, beta=0)
