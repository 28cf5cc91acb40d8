"""nn.Embedding: a table whose rows are looked up."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from wholegrain.clipping.bookkeeping import Lengths, Rows
from wholegrain.clipping.clip_units import UnitRange, UnitRun, Units
from wholegrain.clipping.layers.base import Gradients, ModuleSlots, Needed, Outward, RuleError, Space
from wholegrain.clipping.parameter_sums import ParameterSums
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rounding import squared_norms
from wholegrain.data.subjects import rank_within

# Up to so many values, the gradients of all units are scattered into tables of their own.
SMALL_TABLE = 1 << 14


class EmbeddingLayer:
    """y = table[tokens]."""

    def __init__(self, module: nn.Embedding, owned: ModuleSlots) -> None:
        if module.max_norm is not None:
            raise RuleError("it changes its table while it is used (max_norm)")
        if module.scale_grad_by_freq:
            raise RuleError("it scales gradients by the batch's frequencies (scale_grad_by_freq)")
        owned.require("weight")
        self._table: Callable[[], Tensor] = lambda: module.weight.data
        self._slot, self.padding = owned.slot("weight"), module.padding_idx

    @staticmethod
    def of_table(table: Callable[[], Tensor], slot: Slot, padding: int | None) -> "EmbeddingLayer":
        """The rule for a table that is no module of its own."""
        layer = EmbeddingLayer.__new__(EmbeddingLayer)
        layer._table, layer._slot, layer.padding = table, slot, padding
        return layer

    def table(self) -> tuple[Tensor, Slot, int | None]:
        """The table, its slot, and the row that is not trained."""
        assert self._slot is not None
        return self._table(), self._slot, self.padding

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """Look up."""
        (tokens,) = inputs
        if tokens.dim() < 1 or len(tokens) % space.items:
            raise RuleError(f"its input has shape {list(tokens.shape)} for {space.items} items")
        flat = tokens.reshape(-1)
        table = self._table()
        out = space.take("y", (len(flat), table.shape[1]), table)
        torch.index_select(table, 0, flat, out=out)
        return out.view(*tokens.shape, -1), tokens

    def backward(self, space: Space, saved: Tensor, outward: Outward, needed: Needed) -> Gradients:
        """Tokens have no gradient; the table's share is a scatter."""
        (g,) = outward
        if g is None or self._slot is None:
            return (None,), ()
        tokens, g = saved.reshape(space.items, -1), g.reshape(space.items, -1, g.shape[-1])
        if self.padding is not None:
            g = g * (tokens != self.padding)[..., None]
        share = EmbeddingShare(self._slot, tokens, g, len(self._table()))
        if self._table().numel() > SMALL_TABLE:
            return (None,), (share,)
        return (None,), (Rows([(self._slot, share.tables(space.units))]),)


class LookedUp(NamedTuple):
    """Gradients of all rows that some units looked up, by unit and then by row of the table."""

    units: Tensor  # [k]
    places: Tensor  # [k], in the table
    rows: Tensor  # [k, value]

    def part(self, units: slice) -> "LookedUp":
        """Of neighbouring units."""
        start, stop = torch.searchsorted(self.units, torch.tensor([units.start, units.stop])).tolist()
        return LookedUp(*(each[start:stop] for each in self))


class EmbeddingShare:
    """Gradients of the rows that each unit looked up: for tables too large to have one for each unit."""

    def __init__(self, slot: Slot, tokens: Tensor, outward: Tensor, rows: int) -> None:
        self._slot, self._tokens, self._outward, self._rows = slot, tokens, outward, rows
        self._formed: LookedUp | None = None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The table."""
        return (self._slot,)

    def lengths(self, units: Units) -> Lengths:
        """Of the rows that are summed: those of one token are added up first, so that nothing cancels in a norm."""
        formed = self._form(units)
        squares = squared_norms(formed.rows).double()
        pooled = squares.new_zeros(units.count).index_add_(0, formed.units, squares)
        return Lengths(pooled.to(self._outward.dtype))

    def _form(self, units: Units) -> LookedUp:
        """Position after position, in each unit's own order: nobody else's tokens decide how a row is rounded."""
        if self._formed is None:
            width = self._outward.shape[-1]
            keys = (units.of_item[:, None] * self._rows + self._tokens).reshape(-1)
            found, where = torch.unique(keys, return_inverse=True)
            rows = self._outward.new_zeros(found.shape[0], width)
            rows.index_add_(0, where, self._outward.reshape(-1, width))
            self._formed = LookedUp(found // self._rows, found % self._rows, rows)
        return self._formed

    def apart(self, units: Units) -> Tensor:
        """What is formed is one part."""
        return self.lengths(units).squared

    def terms(self, units: Units, size: int) -> int:
        """One row for each unit and token."""
        return 1

    def rows(self) -> Iterator[Tensor]:
        """The gradients at all positions."""
        yield self._outward

    def hand_over(self, run: UnitRun) -> Iterator[Tensor]:
        """The looked-up rows of each unit of a run, one below the other."""
        if self._formed is not None:
            formed = self._formed.part(run.units)
            kept = formed.rows.new_zeros(run.units.stop, run.size * self._tokens.shape[1], formed.rows.shape[1])
            if len(formed.units):
                kept[formed.units, torch.from_numpy(rank_within(formed.units.numpy()))] = formed.rows
            yield kept[run.units]

    def gradients(self, units: Units, run: UnitRun, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """Tables of some units of a run."""
        items = slice(run.items.start + chosen.start * run.size, run.items.start + chosen.stop * run.size)
        some = EmbeddingShare(self._slot, self._tokens[items], self._outward[items], self._rows)
        count = chosen.stop - chosen.start
        yield self._slot, some.tables(Units.of_sizes(np.full(count, run.size)))

    def add(self, units: Units, part: UnitRange, weights: Tensor, sums: ParameterSums) -> None:
        """One scatter into the table."""
        formed = self._form(units)
        formed = formed if part is units.whole else formed.part(part.units)
        sums.add_at(self._slot, formed.places, formed.rows * weights[formed.units][:, None])

    def tables(self, units: Units) -> Tensor:
        """A table for each unit [unit, row, value]."""
        places = (units.of_item[:, None] * self._rows + self._tokens).reshape(-1)
        width = self._outward.shape[-1]
        tables = self._outward.new_zeros(units.count * self._rows, width)
        return tables.index_add_(0, places, self._outward.reshape(-1, width)).view(units.count, self._rows, width)
