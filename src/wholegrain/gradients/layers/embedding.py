"""nn.Embedding: a table whose rows are looked up."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wholegrain.gradients.bookkeeping import Lengths, Rows, chunks, distrust_lost, join_runs
from wholegrain.gradients.clip_units import UnitRange, UnitRun, Units
from wholegrain.gradients.layers.base import Gradients, ModuleSlots, Needed, Outward, RuleError, Space
from wholegrain.gradients.parameter_sums import ParameterSums
from wholegrain.gradients.parameters import Slot
from wholegrain.gradients.rounding import LEAST, rounding_bound, squared_norms

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


class EmbeddingShare:
    """Gradients at looked-up rows, kept by token: for tables too large to have one for each unit."""

    def __init__(self, slot: Slot, tokens: Tensor, outward: Tensor, rows: int) -> None:
        self._slot, self._tokens, self._outward, self._rows = slot, tokens, outward, rows

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The table."""
        return (self._slot,)

    def lengths(self, units: Units) -> Lengths:
        """Σ over pairs of positions with the same token of g_t·g_s."""
        apart = self.apart(units)
        return join_runs([self._lengths_of(run, apart[run.units]) for run in units.runs])

    def _lengths_of(self, run: UnitRun, apart: Tensor) -> Lengths:
        """What is trusted depends on the size of these units, and not on who else is in the batch."""
        positions, kind = self._positions(run.size), self._outward.dtype
        off = rounding_bound(self._outward.shape[-1] + 3, kind)  # of a product of two positions, and its end
        return distrust_lost(self._squares_of(run), apart, off, rounding_bound(positions, kind))

    def _squares_of(self, run: UnitRun) -> Tensor:
        positions = self._positions(run.size)
        tokens = self._tokens[run.items].reshape(run.count, positions)
        g = self._outward[run.items].reshape(run.count, positions, -1)
        parts = []
        for chosen in chunks(run.count, positions * positions):
            same = tokens[chosen][:, :, None] == tokens[chosen][:, None]
            products = torch.bmm(g[chosen], g[chosen].transpose(1, 2)) * same
            # In double precision: positions that pull against each other leave a small difference.
            parts.append(products.sum((1, 2), dtype=torch.float64).add_(LEAST * positions * g.shape[2]))
        return torch.cat(parts).to(g.dtype)

    def apart(self, units: Units) -> Tensor:
        """A part for each position."""
        each = squared_norms(self._outward).sqrt_().sum(1)  # [item]
        return units.pool(each).square()

    def terms(self, units: Units, size: int) -> int:
        """A row of the table may be looked up at every position."""
        return self._positions(size)

    def _positions(self, size: int) -> int:
        return size * self._tokens.shape[1]

    def rows(self) -> Iterator[Tensor]:
        """The gradients at all positions."""
        yield self._outward

    def kept_gradients(self, run: UnitRun) -> Iterator[Tensor]:
        """None."""
        yield from ()

    def gradients(self, units: Units, run: UnitRun, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """Tables of some units of a run."""
        items = slice(run.items.start + chosen.start * run.size, run.items.start + chosen.stop * run.size)
        some = EmbeddingShare(self._slot, self._tokens[items], self._outward[items], self._rows)
        count = chosen.stop - chosen.start
        yield self._slot, some.tables(Units.of_sizes(np.full(count, run.size)))

    def add(self, units: Units, part: UnitRange, weights: Tensor, sums: ParameterSums) -> None:
        """One scatter into the table."""
        weighted = self._outward[part.items] * units.spread(weights)[part.items][:, None, None]
        sums.add_at(self._slot, self._tokens[part.items].reshape(-1), weighted.flatten(0, 1))

    def tables(self, units: Units) -> Tensor:
        """A table for each unit [unit, row, value]."""
        places = (units.of_item[:, None] * self._rows + self._tokens).reshape(-1)
        width = self._outward.shape[-1]
        tables = self._outward.new_zeros(units.count * self._rows, width)
        return tables.index_add_(0, places, self._outward.reshape(-1, width)).view(units.count, self._rows, width)
