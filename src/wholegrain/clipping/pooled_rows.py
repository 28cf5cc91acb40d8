"""Gradients of small linear layers, of all of them side by side, summed within each subject."""

from collections.abc import Sequence

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.ghost_norms import SMALL, Outer
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rounding import squared_norms
from wholegrain.clipping.workspace import Workspace

Product = tuple[Tensor, Tensor]
"""The gradient of a layer's output [item, out], and its input [item, in]: weight and bias see their product and 1."""


def pool_small_layers(shares: list[Share], units: Units, workspace: Workspace) -> list[Share]:
    """The shares of a chain of small linear layers as one, where subjects are clipped; else the shares as they are.

    One sum over items and one norm then serve all layers. The first layer, whose share was made last, comes first.
    """
    if units.sizes is None:
        return shares
    layers = [share for share in reversed(shares) if isinstance(share, Outer) and share.is_dense]
    if len(layers) < len(shares) or sum(layer.width for layer in layers) > SMALL:
        return shares
    slots = [slot for layer in layers for slot in layer.slots]
    if len(set(slots)) < len(slots):  # used twice: to be summed before it is squared
        return shares
    rows = pool_products([(layer.outward, layer.factors[0][1]) for layer in layers], units, workspace)
    held: list[tuple[Slot, Tensor]] = []
    start = 0
    for layer in layers:
        middle, stop = start + layer.width - layer.outward.shape[1], start + layer.width
        held += [(layer.factors[0][0], rows[:, start:middle]), (layer.biases[0], rows[:, middle:stop])]
        start = stop
    return [Rows(held, squares=squared_norms(rows))]


def pool_products(products: Sequence[Product], units: Units, workspace: Workspace) -> Tensor:
    """Gradients [unit, value] of all layers: of each its weight, then its bias.

    Every value is one product, or is added up item by item: nobody else's items decide how it is rounded.
    """
    first = products[0][0]
    items, width = first.shape[0], sum(g.shape[1] * (x.shape[1] + 1) for g, x in products)
    formed = workspace.take("formed", (items, width), first)
    start = 0
    for g, x in products:
        out, inner = g.shape[1], x.shape[1]
        torch.mul(g[:, :, None], x[:, None], out=formed.as_strided((items, out, inner), (width, inner, 1), start))
        start += out * inner
        formed.as_strided((items, out), (width, 1), start).copy_(g)
        start += out
    pooled = workspace.take("pooled", (units.count, width), first)
    return pooled.zero_().index_add_(0, units.of_item, formed)
