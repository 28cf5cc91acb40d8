"""The share of a matrix product: what most parameters of most models are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wholegrain.gradients.shares import Rows, Slot, chunks, unless_cancelled
from wholegrain.gradients.units import Run, Units

ALL = slice(None)
# Values of all items' gradients up to which they are simply formed: 2 MB of float32.
SMALL = 1 << 19
# Values of unit gradients that a share may keep, so that the sum need not form them again: 64 MB of float32.
MOST_KEPT = 1 << 24


@dataclass(eq=False)
class Outer:
    """Σ over positions of g ⊗ a, for one g and one or more a: a matrix product applied at each position of an item.

    `outward` [item, position, out] is the gradient of the output. Each factor is a weight's slot and its input
    [item, position, in]; `positions_first` swaps the first two dimensions of all of them. Each bias sees the input 1.
    """

    outward: Tensor
    factors: tuple[tuple[Slot, Tensor], ...]
    biases: tuple[Slot, ...]
    positions_first: bool = False
    _kept: dict[int, list[Tensor]] = field(default_factory=dict)
    _rows: Rows | None = None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Weights, then biases."""
        return (*(slot for slot, _ in self.factors), *self.biases)

    @property
    def _items(self) -> int:
        return self.outward.shape[1 if self.positions_first else 0]

    @property
    def _positions(self) -> int:
        return self.outward.shape[0 if self.positions_first else 1] if self.outward.dim() == 3 else 1

    def squares(self, units: Units) -> Tensor:
        """By the cheapest of three ways for each run of units; for small weights and many runs, by item and pooled."""
        if len(units.runs) == 1:
            return self._squares_of(units.runs[0])
        if self._items * sum(self._sizes()) <= SMALL:
            self._rows = Rows(list(self._pooled(units)))
            return self._rows.squares(units)
        return torch.cat([self._squares_of(run) for run in units.runs])

    def gradients(self, units: Units, run: Run, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """Formed by a product for each unit."""
        outward = self._of(self.outward, run)[chosen]
        for slot, inward in self.factors:
            yield slot, torch.bmm(outward.transpose(1, 2), self._of(inward, run)[chosen])
        for slot in self.biases:
            yield slot, outward.sum(1)

    def add(self, units: Units, weights: Tensor, views: Mapping[str, Tensor]) -> None:
        """One matrix product for each weight; of units whose gradients were kept, one with a vector."""
        if self._rows is not None:
            self._rows.add(units, weights, views)
            return
        per_item = units.spread(weights)
        if not self._kept:
            self._add_items(ALL, per_item, views)
            return
        for run in units.runs:
            if run.units.start not in self._kept:
                self._add_items(run.items, per_item[run.items], views)
                continue
            for slot, formed in zip(self.slots, self._kept[run.units.start], strict=True):
                view = slot.of(views)
                view.add_((weights[run.units] @ formed).view(view.shape))

    def _add_items(self, items: slice, per_item: Tensor, views: Mapping[str, Tensor]) -> None:
        per_row = self._per_row(per_item)
        outward = self._matrix(self.outward, items)
        weighted: Tensor | None = None
        for slot, rows in self.factors:
            inward, view = self._matrix(rows, items), slot.of(views)
            if inward.shape[1] < outward.shape[1]:
                view.addmm_(outward.t(), inward * per_row[:, None])
            else:
                weighted = outward * per_row[:, None] if weighted is None else weighted
                view.addmm_(weighted.t(), inward)
        for slot in self.biases:
            slot.of(views).addmv_(outward.t(), per_row)

    def _pooled(self, units: Units) -> Iterator[tuple[Slot, Tensor]]:
        if self._positions == 1:  # a product of one row and one column: broadcasting beats a matrix product
            outward = self._matrix(self.outward, ALL)
            for slot, rows in self.factors:
                formed = outward[:, :, None] * self._matrix(rows, ALL)[:, None]
                yield slot, units.pool(formed)
            pooled = units.pool(outward) if self.biases else outward
        else:
            outward = self._by_item(self.outward)
            for slot, rows in self.factors:
                yield slot, units.pool(torch.bmm(outward.transpose(1, 2), self._by_item(rows)))
            pooled = units.pool(outward.sum(1))
        for slot in self.biases:
            yield slot, pooled

    def _by_item(self, rows: Tensor) -> Tensor:
        """[item, position, value]."""
        return rows.transpose(0, 1) if self.positions_first else rows

    def _matrix(self, rows: Tensor, items: slice) -> Tensor:
        """Rows of these items [item × position, value], in the storage's own order."""
        if items == ALL and rows.dim() == 2:
            return rows
        chosen = rows[:, items] if self.positions_first else rows[items]
        return chosen.reshape(-1, rows.shape[-1])

    def _per_row(self, per_item: Tensor) -> Tensor:
        if self._positions == 1:
            return per_item
        return per_item.repeat(self._positions) if self.positions_first else per_item.repeat_interleave(self._positions)

    def _of(self, rows: Tensor, run: Run) -> Tensor:
        """The run's rows as [unit, position of any item, value]."""
        if self.positions_first:
            rows = rows.transpose(0, 1)
        return rows[run.items].reshape(run.count, run.size * self._positions, rows.shape[-1])

    def _squares_of(self, run: Run) -> Tensor:
        positions = run.size * self._positions
        if positions == 1:
            return self._of_one_position(run)
        width, inner = self.outward.shape[-1], sum(inward.shape[-1] for _, inward in self.factors)
        if not self.factors:
            return self._of(self.outward, run).sum(1).square_().sum(1).mul_(len(self.biases))
        if positions * (width + inner) <= width * inner:
            return self._by_products_of_positions(run, positions)
        return self._by_forming(run, inner * width)

    def _of_one_position(self, run: Run) -> Tensor:
        """‖g ⊗ a‖² = ‖g‖²·‖a‖², and a bias sees a 1."""
        items = ALL if run.count == self._items else run.items
        outward = self._matrix(self.outward, items)
        square = torch.linalg.vecdot(outward, outward)
        seen: Tensor | float = float(len(self.biases))
        for _, inward in self.factors:
            rows = self._matrix(inward, items)
            seen = torch.linalg.vecdot(rows, rows).add_(seen)
        result: Tensor = square.mul_(seen)
        return result

    def _by_products_of_positions(self, run: Run, positions: int) -> Tensor:
        """‖Σ_t g_t ⊗ a_t‖² = Σ_{t,s} (g_t·g_s)(a_t·a_s): nothing as large as the weight is formed."""
        outward = self._of(self.outward, run)
        inwards = [self._of(inward, run) for _, inward in self.factors]
        squares = outward.new_empty(run.count)
        for chosen in chunks(run.count, positions * positions):
            seen = _products(inwards[0][chosen])
            for inward in inwards[1:]:
                seen.baddbmm_(inward[chosen], inward[chosen].transpose(1, 2))
            seen.add_(len(self.biases))
            pairs = _products(outward[chosen])
            apart = _diagonal(pairs).mul_(_diagonal(seen)).sqrt_().sum(1).square_()
            squares[chosen] = unless_cancelled(seen.mul_(pairs).sum((1, 2)), apart, positions)
        return squares

    def _by_forming(self, run: Run, values: int) -> Tensor:
        """Each unit's gradient is formed, squared, and kept where that is affordable: it saves the last product."""
        outward = self._of(self.outward, run)
        inwards = [self._of(inward, run) for _, inward in self.factors]
        bias = outward.sum(1)
        squares: Tensor = torch.linalg.vecdot(bias, bias).mul_(len(self.biases))
        kept = (
            [bias.new_empty(run.count, slot) for slot in self._sizes()] if self._affords(run.count * values) else None
        )
        for chosen in chunks(run.count, values):
            for number, inward in enumerate(inwards):
                out = kept[number][chosen].view(-1, bias.shape[1], inward.shape[2]) if kept else None
                formed = torch.bmm(outward[chosen].transpose(1, 2), inward[chosen], out=out).flatten(1)
                squares[chosen].add_(torch.linalg.vecdot(formed, formed))
        if kept:
            self._kept[run.units.start] = [*kept, *(bias for _ in self.biases)]
            return squares
        # Formed again when they are summed, by another product with roundings of its own.
        seen = sum((torch.linalg.vecdot(inward, inward) for inward in inwards), torch.zeros(())).add(len(self.biases))
        apart = torch.linalg.vecdot(outward, outward).mul_(seen).sqrt_().sum(1).square_()
        return unless_cancelled(squares, apart, outward.shape[1])

    def _sizes(self) -> list[int]:
        return [self.outward.shape[-1] * inward.shape[-1] for _, inward in self.factors]

    def _affords(self, values: int) -> bool:
        already = sum(formed.numel() for one in self._kept.values() for formed in one)
        return already + values <= MOST_KEPT


def _diagonal(pairs: Tensor) -> Tensor:
    return pairs.diagonal(dim1=1, dim2=2).clone()


def _products(rows: Tensor) -> Tensor:
    """Products of all positions with all [unit, position, position]."""
    return torch.bmm(rows, rows.transpose(1, 2))
