"""What a layer keeps of a backward pass: enough to tell each unit's share of the squared norm, and to add up the
clipped sum, without a gradient per item of any large parameter.

A share is made by one use of one layer. Parameters that several shares touch are summed before they are squared.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from wholegrain.clipping.clip_units import UnitRange, UnitRun, Units
from wholegrain.clipping.parameter_sums import ParameterSums, align
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rounding import NORM, SUM, squared_norms

# Values made at a time where gradients of units are formed: 16 MB of float32, small beside a layer's activations.
CHUNK = 1 << 22


class Lengths(NamedTuple):
    """Squared norm of each unit's gradient, and of what it would be if all its parts pulled the same way.

    Parts are the products that a sum over units adds up one by one; rounding is relative to them and not to their sum.
    None says that there is one part, or that the formed gradient itself is summed. Where rounding could make a norm
    come out too short, it is NaN, and the reference takes over.
    """

    squared: Tensor  # [unit]
    apart: Tensor | None = None  # [unit]


class Share(Protocol):
    """One use of one layer, after the backward pass."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The parameters whose gradients it holds."""
        ...

    def lengths(self, units: Units) -> Lengths:
        """Of each unit's gradient in these parameters."""
        ...

    def apart(self, units: Units) -> Tensor:
        """The square of the sum of the lengths of all parts of a unit's gradient [unit], from above."""
        ...

    def terms(self, units: Units, size: int) -> int:
        """How many products a unit of so many items adds to each parameter of the sum.

        It may depend on shapes and on that unit, but on no other unit.
        """
        ...

    def hand_over(self, run: UnitRun) -> Iterator[Tensor]:
        """Gradients of a run's units [unit, ...] that were formed to be summed; they are kept no longer."""
        ...

    def gradients(self, units: Units, run: UnitRun, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """The gradients themselves [unit, ...] of some units of a run."""
        ...

    def add(self, units: Units, part: UnitRange, weights: Tensor, sums: ParameterSums) -> None:
        """Add Σ_u weight_u · gradient_u over a part of the units to the parameters' sums."""
        ...


class Rows:
    """Gradients of every unit, held: for parameters so small, or shared by so many positions, that this is cheapest."""

    def __init__(
        self,
        held: Sequence[tuple[Slot, Tensor]],
        fold: "Fold | None" = None,
        squares: Tensor | None = None,
    ) -> None:
        """`squares` are their squared norms, where they are known."""
        self._held = held  # [unit, value]
        self._fold, self._squares = fold, squares

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The parameters whose gradients are held."""
        return tuple(slot for slot, _ in self._held)

    def lengths(self, units: Units) -> Lengths:
        """Squared norms of the rows, which are summed as they are."""
        if self._squares is not None:
            return Lengths(self._squares)
        squares = [squared_norms(rows.reshape(rows.shape[0], -1)) for _, rows in self._held]
        return Lengths(sum(squares[1:], squares[0]))

    def apart(self, units: Units) -> Tensor:
        """A row is one part."""
        return self.lengths(units).squared

    def terms(self, units: Units, size: int) -> int:
        """One row for each unit."""
        return 1

    def gradients(self, units: Units, run: UnitRun, chosen: slice) -> Iterator[tuple[Slot, Tensor]]:
        """Some of the rows."""
        for slot, rows in self._held:
            part = rows[run.units][chosen]
            yield slot, self._fold(slot, part) if self._fold else part

    def hand_over(self, run: UnitRun) -> Iterator[Tensor]:
        """The run's rows; these are what there is, and stay."""
        yield from (rows[run.units] for _, rows in self._held)

    def add(self, units: Units, part: UnitRange, weights: Tensor, sums: ParameterSums) -> None:
        """One product of a vector and a matrix for each parameter."""
        whole = part is units.whole
        chosen = weights if whole else align(weights[part.units])
        for slot, rows in self._held:
            flat = rows if rows.dim() == 2 else rows.reshape(rows.shape[0], -1)
            # Contiguous, so that strides do not depend on whether a copy was needed.
            flat = flat if whole else align(flat[part.units].contiguous())
            if self._fold is None:
                sums.add_rows(slot, flat, chosen)
            else:
                sums.add(slot, self._fold(slot, (chosen @ flat)[None])[0])


class Fold(Protocol):
    """How rows that are held in another order become a parameter's own shape."""

    def __call__(self, slot: Slot, rows: Tensor) -> Tensor:
        """Rows [unit, ...] in the parameter's order."""
        ...


def distrust_lost(squared: Tensor, apart: Tensor, squares_off: float, sums_off: float) -> Lengths:
    """Squared norms [unit], or NaN where parts cancel so far that rounding could hide how long the rest is.

    `squares_off` is how far, as a part of `apart`, the squared norm may be off; `sums_off` how far, as a part of its
    root, a sum of the parts may be. Gradients of random directions are far from both.

    Guarantee: a norm that is kept is short by a part of NORM at most, and a sum of one unit's parts is off by at most
    SUM/2 of it.
    """
    worst = max(squares_off / (2 * NORM), (2 * sums_off / SUM) ** 2)
    certain = squared >= apart * worst  # not the contrary of `<`: what is not a number is not certain
    return Lengths(squared.masked_fill(~certain, float("nan")), apart)


def join_runs(found: Sequence[Lengths]) -> Lengths:
    """Lengths of the units of all runs, from those of each run."""
    if len(found) == 1:
        return found[0]
    squared = torch.cat([each.squared for each in found])
    if all(each.apart is None for each in found):
        return Lengths(squared)
    return Lengths(squared, torch.cat([each.squared if each.apart is None else each.apart for each in found]))


def chunks(count: int, values: int) -> Iterator[slice]:
    """Slices of `count` units such that one slice makes at most CHUNK values, if a unit does."""
    step = max(1, CHUNK // max(1, values))
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))
