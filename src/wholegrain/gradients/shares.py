"""What a layer keeps of a backward pass: enough to tell each unit's share of the squared norm, and to add up the
clipped sum, without a gradient per item of any large parameter.

A share is made by one use of one layer. Parameters that several shares touch are summed before they are squared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wholegrain.gradients.units import Run, Units

# Values made at a time where gradients of units are formed: 16 MB of float32, small beside a layer's activations.
CHUNK = 1 << 22
# The part of a squared norm that may be rounding; where it is more, the norm is not trusted.
LOST = 1.2e-5


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


def chunks(count: int, values: int) -> Iterator[slice]:
    """Slices of `count` units such that one slice makes at most CHUNK values, if a unit does."""
    step = max(1, CHUNK // max(1, values))
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))
