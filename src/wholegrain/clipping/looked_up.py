"""Gradients of a table whose rows are looked up: for tables too large to have one for each unit."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Lengths
from wholegrain.clipping.clip_units import UnitRange, UnitRun, Units
from wholegrain.clipping.parameter_sums import ParameterSums
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rounding import squared_norms
from wholegrain.data.subjects import rank_within


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
