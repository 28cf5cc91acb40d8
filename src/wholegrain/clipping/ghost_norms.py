"""Ghost norms of matrix products [Goodfellow 2015; Li et al. 2022]: what most parameters of most models are used in."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Lengths, Rows, chunks, distrust_lost, join_runs
from wholegrain.clipping.clip_units import UnitRange, UnitRun, Units
from wholegrain.clipping.parameter_sums import ParameterSums, align
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rounding import LEAST, MOST, raised_product, raised_squares, rounding_bound, squared_norms

ALL = slice(None)
# Values up to which each item's gradient is simply formed, where they are pooled by subject.
SMALL = 1 << 12
# Gradients of units are formed up to so many times as large as the factors: one product then serves norm and sum.
FORMED = 2
# Values that a product of two positions adds up at once: fewer roundings in a row than with all of them.
WIDTH = 128


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
    def is_dense(self) -> bool:
        """Whether it is one weight and one bias, applied once to each item."""
        return self.outward.dim() == 2 and len(self.factors) == 1 and len(self.biases) == 1

    @property
    def width(self) -> int:
        """Parameters that it has."""
        return sum(self._sizes()) + len(self.biases) * self.outward.shape[-1]

    @property
    def _items(self) -> int:
        return self.outward.shape[1 if self.positions_first else 0]

    @property
    def _positions(self) -> int:
        return self.outward.shape[0 if self.positions_first else 1] if self.outward.dim() == 3 else 1

    def lengths(self, units: Units) -> Lengths:
        """By the cheapest way for each run of units. Which one it is depends on shapes and on the unit's own size."""
        if self._pools(units):
            self._rows = Rows(list(self._pool_items(units)))
            return self._rows.lengths(units)
        if self.forms_units(units):
            self._rows = self.form(units)
            return self._rows.lengths(units)
        return join_runs([self._lengths_of(run) for run in units.runs])

    def forms_units(self, units: Units) -> bool:
        """Whether the gradient of every unit is formed by one product: where an item's is, also those of more items."""
        return not self._pools(units) and self._forms(self._positions)

    def form(self, units: Units) -> Rows:
        """Every unit's gradient, by a product for each size of units; all are squared and summed at once."""
        return Rows(list(self._form_units(units)))

    def apart(self, units: Units) -> Tensor:
        """A part for each position."""
        return units.pool(self._parts().sum(1)).square()

    def terms(self, units: Units, size: int) -> int:
        """A product for each position; one where each unit's gradient is formed."""
        positions = size * self._positions
        return 1 if self._pools(units) or self._forms(positions) else positions

    def hand_over(self, run: UnitRun) -> Iterator[Tensor]:
        """What was pooled, or kept of a run."""
        rows, kept = self._rows, self._kept
        self._rows, self._kept = None, {}
        yield from rows.hand_over(run) if rows is not None else kept.get(run.units.start, [])

    def _pools(self, units: Units) -> bool:
        """Whether small gradients of items are formed, and pooled by subject."""
        return units.sizes is not None and sum(self._sizes()) <= SMALL

    def _forms(self, positions: int) -> bool:
        """Whether each unit's gradient is formed: where it takes little more memory than the factors do."""
        width, inner = self.outward.shape[-1], sum(inward.shape[-1] for _, inward in self.factors)
        return positions > 1 and FORMED * positions * (width + inner) > width * inner

    def gradients(self, units: Units, run: UnitRun, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """Formed by a product for each unit."""
        outward = self._of(self.outward, run)[chosen]
        for slot, inward in self.factors:
            left, right = _sides(slot, outward, self._of(inward, run)[chosen])
            yield slot.plain, torch.bmm(left.transpose(1, 2), right)
        for slot in self.biases:
            yield slot, outward.sum(1)

    def add(self, units: Units, part: UnitRange, weights: Tensor, sums: ParameterSums) -> None:
        """One matrix product for each weight; of units whose gradients were kept, one with a vector."""
        if self._rows is not None:
            self._rows.add(units, part, weights, sums)
        elif not self._kept:
            per_item = units.spread(weights)
            if part is units.whole:
                self._add_items(ALL, per_item, sums)
            else:
                self._add_items(part.items, per_item[part.items], sums)
        else:
            per_item = units.spread(weights)
            for run in units.runs:
                self._add_of_run(run, part, weights, per_item, sums)

    def _add_of_run(
        self, run: UnitRun, part: UnitRange, weights: Tensor, per_item: Tensor, sums: ParameterSums
    ) -> None:
        """Those units of a part that are in this run."""
        start, stop = max(run.units.start, part.units.start), min(run.units.stop, part.units.stop)
        if start >= stop:
            return
        if run.units.start not in self._kept:
            first = run.items.start + (start - run.units.start) * run.size
            items = slice(first, first + (stop - start) * run.size)
            self._add_items(items, per_item[items], sums)
            return
        chosen = align(weights[start:stop])
        for slot, kept in zip(self.slots, self._kept[run.units.start], strict=True):
            sums.add_rows(slot.plain, align(kept[start - run.units.start : stop - run.units.start]), chosen)

    def _add_items(self, items: slice, per_item: Tensor, sums: ParameterSums) -> None:
        per_row = align(self._per_row(per_item))
        outward = self._matrix(self.outward, items)
        weighted: Tensor | None = None
        for slot, rows in self.factors:
            inward = self._matrix(rows, items)
            if inward.shape[1] < outward.shape[1]:
                sums.add_product(slot, outward.t(), inward * per_row[:, None])
            else:
                weighted = (outward * per_row[:, None]).t() if weighted is None else weighted
                sums.add_product(slot, weighted, inward)
        for slot in self.biases:
            sums.add_rows(slot, outward, per_row)

    def _form_units(self, units: Units) -> Iterator[tuple[Slot, Tensor]]:
        outward = [self._of(self.outward, run) for run in units.runs]
        for slot, rows in self.factors:
            pairs = [_sides(slot, g, self._of(rows, run)) for run, g in zip(units.runs, outward, strict=True)]
            formed = rows.new_empty(units.count, pairs[0][0].shape[2], pairs[0][1].shape[2])
            for run, (left, right) in zip(units.runs, pairs, strict=True):
                torch.bmm(left.transpose(1, 2), right, out=formed[run.units])
            yield slot.plain, formed
        if self.biases:
            bias = self.outward.new_empty(units.count, outward[0].shape[2])
            for run, g in zip(units.runs, outward, strict=True):
                torch.sum(g, 1, out=bias[run.units])
            for slot in self.biases:
                yield slot, bias

    def _pool_items(self, units: Units) -> Iterator[tuple[Slot, Tensor]]:
        if self._positions == 1:  # a product of one row and one column: broadcasting beats a matrix product
            outward = self._matrix(self.outward, ALL)
            for slot, rows in self.factors:
                left, right = _sides(slot, outward, self._matrix(rows, ALL))
                yield slot.plain, units.pool(left[:, :, None] * right[:, None])
            pooled = units.pool(outward) if self.biases else outward
        else:
            outward = self._by_item(self.outward)
            for slot, rows in self.factors:
                left, right = _sides(slot, outward, self._by_item(rows))
                yield slot.plain, units.pool(torch.bmm(left.transpose(1, 2), right))
            pooled = units.pool(outward.sum(1))
        for slot in self.biases:
            yield slot, pooled

    def _by_item(self, rows: Tensor) -> Tensor:
        """[item, position, value]."""
        return rows.transpose(0, 1) if self.positions_first else rows

    def _matrix(self, rows: Tensor, items: slice) -> Tensor:
        """Rows of these items [item × position, value], in the storage's own order."""
        if items is ALL:
            return rows if rows.dim() == 2 else rows.reshape(-1, rows.shape[-1])
        chosen = rows[:, items] if self.positions_first else rows[items]
        return align(chosen.reshape(-1, rows.shape[-1]))

    def _per_row(self, per_item: Tensor) -> Tensor:
        if self._positions == 1:
            return per_item
        return per_item.repeat(self._positions) if self.positions_first else per_item.repeat_interleave(self._positions)

    def _of(self, rows: Tensor, run: UnitRun) -> Tensor:
        """The run's rows as [unit, position of any item, value]."""
        if self.positions_first:
            rows = rows.transpose(0, 1)
        return rows[run.items].reshape(run.count, run.size * self._positions, rows.shape[-1])

    def _lengths_of(self, run: UnitRun) -> Lengths:
        positions = run.size * self._positions
        if positions == 1:
            return Lengths(self._of_one_position(run))
        return self._by_forming(run) if self._forms(positions) else self._by_products_of_positions(run, positions)

    def _of_one_position(self, run: UnitRun) -> Tensor:
        """‖g ⊗ a‖² = ‖g‖²·‖a‖², and a bias sees a 1 [Goodfellow 2015]."""
        items = ALL if run.count == self._items else run.items
        outward = self._matrix(self.outward, items)
        if not self.factors:
            return squared_norms(outward).mul_(len(self.biases))
        seen: Tensor | None = None
        for _, inward in self.factors:
            rows = raised_squares(self._matrix(inward, items), len(self.biases) if seen is None else 0.0)
            seen = rows if seen is None else seen.add_(rows)
        assert seen is not None
        return raised_product(raised_squares(outward), seen)

    def _by_products_of_positions(self, run: UnitRun, positions: int) -> Lengths:
        """‖Σ_t g_t ⊗ a_t‖² = Σ_{t,s} (g_t·g_s)(a_t·a_s): nothing as large as the weight is formed [Li et al. 2022].

        Products are added up in double precision: positions that pull against each other leave a small difference.
        """
        widths = [rows.shape[-1] for _, rows in self.factors]
        squares, apart = self._pair(run, positions)
        # Of products in a row, and then of their sums: of one factor with itself, or of all others together.
        widest, sums = max(self.outward.shape[-1], *widths), sum(-(-width // WIDTH) for width in widths)
        chain = min(widest, WIDTH) + max(-(-self.outward.shape[-1] // WIDTH), sums)
        off = rounding_bound(chain + len(widths) + 2, squares.dtype)
        return distrust_lost(squares, apart, 2 * off, rounding_bound(positions + 2, squares.dtype))

    def _pair(self, run: UnitRun, positions: int) -> tuple[Tensor, Tensor]:
        """Squared norms of a run's units, and of what they would be if all positions pulled the same way."""
        outward = self._of(self.outward, run)
        inwards = [self._of(inward, run) for _, inward in self.factors]
        squares, apart = outward.new_empty(run.count), outward.new_empty(run.count)
        for chosen in chunks(run.count, positions * positions):
            pairs, seen = _products(outward[chosen]), _products(inwards[0][chosen])
            for inward in inwards[1:]:
                seen.add_(_products(inward[chosen]))
            seen.add_(len(self.biases))
            apart[chosen] = self._apart_of(pairs.diagonal(dim1=1, dim2=2), seen.diagonal(dim1=1, dim2=2))
            squares[chosen] = seen.mul_(pairs).sum((1, 2), dtype=torch.float64).to(squares.dtype)
        return squares, apart

    def _apart_of(self, pairs: Tensor, seen: Tensor) -> Tensor:
        """From products of each position with itself [unit, position]."""
        most = LEAST * max(self.outward.shape[-1], *(rows.shape[-1] for _, rows in self.factors))
        return _unless_beyond((pairs + most).sqrt_(), (seen + most).sqrt_()).sum(1).square_()

    def _by_forming(self, run: UnitRun) -> Lengths:
        """Each unit's gradient is formed, squared, and kept: the sum adds up what was measured."""
        outward = self._of(self.outward, run)
        bias = outward.sum(1)
        squares = squared_norms(bias).mul_(len(self.biases))
        kept = [bias.new_empty(run.count, size) for size in self._sizes()]
        for chosen in chunks(run.count, max(1, sum(self._sizes()))):
            for out, (slot, rows) in zip(kept, self.factors, strict=True):
                left, right = _sides(slot, outward[chosen], self._of(rows, run)[chosen])
                formed = out[chosen].view(-1, left.shape[2], right.shape[2])
                torch.bmm(left.transpose(1, 2), right, out=formed)
                squares[chosen] += squared_norms(out[chosen])
        self._kept[run.units.start] = [*kept, *(bias for _ in self.biases)]
        return Lengths(squares)

    def _parts(self) -> Tensor:
        """How long each position's product is [item, position]."""

        def rows(factor: Tensor) -> Tensor:
            items = self._by_item(factor)
            return items if items.dim() == 3 else items[:, None]

        square = squared_norms(rows(self.outward))
        if not self.factors:
            return square.mul_(len(self.biases)).sqrt_()
        squares = [squared_norms(rows(inward)) for _, inward in self.factors]
        seen = sum(squares[1:], squares[0]) + len(self.biases)
        return _unless_beyond(square.sqrt_(), seen.sqrt_())

    def _sizes(self) -> list[int]:
        return [self.outward.shape[-1] * inward.shape[-1] for _, inward in self.factors]


def _sides(slot: Slot, outward: Tensor, inward: Tensor) -> tuple[Tensor, Tensor]:
    """The factors in the order in which their product has the parameter's own."""
    return (inward, outward) if slot.turned else (outward, inward)


def _unless_beyond(one: Tensor, other: Tensor) -> Tensor:
    """The product of two lengths, or NaN where either is so long that weighted values could underflow."""
    beyond = torch.maximum(one, other) > MOST
    return one.mul_(other).masked_fill_(beyond, float("nan"))


def _products(rows: Tensor) -> Tensor:
    """Products of all positions with all [unit, position, position]."""
    first, *rest = torch.split(rows, WIDTH, 2)
    total = torch.bmm(first, first.transpose(1, 2))
    for part in rest:
        total.baddbmm_(part, part.transpose(1, 2))
    return total
