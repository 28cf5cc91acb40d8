"""What a layer keeps of a backward pass: enough to tell each unit's share of the squared norm, and to add up the
clipped sum, without a gradient per item of any large parameter.

A share is made by one use of one layer. Parameters that several shares touch are summed before they are squared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from wholegrain.gradients.units import Run, Units

# Values made at a time where gradients of units are formed: 16 MB of float32, small beside a layer's activations.
CHUNK = 1 << 22
# The part of a squared norm that may be rounding; where it is more, the norm is not trusted.
LOST = 1.2e-5
ALL = slice(None)
# Values of all items' gradients up to which they are simply formed: 2 MB of float32.
SMALL = 1 << 19
# Values of unit gradients that a share may keep, so that the sum need not form them again: 64 MB of float32.
MOST_KEPT = 1 << 24


@dataclass(frozen=True)
class Slot:
    """Some rows of a parameter, or all of it."""

    name: str
    rows: tuple[int, int] | None = None

    def of(self, views: Mapping[str, Tensor]) -> Tensor:
        """The same part among `views` of all parameters."""
        return views[self.name] if self.rows is None else views[self.name][slice(*self.rows)]


class Share(Protocol):
    """One use of one layer, after the backward pass."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The parameters whose gradients it holds."""
        ...

    def squares(self, units: Units) -> Tensor:
        """Squared norm of each unit's gradient [unit], in these parameters."""
        ...

    def gradients(self, units: Units, run: Run, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """The gradients themselves [unit, ...] of some units of a run."""
        ...

    def add(self, units: Units, weights: Tensor, views: Mapping[str, Tensor]) -> None:
        """Add Σ_u weight_u · gradient_u into the parameters' views."""
        ...


class Rows:
    """Gradients of every unit, held: for parameters so small, or shared by so many positions, that this is cheapest."""

    def __init__(
        self, held: Sequence[tuple[Slot, Tensor]], fold: "Fold | None" = None, squares: Tensor | None = None
    ) -> None:
        self._held = held  # [unit, value]
        self._fold, self._squares = fold, squares

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The parameters whose gradients are held."""
        return tuple(slot for slot, _ in self._held)

    def squares(self, units: Units) -> Tensor:
        """Squared norms of the rows."""
        if self._squares is not None:
            return self._squares.clone()
        total: Tensor | None = None
        for _, rows in self._held:
            flat = rows.reshape(rows.shape[0], -1)
            square = torch.linalg.vecdot(flat, flat)
            total = square if total is None else total.add_(square)
        assert total is not None, "a layer without trainable parameters leaves no share"
        return total

    def gradients(self, units: Units, run: Run, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """Some of the rows."""
        for slot, rows in self._held:
            part = rows[run.units][chosen]
            yield slot, self._fold(slot, part) if self._fold else part

    def add(self, units: Units, weights: Tensor, views: Mapping[str, Tensor]) -> None:
        """One product of a vector and a matrix for each parameter."""
        for slot, rows in self._held:
            view, flat = slot.of(views), rows.reshape(rows.shape[0], -1)
            if self._fold is None:
                view.view(-1).addmv_(flat.t(), weights)
            else:
                view.add_(self._fold(slot, (weights @ flat)[None])[0].view(view.shape))


class Fold(Protocol):
    """How rows that are held in another order become a parameter's own shape."""

    def __call__(self, slot: Slot, rows: Tensor) -> Tensor:
        """Rows [unit, ...] in the parameter's order."""
        ...


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


def unless_cancelled(squared: Tensor, apart: Tensor, positions: int) -> Tensor:
    """Squared norms [unit] from above, or NaN where they are differences so small that rounding hides them.

    `apart` is what the squared norm would be if all positions pulled the same way; its rounding is added, because a
    norm that came out too short would let a contribution through that is longer than the clip norm. Gradients of random
    directions stay within a factor of `positions` of it; who is far beyond is handed to the reference, like what is not
    finite.
    """
    rounding = torch.finfo(squared.dtype).eps
    lost = squared * max(LOST / rounding, 4 * positions) < apart
    return squared.add_(apart, alpha=rounding).masked_fill_(lost, float("nan"))


def _diagonal(pairs: Tensor) -> Tensor:
    return pairs.diagonal(dim1=1, dim2=2).clone()


def _products(rows: Tensor) -> Tensor:
    """Products of all positions with all [unit, position, position]."""
    return torch.bmm(rows, rows.transpose(1, 2))


def squares(shares: Sequence[Share], units: Units) -> Tensor:
    """Squared norm of each unit's whole gradient [unit]."""
    total: Tensor | None = None
    for group in _apart(shares):
        square = group[0].squares(units) if len(group) == 1 else _of_tangled(group, units)
        total = square if total is None else total.add_(square)
    assert total is not None, "a model without trainable parameters is refused before"
    return total


def _apart(shares: Sequence[Share]) -> list[list[Share]]:
    """Shares in groups that have no parameter in common; slots of one parameter count as one."""
    touched = [slot.name for share in shares for slot in share.slots]
    if len(set(touched)) == len(touched):
        return [[share] for share in shares]
    groups: list[tuple[set[str], list[Share]]] = []
    for share in shares:
        names, members = {slot.name for slot in share.slots}, [share]
        for other in [group for group in groups if group[0] & names and _overlap(group[1], share)]:
            groups.remove(other)
            names, members = names | other[0], other[1] + members
        groups.append((names, members))
    return [members for _, members in groups]


def _overlap(group: Sequence[Share], share: Share) -> bool:
    """Whether a parameter is touched twice; different rows of one are different parameters."""
    return any(_meet(one, other) for member in group for one in member.slots for other in share.slots)


def _meet(one: Slot, other: Slot) -> bool:
    if one.name != other.name:
        return False
    if one.rows is None or other.rows is None:
        return True
    return one.rows[0] < other.rows[1] and other.rows[0] < one.rows[1]


def _of_tangled(group: Sequence[Share], units: Units) -> Tensor:
    """Several uses of one parameter: their gradients are summed first."""
    merged = _as_one_use(group)
    if merged is not None:
        return merged.squares(units)
    parts = [_formed_together(group, units, run) for run in units.runs]
    return torch.cat(parts)


def _as_one_use(group: Sequence[Share]) -> Outer | None:
    """A layer that is used k times is a layer used once, with k times the positions."""
    if not all(isinstance(share, Outer) and share.slots == group[0].slots for share in group):
        return None
    uses = [share for share in group if isinstance(share, Outer) and not share.positions_first]
    if len(uses) != len(group):
        return None
    slots = [slot for slot, _ in uses[0].factors]
    inward = [torch.cat([_with_positions(use.factors[k][1]) for use in uses], 1) for k in range(len(slots))]
    outward = torch.cat([_with_positions(use.outward) for use in uses], 1)
    return Outer(outward, tuple(zip(slots, inward, strict=True)), uses[0].biases)


def _with_positions(rows: Tensor) -> Tensor:
    return rows if rows.dim() == 3 else rows[:, None]


def _formed_together(group: Sequence[Share], units: Units, run: Run) -> Tensor:
    """Squared norms of the units of one run, with every gradient of the group formed, some units at a time."""
    parts = []
    for chosen in chunks(run.count, CHUNK // 4):
        sums: dict[str, Tensor] = {}
        for share in group:
            for slot, formed in share.gradients(units, run, chosen):
                sums[slot.name] = _with_rows(sums.get(slot.name), slot, formed)
        flat = [rows.reshape(rows.shape[0], -1) for rows in sums.values()]
        parts.append(sum((torch.linalg.vecdot(rows, rows) for rows in flat), torch.zeros(())))
    return torch.cat(parts)


def _with_rows(total: Tensor | None, slot: Slot, formed: Tensor) -> Tensor:
    """Gradients [unit, row, ...] of a parameter, as far as they are known, with those of some rows added."""
    if formed.dim() == 1:
        return formed if total is None else total + formed
    total = formed[:, :0] if total is None else total
    first = slot.rows[0] if slot.rows else 0
    missing = first + formed.shape[1] - total.shape[1]
    if missing > 0:
        total = torch.cat([total, total.new_zeros(len(total), missing, *total.shape[2:])], 1)
    total[:, first : first + formed.shape[1]] += formed
    return total


def chunks(count: int, values: int) -> Iterator[slice]:
    """Slices of `count` units such that one slice makes at most CHUNK values, if a unit does."""
    step = max(1, CHUNK // max(1, values))
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))
