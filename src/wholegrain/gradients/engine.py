"""The fast way: one backward pass for the clipped sum of any policy ("book-keeping", Bu et al. 2023).

Each layer keeps its inputs and the gradient of its outputs. From these come the norms ("ghost clipping", Li et al.
2022), and then the weighted sum by one product for each layer; no gradient per item of a large layer is ever formed,
and no second pass is made. Before an engine is trusted with a model, it is compared with the reference on items made up
for the purpose.

What floating point may do to the result is bounded for all finite parameters, inputs and targets: docs/arithmetic.md.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain.errors import ModelError
from wholegrain.gradients import reference
from wholegrain.gradients.backend_selection import MOST_TRIED, Backend, select_backend
from wholegrain.gradients.backends import Program
from wholegrain.gradients.batch_invariance import LEAST_ROWS, FixedPlaces, round_size_up
from wholegrain.gradients.bookkeeping import Lengths, Share
from wholegrain.gradients.clip_units import Buckets, UnitRange, UnitRun, Units, sort_into_runs
from wholegrain.gradients.clipping import MOST_NORM, Clip, ClippedTotal, ClipPer, Pool, pool_gradients
from wholegrain.gradients.gradient_norms import gradient_lengths, merge_uses
from wholegrain.gradients.layers.base import Unsupported
from wholegrain.gradients.parameters import Layout
from wholegrain.gradients.reference import Loss
from wholegrain.gradients.rounding import SUM, constant_tensor, unit_roundoff
from wholegrain.gradients.sum_groups import SumGroups, add_up, most_units, plan_groups, rounding, split_range

MEMORY = 1 << 28
"""Bytes that the activations of a batch may take, unless told otherwise. More is not faster: it is more page faults."""
# Roundings between a squared norm and a weight, from above.
MARGIN = 32


Shape = tuple[torch.Size, torch.Size, torch.dtype]
"""Of an item, of its target, and the kind of numbers."""


ONE_ITEM = Units.of_items(1)
ONE_SUBJECT = Units.of_sizes(np.array([1]))
UNGROUPED = SumGroups(True, lambda size: 1, lambda size: sys.maxsize)


@dataclass(eq=False, slots=True)  # not frozen: some are made for each step, and freezing triples their cost
class Piece:
    """Whole units of a batch that are computed at once.

    A unit's gradient is multiplied by `before` when it is measured and summed, by `after` only when it is summed: the
    mean of a subject's gradients, or the mean of its clipped gradients. `numbers` say to which group of the sum a unit
    belongs; None where there is one group. `shares` are the parts of its group's rounding that each unit may have; a
    whole group's add up to 1.
    """

    inputs: Tensor
    targets: Tensor
    units: Units
    before: Tensor | None = None  # [unit]
    after: Tensor | None = None  # [unit]
    numbers: NDArray[np.int64] | None = None  # [unit]
    shares: NDArray[np.float64] | None = None  # [unit]; None before they are known, and where nothing is clipped

    def allowed(self, units: slice, clip: Clip) -> float:
        """How far the sum of these units may be off."""
        return SUM * clip.norm * (1.0 if self.shares is None else float(self.shares[units].sum()))


class BookKeeping:
    """`ClippedSum` for one model and loss, by one backward pass.

    Guarantee: removing the items of one subject moves the sum by at most what the clip allows, times 1 + SLACK, for all
    finite parameters, inputs and targets.

    >>> model = nn.Linear(2, 2)
    >>> engine = BookKeeping(model, nn.functional.cross_entropy)
    >>> vector = torch.zeros(6)
    >>> clip = Clip(ClipPer.SUBJECT, Pool.MEAN, norm=0.5)
    >>> inputs, targets, groups = torch.ones(3, 2), torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1])
    >>> engine(vector, inputs, targets, groups, clip).total.abs().max() < 1e-6  # two opposite subjects, clipped alike
    tensor(True)
    """

    def __init__(self, model: nn.Module, loss: Loss, memory: int = MEMORY) -> None:
        self.model, self._loss, self._memory = model, loss, memory
        self._layout = Layout.of(model)
        self._by_shape: dict[Shape, Backend] = {}
        self._shape: Shape | None = None
        self._chosen: Backend | None = None
        self._most_items = 0
        self._scratch: Tensor | None = None

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        """Pool the gradients, at parameters `vector`, of a batch whose item i belongs to subject `groups[i]`.

        The total is in double precision where it was added up group by group.
        """
        vector = vector.detach()
        if not inputs.shape[0]:
            return ClippedTotal(torch.zeros_like(vector), 0)
        if not _finite(vector):  # a public fact, and the same answer whoever is in the batch
            return ClippedTotal(torch.zeros_like(vector), _count(groups, clip))
        program = self._prepare(vector, inputs, targets)
        grouping, numbers = self._grouping(vector, groups, clip, buckets)
        # Made before the program's mode is entered: what is handed to a caller must be an ordinary tensor.
        total, zeroed = torch.zeros_like(vector) if grouping.single else None, 0
        with program.mode():
            batch = _arrange(inputs, targets, groups, clip, vector.dtype, numbers)
            if total is None or not self._at_once(vector, batch, clip, total, grouping):
                total, zeroed = self._in_groups(vector, batch, clip, grouping)
        if clip.per is ClipPer.BATCH:
            mean = total[None].to(vector.dtype) / len(inputs)
            return pool_gradients(mean, torch.zeros(1, dtype=torch.int64), clip)
        return ClippedTotal(total, zeroed)

    def _prepare(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> Program:
        """Take the program for items of this shape: what was tried with one shape says nothing of another."""
        shape = inputs.shape[1:], targets.shape[1:], vector.dtype
        if shape != self._shape:
            if shape not in self._by_shape:
                self._by_shape[shape] = select_backend(self.model, self._loss, self._layout, vector, inputs, targets)
            self._shape, self._chosen = shape, self._by_shape[shape]
            self._most_items = max(1, self._memory // self._chosen.bytes_per_item)
        assert self._chosen is not None
        self._chosen.attach(vector)
        return self._chosen.program

    def _grouping(
        self, vector: Tensor, groups: Tensor, clip: Clip, buckets: Buckets | None
    ) -> tuple[SumGroups, NDArray[np.int64] | None]:
        """The groups of a batch's sum, and the numbers [item] by which it is put in order; None where it is one."""
        if clip.per in (ClipPer.NONE, ClipPer.BATCH):
            return UNGROUPED, None
        assert self._chosen is not None
        subjects = clip.per is ClipPer.SUBJECT
        buckets = buckets or Buckets.of(groups)
        key = buckets.expected_subjects, buckets.expected_items, buckets.largest, subjects
        if key not in self._chosen.groupings:
            terms = partial(self._chosen.terms, ONE_SUBJECT if subjects else ONE_ITEM)
            grouping = plan_groups(buckets, subjects, terms, self._most_items, vector.dtype)
            most = min(buckets.largest, MOST_TRIED + 1) if subjects else 1
            steady = all(self._chosen.steady(size, subjects) for size in range(1, most + 1))
            self._chosen.attach(vector)  # sizes were tried at other parameters
            self._chosen.groupings[key] = grouping, not (grouping.single and steady)
        grouping, ordered = self._chosen.groupings[key]
        return grouping, buckets.numbers if ordered else None

    def _at_once(self, vector: Tensor, batch: Piece, clip: Clip, total: Tensor, grouping: SumGroups) -> bool:
        """Add a whole batch up in the vector's own precision, if that is enough and possible."""
        items = batch.inputs.shape[0]
        if items > self._most_items or batch.numbers is not None or items > grouping.most(1):
            return False
        if not _may_fit(batch, clip, vector.dtype):
            return False
        size = self._fitting(vector, items)
        if size is None:
            return False
        played = self._played(vector, batch, clip, size)
        if played.bad is not None or (played.apart and not played.fits(SUM * clip.norm, clip, grouping)):
            return False
        views = self._layout.views(total)
        for share in played.shares:
            share.add(played.units, played.units.whole, played.weights, views)
        return clip.per is not ClipPer.NONE or _finite(total)

    def _in_groups(self, vector: Tensor, batch: Piece, clip: Clip, grouping: SumGroups) -> tuple[Tensor, int]:
        """The sum in double precision, group by group, and how many contributions were not finite."""
        total = _wide_zeros(vector.numel())
        batch = replace(batch, shares=grouping.shares(batch.units, batch.numbers))
        pieces = list(self._pieces(batch, grouping))
        assert self._chosen is not None
        self._chosen.attach(vector)  # sizes of subjects may have been tried at other parameters
        zeroed = sum([self._add(vector, piece, clip, total, grouping) for piece in pieces])
        if clip.per is ClipPer.NONE and not _finite(total):
            total.zero_()
            measured = replace(clip, per=ClipPer.ITEM, norm=MOST_NORM)
            zeroed = sum([self._add(vector, piece, measured, total, grouping) for piece in pieces])
        return total, zeroed

    def _add(self, vector: Tensor, piece: Piece, clip: Clip, total: Tensor, grouping: SumGroups) -> int:
        """Add a piece's contributions into `total`; how many were not finite."""
        items = piece.inputs.shape[0]
        if items > self._most_items and piece.units.count == 1:
            return self._add_large(vector, piece, clip, total)
        size = self._fitting(vector, items)
        if size is None and piece.units.count == 1 and items > 1:
            return self._add_large(vector, piece, clip, total)
        if size is None:  # in passes of a size that is trusted, with the same rows
            few = self._divided(piece, LEAST_ROWS)
            return sum([self._add(vector, some, clip, total, grouping) for some in few])
        played = self._played(vector, piece, clip, size)
        return self._add_played(vector, played, clip, total, grouping)

    def _played(self, vector: Tensor, piece: Piece, clip: Clip, size: int) -> "_PieceGradients":
        """A piece filled up to a size, its weights computed."""
        units = piece.units.extended(size - piece.inputs.shape[0])
        shares = self._run(piece, units)
        if clip.per in (ClipPer.NONE, ClipPer.BATCH):
            ones = vector.new_ones(piece.units.count)
            return _PieceGradients(piece, shares, units, None, _pad_weights(ones, units))
        found = gradient_lengths(shares, units)
        bad = None if _finite(found.squared) else ~torch.isfinite(found.squared[: piece.units.count])
        weights = _pad_weights(_weights(found.squared, piece, clip), units)
        return _PieceGradients(piece, shares, units, found, weights, bad)

    def _steady(self, size: int, batch: Piece) -> bool:
        """Whether units of so many items come out the same at every place."""
        assert self._chosen is not None
        return self._chosen.steady(size, batch.units.sizes is not None)

    def _places(self, batch: Piece) -> bool:
        """Whether some units need places of their own."""
        return not all(self._steady(run.size, batch) for run in batch.units.runs)

    def _fitting(self, vector: Tensor, items: int) -> int | None:
        """The size that a pass over so many items should have."""
        assert self._chosen is not None
        fitting = self._chosen.fitting
        if items not in fitting:
            fitting[items] = self._chosen.sizes.fitting(items)
            self._chosen.attach(vector)  # it was tried at other parameters
        return fitting[items]

    def _run(self, piece: Piece, units: Units) -> list[Share]:
        """Play a piece, filled up to the units that there are to be: with its own first item, which costs nothing."""
        assert self._chosen is not None
        inputs, targets = piece.inputs, piece.targets
        more = units.whole.items.stop - inputs.shape[0]
        if more:
            inputs = torch.cat([inputs, inputs[:1].expand(more, *inputs.shape[1:])])
            targets = torch.cat([targets, targets[:1].expand(more, *targets.shape[1:])])
        try:
            return merge_uses(self._chosen.program.run(self._loss, inputs, targets, units))
        except Unsupported as error:
            raise ModelError(f"The model computes something else than it was tried with: {error}.") from error

    def _add_played(
        self, vector: Tensor, played: "_PieceGradients", clip: Clip, total: Tensor, grouping: SumGroups
    ) -> int:
        """Group by group, so that a subject changes no other group than its own; how many were not finite.

        Where a norm is not certain, the reference tells not finite from only large.
        """
        zeroed = 0
        scratch = self._scratch = _like(self._scratch, vector)
        views = self._layout.views(scratch)
        for parts, uncertain in played.sums(clip, grouping):
            for part in parts:
                scratch.zero_()
                for share in played.shares:
                    share.add(played.units, part, played.weights, views)
                add_up(scratch, total)
            zeroed += sum(self._add_one_by_one(vector, _part(played.piece, u, u + 1), clip, total) for u in uncertain)
        return zeroed

    def _add_one_by_one(self, vector: Tensor, piece: Piece, clip: Clip, total: Tensor) -> int:
        """Every unit by the reference, but for those that only fill up."""
        counts = [True] * piece.units.count if piece.after is None else (piece.after != 0).tolist()
        masks = (one for one, real in zip(_each(piece.units.count), counts, strict=True) if real)
        return sum(self._by_reference(vector, _some(piece, one), clip, total) for one in masks)

    def _by_reference(self, vector: Tensor, piece: Piece, clip: Clip, total: Tensor) -> int:
        alone = clip if clip.per is ClipPer.SUBJECT else replace(clip, pool=Pool.SUM)
        with torch.inference_mode(False):
            inputs, targets = piece.inputs.clone(), piece.targets.clone()
            groups = torch.zeros(len(inputs), dtype=torch.int64)
            pooled = reference.clipped_sum(self.model, self._loss, vector, inputs, targets, groups, alone)
        total.add_(pooled.total, alpha=1.0 if piece.after is None else float(piece.after))
        return pooled.zeroed

    def _add_large(self, vector: Tensor, piece: Piece, clip: Clip, total: Tensor) -> int:
        """One unit that is larger than what is computed at once: its gradient is summed up first, then clipped."""
        own = torch.zeros_like(total)
        unclipped = Clip(ClipPer.NONE, Pool.SUM, clip.norm)
        for start in range(0, len(piece.inputs), self._most_items):
            part = slice(start, start + self._most_items)
            some = Piece(piece.inputs[part], piece.targets[part], Units.of_items(len(piece.inputs[part])))
            self._add(vector, some, unclipped, own, UNGROUPED)
        row = own[None] if piece.before is None else own[None] * piece.before
        pooled = pool_gradients(row, torch.zeros(1, dtype=torch.int64), Clip(ClipPer.ITEM, Pool.SUM, clip.norm))
        total.add_(pooled.total)
        return pooled.zeroed

    def _pieces(self, batch: Piece, grouping: SumGroups) -> Iterator[Piece]:
        """The batch in pieces that memory allows; units that are not steady in passes in which they have a place.

        Pieces hold whole groups, so that nobody's absence changes where the group of others is cut. A group that is
        too large for memory is divided by itself.
        """
        if batch.numbers is not None and self._places(batch):
            for run, group in grouping.groups(batch.units, batch.numbers):
                block = _part(batch, group.units.start, group.units.stop)
                yield from self._divided(block) if self._steady(run.size, batch) else _pad_to_places(block, run)
            return
        start = stop = items = 0
        for _, group in [] if grouping.single else grouping.groups(batch.units, batch.numbers):
            more = group.items.stop - group.items.start
            if items and items + more > self._most_items:
                yield from self._divided(_part(batch, start, stop))
                start, items = stop, 0
            stop, items = group.units.stop, items + more
        yield from self._divided(_part(batch, start, batch.units.count))

    def _divided(self, block: Piece, most_items: int | None = None) -> Iterator[Piece]:
        """Whole units that memory allows; a unit that is too large comes alone."""
        units = block.units
        most_items = _evenly(units.whole.items.stop, most_items or self._most_items)
        ends = np.cumsum(np.ones(units.count, np.int64) if units.sizes is None else units.sizes.numpy())
        start, items = 0, 0
        while start < units.count:
            stop = max(start + 1, int(np.searchsorted(ends, items + most_items, side="right")))
            yield _part(block, start, stop)
            start, items = stop, int(ends[stop - 1])


@dataclass(eq=False, slots=True)
class _PieceGradients:
    """A piece after its pass: shares, its units with those that fill it up, their lengths if asked for, and weights."""

    piece: Piece
    shares: list[Share]
    units: Units
    found: Lengths | None
    weights: Tensor  # [unit]; 0 for those that fill up
    bad: Tensor | None = None  # [unit]
    """Whose norm is not certain; None where everybody's is, also of those that fill up."""

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
        if rounding(products, self._load(units.whole, clip), self._kind) > allowed:
            return False
        return not self.apart or not any(self._heavy(run, clip, grouping).any() for run in units.runs)

    def sums(self, clip: Clip, grouping: SumGroups) -> Iterator[tuple[list[UnitRange], list[int]]]:
        """Every group in as few parts as its rounding allows, and the units whose norm is not certain."""
        units, whole = self.piece.units, self.piece.units.whole
        if grouping.single and self.bad is None and self.fits(self.piece.allowed(whole.units, clip), clip, grouping):
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
        load, allowed = self._load(group, clip), self.piece.allowed(group.units, clip)
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

    def _load(self, part: UnitRange, clip: Clip) -> float:
        """The lengths of all weighted parts of these units, added up."""
        if not self.apart:
            return float(_size(part)) * clip.norm
        loads = self._loads(part.units)
        total: float = (loads if self.bad is None else loads[~self.bad[part.units]]).sum().item()
        return total

    def _terms(self, run: UnitRun) -> int:
        return max((share.terms(self.units, run.size) for share in self.shares), default=1)


def _pad_to_places(block: Piece, run: UnitRun) -> Iterator[Piece]:
    """A group in passes in which every unit has its own place; who only fills up counts nothing."""
    assert block.numbers is not None
    alone = block.units.sizes is None
    for chosen, real in FixedPlaces().passes(block.numbers, run.size):
        places = torch.from_numpy(chosen)
        items = (places[:, None] * run.size + torch.arange(run.size)).view(-1)
        counts = torch.from_numpy(real).to(torch.get_default_dtype())
        yield Piece(
            block.inputs[items],
            block.targets[items],
            Units.of_items(len(chosen)) if alone else Units.of_sizes(np.full_like(chosen, run.size)),
            None if block.before is None else block.before[places],
            counts if block.after is None else block.after[places] * counts,
            None,
            None if block.shares is None else block.shares[chosen] * real,
        )


def _evenly(items: int, most: int) -> int:
    """The same number of pieces, but of nearly equal sizes, in steps in which passes are filled up.

    >>> _evenly(512, 145), _evenly(100, 145), _evenly(300, 145)
    (128, 145, 100)
    """
    even = round_size_up(-(-items // -(-items // most)), 1)
    return even if items > most and even <= most else most


def _size(part: UnitRange) -> int:
    return int(part.units.stop - part.units.start)


def _may_fit(batch: Piece, clip: Clip, kind: torch.dtype) -> bool:
    """Whether so many units could be summed at once, as far as their number tells."""
    count = batch.units.count
    return bool(
        clip.per in (ClipPer.NONE, ClipPer.BATCH) or rounding(count, count * clip.norm, kind) <= SUM * clip.norm
    )


def _arrange(
    inputs: Tensor,
    targets: Tensor,
    groups: Tensor,
    clip: Clip,
    kind: torch.dtype,
    numbers: NDArray[np.int64] | None,
) -> Piece:
    """The whole batch with its units: subjects where they are clipped as one, otherwise items."""
    if clip.per is ClipPer.SUBJECT:
        order, sizes = sort_into_runs(groups, numbers)
        units = Units.of_sizes(sizes)
        before = units.sizes.to(kind).reciprocal_() if clip.pool is Pool.MEAN and units.sizes is not None else None
        if order is not None:
            inputs, targets = inputs[order], targets[order]
            numbers = None if numbers is None else numbers[order.numpy()][np.cumsum(sizes) - 1]
        return Piece(inputs, targets, units, before=before, numbers=numbers)
    after = None
    if clip.per is ClipPer.ITEM and clip.pool is Pool.MEAN:
        after = 1 / torch.bincount(groups).to(kind)[groups]
    if numbers is not None and (numbers[1:] < numbers[:-1]).any():
        order = torch.from_numpy(np.argsort(numbers, kind="stable"))
        inputs, targets, numbers = inputs[order], targets[order], numbers[order.numpy()]
        after = None if after is None else after[order]
    return Piece(inputs, targets, Units.of_items(inputs.shape[0]), after=after, numbers=numbers)


def _count(groups: Tensor, clip: Clip) -> int:
    """How many vectors are clipped in a batch."""
    if clip.per is ClipPer.BATCH:
        return 1
    return len(torch.unique(groups)) if clip.per is ClipPer.SUBJECT else len(groups)


def _weights(squared: Tensor, piece: Piece, clip: Clip) -> Tensor:
    """What each unit's gradient is multiplied by in the sum [unit], from its squared norm.

    Guarantee: no clipped contribution is longer than the clip norm by more than the norm was too short. The weight is a
    normal number: squares that are finite are below 2¹²⁸, and clip norms above 2⁻⁵⁰.
    """
    limit = clip.norm * (1 - 2 * MARGIN * unit_roundoff(squared.dtype))
    weights = squared if len(squared) == piece.units.count else squared[: piece.units.count]
    if piece.before is not None:
        weights = (weights * piece.before).mul_(piece.before)
    weights = weights.clamp(min=limit * limit).rsqrt_().mul_(constant_tensor(limit, squared.dtype))
    for factor in (piece.before, piece.after):
        if factor is not None:
            weights.mul_(factor)
    return weights


def _pad_weights(weights: Tensor, units: Units) -> Tensor:
    """Weights [unit] with a zero for every unit that fills up."""
    more = units.count - len(weights)
    return torch.cat([weights, weights.new_zeros(more)]) if more else weights


@torch.inference_mode(False)
def _wide_zeros(size: int) -> Tensor:
    """What is handed to a caller must be an ordinary tensor, also where a program runs in inference mode.

    Made by numpy, which asks the system for zeros instead of writing them.
    """
    return torch.from_numpy(np.zeros(size))


@torch.inference_mode(False)
def _like(buffer: Tensor | None, vector: Tensor) -> Tensor:
    """The buffer, or another where it does not fit: fresh memory costs as much as adding up does."""
    return buffer if buffer is not None and buffer.dtype is vector.dtype else torch.empty_like(vector)


def _finite(values: Tensor) -> bool:
    # A sum is much faster than a test of each value, and finite unless a value is not, or they are very large.
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _part(batch: Piece, start: int, stop: int) -> Piece:
    """Neighbouring units from `start` to `stop`."""
    units, sizes = slice(start, stop), batch.units.sizes
    ends = None if sizes is None else np.concatenate([[0], np.cumsum(sizes.numpy())])
    items = units if ends is None else slice(int(ends[start]), int(ends[stop]))
    return Piece(
        batch.inputs[items],
        batch.targets[items],
        Units.of_items(stop - start) if sizes is None else Units.of_sizes(sizes[units].numpy()),
        None if batch.before is None else batch.before[units],
        None if batch.after is None else batch.after[units],
        None if batch.numbers is None else batch.numbers[units],
        None if batch.shares is None else batch.shares[units],
    )


def _some(piece: Piece, chosen: Tensor) -> Piece:
    """The units that a mask [unit] chooses."""
    items, sizes = piece.units.spread(chosen), piece.units.sizes
    return Piece(
        piece.inputs[items],
        piece.targets[items],
        Units.of_items(int(chosen.sum())) if sizes is None else Units.of_sizes(sizes[chosen].numpy()),
        None if piece.before is None else piece.before[chosen],
        None if piece.after is None else piece.after[chosen],
        None if piece.numbers is None else piece.numbers[chosen.numpy()],
        None if piece.shares is None else piece.shares[chosen.numpy()],
    )


def _each(count: int) -> Iterator[Tensor]:
    """A mask of its own for every unit."""
    for unit in range(count):
        one = torch.zeros(count, dtype=torch.bool)
        one[unit] = True
        yield one
