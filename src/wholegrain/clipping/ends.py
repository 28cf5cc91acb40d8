"""Ends: where rows are added up into a parameter's gradient. One rule for each operation that does so.

A rule takes the operands of an end, and gives what is needed of each unit's part: its length, and its weighted sum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.convolution import form_convolution
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.looked_up import EmbeddingShare
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rows import End, Place, Proof

SMALL_TABLE = 1 << 14
"""Up to so many values, the gradients of all units are scattered into tables of their own."""


@dataclass(frozen=True, eq=False)
class EndUse:
    """An end in a pass: the tensors it was given, and the slots of its results that are wanted, by their place."""

    end: End
    places: Mapping[int, Place | None]
    values: Mapping[int, Tensor]
    rows: int
    units: Units
    slots: Mapping[int, Slot]
    shapes: Mapping[int, tuple[int, ...]]
    """Of the results, by their place."""
    kinds: Mapping[int, torch.dtype]
    """Of the results' numbers: what is measured and added up has their precision, not that of what it is made of."""

    @cached_property
    def _names(self) -> dict[str, Any]:
        schema = self.end.op.target._schema.arguments
        given = dict(zip((each.name for each in schema), self.end.op.args, strict=False))
        usual = {each.name: each.default_value for each in schema if each.has_default_value()}
        return usual | given | self.end.op.kwargs

    def get(self, name: str) -> Any:
        """An argument that some overloads of the operation do not have."""
        return self[name] if name in self._names else None

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in the operation's schema."""
        return self._resolve(self._names[name])

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._resolve(each) for each in value]
        return self.values[value.number] if hasattr(value, "number") else value

    def place(self, name: str) -> Place | None:
        """Where the rows of an argument lie."""
        return self.places[self._names[name].number]

    def by_row(self, name: str) -> Tensor:
        """An argument with rows as its first dimension [row, …]; what stands beside them in their dimension is next."""
        return rows_first(self[name], self.place(name), self.rows)

    def pooled(self, formed: Mapping[int, Tensor]) -> Share:
        """Gradients of each row [row, …], by the place of the result, as rows of units."""
        wanted = [(out, rows.to(self.kinds[out])) for out, rows in formed.items() if out in self.slots]
        return Rows([(self.slots[out], self.units.pool(rows)) for out, rows in wanted])


Rule = Callable[[EndUse], Share]


def rows_first(value: Tensor, place: Place | None, rows: int) -> Tensor:
    """[row, outer · inner, …] of a value with outer · row · inner along one dimension; [row, …] where that is rows."""
    assert place is not None, "an end adds up rows"
    if place.outer == place.inner == 1:
        return value.movedim(place.dim, 0)
    shape = value.shape
    split = value.reshape(*shape[: place.dim], place.outer, rows, place.inner, *shape[place.dim + 1 :])
    return split.movedim(place.dim + 1, 0).flatten(place.dim + 1, place.dim + 2)


def positions(matrix: Tensor, place: Place | None, rows: int) -> tuple[Tensor, bool]:
    """A matrix [outer · row · inner, value] as [row, position, value], or [position, row, value] and True."""
    assert place is not None, "an end adds up rows"
    if place.outer == 1:
        return (matrix if place.inner == 1 else matrix.view(rows, place.inner, -1)), False
    if place.inner == 1:
        return matrix.view(place.outer, rows, -1), True
    return rows_first(matrix, place, rows), False


def form_products(use: EndUse) -> Share:
    """Σ over rows of several matrices at once: each row's are formed."""
    left, right = use["self"], use["mat2"]  # [k, a, row], [k, row, b]
    place = use.place("mat2")
    ours = rows_first(left.mT, place, use.rows)  # rows are dimension 1 of both
    theirs = rows_first(right, place, use.rows)
    if place is not None and place.outer == place.inner == 1:
        formed = ours[..., :, None] * theirs[..., None, :]
    else:  # [row, k, position, …]
        formed = torch.matmul(ours.mT, theirs)
    return use.pooled({0: formed})


def form_sum(use: EndUse) -> Share:
    """A sum over rows, and over other dimensions."""
    value, place = use["self"], use.place("self")
    assert place is not None
    named = use.get("dim")  # None for the sum over all, which a parameter without dimensions has
    dims = [dim % value.dim() for dim in (named or range(value.dim()))]
    rows = rows_first(value, place, use.rows)
    joined = place.outer * place.inner > 1
    left = [dim for dim in range(value.dim()) if dim != place.dim]  # what follows the rows, in order
    summed = [1 + joined + left.index(dim) for dim in dims if dim != place.dim] + ([1] if joined else [])
    formed = rows.sum(summed) if summed else rows
    return use.pooled({0: formed.reshape(use.rows, *use.shapes[0])})


def form_layer_norm(use: EndUse) -> Share:
    """Weight and bias of a layer norm: summed over all positions of a row."""
    g, x = use.by_row("grad_out"), use.by_row("input")
    mean, scale = use.by_row("mean"), use.by_row("rstd")
    last = len(use["normalized_shape"])
    summed = list(range(1, g.dim() - last))
    formed = {}
    if 1 in use.slots:
        normal = g * ((x - mean) * scale)
        formed[1] = normal.sum(summed) if summed else normal
    if 2 in use.slots:
        formed[2] = g.sum(summed) if summed else g
    return use.pooled(formed)


def form_group_norm(use: EndUse) -> Share:
    """Weight and bias of a group norm: summed over all places of a channel."""
    rows, channels, groups = use.rows, use["C"], use["group"]
    g = use["grad_out"].reshape(rows, channels, -1)
    formed = {}
    if 1 in use.slots:
        x = use["input"].reshape(rows, groups, -1)
        normal = (x - use["mean"].reshape(rows, groups, 1)) * use["rstd"].reshape(rows, groups, 1)
        formed[1] = (g * normal.view(g.shape)).sum(2)
    if 2 in use.slots:
        formed[2] = g.sum(2)
    return use.pooled(formed)


def form_batch_norm(use: EndUse) -> Share:
    """Weight and bias of a batch norm that uses statistics it was given."""
    g, x = (use[name].reshape(*use[name].shape[:2], -1) for name in ("grad_out", "input"))
    formed = {}
    if 1 in use.slots:
        scale = (use["running_var"] + use["eps"]).rsqrt()
        formed[1] = (g * (x - use["running_mean"][:, None]) * scale[:, None]).sum(2)
    if 2 in use.slots:
        formed[2] = g.sum(2)
    return use.pooled(formed)


def form_table(use: EndUse) -> Share:
    """Rows of a table that were looked up."""
    tokens, g = use.by_row("indices").reshape(use.rows, -1), use.by_row("grad_output")
    g = g.reshape(use.rows, tokens.shape[1], -1)
    if use["padding_idx"] >= 0:
        g = g * (tokens != use["padding_idx"])[..., None]
    return look_up(use, tokens, g, use["num_weights"])


def look_up(use: EndUse, tokens: Tensor, g: Tensor, size: int) -> Share:
    """Gradients [row, position, value] of a table of this size, at these of its rows [row, position]."""
    share = EmbeddingShare(use.slots[0], tokens, g, size)
    if size * g.shape[-1] > SMALL_TABLE:
        return share
    return Rows([(use.slots[0], share.tables(use.units))])


def form_put(use: EndUse) -> Share:
    """Values that were put where indices say."""
    indices, target = use["indices"], use["self"]
    values = use.by_row("values")
    if indices[0] is not None and all(each is None for each in indices[1:]):
        tokens = indices[0].expand(use.rows, *indices[0].shape[1:]).reshape(use.rows, -1)
        size = target.shape[0]
        return look_up(use, torch.where(tokens < 0, tokens + size, tokens), values.reshape(*tokens.shape, -1), size)
    row = torch.arange(use.rows).view(-1, *(1,) * (max(each.dim() for each in indices if each is not None) - 1))
    formed = values.new_zeros(use.rows, *target.shape)
    return use.pooled({0: formed.index_put_((row, *indices), values, accumulate=True)})


RULES: dict[str, Rule] = {
    "products": form_products,
    "sum": form_sum,
    "convolution": form_convolution,
    "layer norm": form_layer_norm,
    "group norm": form_group_norm,
    "batch norm": form_batch_norm,
    "table": form_table,
    "put": form_put,
}
"""By the names that the proof gives to ends; a plain product of two matrices is in `flows`."""


def places_of(proof: Proof, end: End) -> dict[int, Place | None]:
    """Where the rows of an end's operands lie."""
    found = {number: proof.where.get(number) for number in end.op.inputs}
    return {number: place if isinstance(place, Place) else None for number, place in found.items()}


__all__ = ["RULES", "EndUse", "Outer", "places_of", "positions"]
