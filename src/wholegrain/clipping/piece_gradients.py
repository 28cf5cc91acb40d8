"""The gradients of a piece after its pass: their weights, and in which parts they are summed (docs/arithmetic.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Lengths, Share
from wholegrain.clipping.clip_units import UnitRange, UnitRun, Units
from wholegrain.clipping.clipping import Clip, ClipPer
from wholegrain.clipping.pieces import Piece
from wholegrain.clipping.rounding import SUM, constant_tensor, unit_roundoff
from wholegrain.clipping.sum_groups import SumGroups, most_units, rounding, split_range

MARGIN = 32
"""Roundings between a squared norm and a weight, from above."""


@dataclass(eq=False, slots=True)
class PieceGradients:
    """A piece after its pass: shares, its units with those that fill it up, their lengths if asked for, and weights."""

    piece: Piece
    shares: Sequence[Share]
    units: Units
    found: Lengths | None
    weights: Tensor  # [unit]; 0 for those that fill up
    bad: Tensor | None = None  # [unit]
    """Whose norm is not certain; None where everybody's is, also of those that fill up."""
    uses: int = 1
    """How many shares add to one parameter, at the most."""

    @property
    def apart(self) -> bool:
        """Whether units have several products each."""
        return self.found is not None and self.found.apart is not None

    def fits(self, allowed: float, clip: Clip, grouping: SumGroups) -> bool:
        """Whether all units can be summed at once, in any order, and be off by no more than this."""
        if self.found is None:
            return True
        units = self.piece.units
        products = sum(self._terms(run) * run.count for run in units.runs)
        if rounding(products, self.load(units.whole, clip), self._kind) > allowed:
            return False
        return not self.apart or not any(self._heavy(run, clip, grouping).any() for run in units.runs)

    def plan_sums(self, clip: Clip, grouping: SumGroups) -> Iterator[tuple[list[UnitRange], list[int]]]:
        """Every group in as few parts as its rounding allows, and the units whose norm is not certain."""
        units, whole = self.piece.units, self.piece.units.whole
        if grouping.single and self.bad is None and self.fits(self.piece.tolerance(whole.units, clip), clip, grouping):
            yield [whole], []
            return
        for run, group in grouping.groups(units, self.piece.numbers):
            yield self._parts(run, group, clip, grouping)

    def _parts(
        self, run: UnitRun, group: UnitRange, clip: Clip, grouping: SumGroups
    ) -> tuple[list[UnitRange], list[int]]:
        """Those units of a group that are in this piece.

        A heavy unit is summed alone, so that it is the same to the last bit whoever else is there. The others can be
        cut anywhere: however they are, together they are off by no more than is allowed.
        """
        if self.found is None:
            return [group], []
        load, allowed = self.load(group, clip), self.piece.tolerance(group.units, clip)
        most = max(1, most_units(self._terms(run), load, allowed, self._kind))
        heavy = self._heavy(run, clip, grouping)[group.units.start - run.units.start :][: _size(group)]
        bad = torch.zeros_like(heavy) if self.bad is None else self.bad[group.units]
        alone = heavy & ~bad
        cuts = (group.units.start + (heavy | bad).nonzero()[:, 0]).tolist()
        between = pairwise([group.units.start - 1, *cuts, group.units.stop])
        light = [self._between(run, start + 1, stop) for start, stop in between if stop > start + 1]
        heavies = (group.units.start + alone.nonzero()[:, 0]).tolist()
        parts = [part for some in light for part in split_range(run, some, most)]
        uncertain = (group.units.start + bad.nonzero()[:, 0]).tolist()
        return [*parts, *(self._between(run, unit, unit + 1) for unit in heavies)], uncertain

    def _between(self, run: UnitRun, start: int, stop: int) -> UnitRange:
        return self.piece.units.part(run, start - run.units.start, stop - run.units.start)

    def _heavy(self, run: UnitRun, clip: Clip, grouping: SumGroups) -> Tensor:
        """Whose own rounding is more than its part of what a group may have at the most [unit of the run].

        A unit's own facts and public ones decide, never who else is in the batch.
        """
        if not self.apart:
            return torch.zeros(run.count, dtype=torch.bool)
        own = rounding(self._terms(run), 1.0, self._kind) * self._loads(run.units)
        return ~(own <= SUM * clip.norm * run.size / grouping.most(run.size))

    @property
    def _kind(self) -> torch.dtype:
        return self.weights.dtype

    def _loads(self, units: slice) -> Tensor:
        """The lengths of all weighted parts of each unit, added up."""
        assert self.found is not None
        assert self.found.apart is not None
        return self.weights[units].double() * self.found.apart[units].double().sqrt()

    def load(self, part: UnitRange, clip: Clip) -> float:
        """The lengths of all weighted parts of these units, added up."""
        if not self.apart:
            return float(_size(part)) * clip.norm
        loads = self._loads(part.units)
        total: float = (loads if self.bad is None else loads[~self.bad[part.units]]).sum().item()
        return total

    def _terms(self, run: UnitRun) -> int:
        return max((share.terms(self.units, run.size) for share in self.shares), default=1)


def may_fit(batch: Piece, clip: Clip, kind: torch.dtype) -> bool:
    """Whether so many units could be summed at once, as far as their number tells."""
    count = batch.units.count
    return bool(
        clip.per in (ClipPer.NONE, ClipPer.BATCH) or rounding(count, count * clip.norm, kind) <= SUM * clip.norm
    )


def compute_weights(squared: Tensor, piece: Piece, clip: Clip) -> Tensor:
    """What each unit's gradient is multiplied by in the sum [unit], from its squared norm.

    Guarantee: no clipped contribution is longer than the clip norm by more than the norm was too short. The weight is a
    normal number: squares that are finite are below 2¹²⁸, and clip norms above 2⁻⁵⁰.
    """
    limit = clip.norm * (1 - 2 * MARGIN * unit_roundoff(squared.dtype))
    weights = squared if len(squared) == piece.units.count else squared[: piece.units.count]
    if piece.before is not None:
        weights = (weights * piece.before).mul_(piece.before)
    least, most = constant_tensor(limit * limit, squared.dtype), constant_tensor(limit, squared.dtype)
    weights = torch.maximum(weights, least).rsqrt_().mul_(most)
    for factor in (piece.before, piece.after):
        if factor is not None:
            weights.mul_(factor)
    return weights


def pad_weights(weights: Tensor, units: Units) -> Tensor:
    """Weights [unit] with a zero for every unit that fills up."""
    more = units.count - len(weights)
    return torch.cat([weights, weights.new_zeros(more)]) if more else weights


def _size(part: UnitRange) -> int:
    return int(part.units.stop - part.units.start)
