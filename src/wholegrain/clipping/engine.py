"""The fast way: one backward pass for the clipped sum of any policy ("book-keeping", Bu et al. 2023).

The model's program was recorded and proved to keep rows apart. It gives what every parameter's gradient is a sum of;
from this come the norms ("ghost clipping", Li et al. 2022), and then the weighted sum by one product for each matrix.
No gradient per item of a large matrix is ever formed, and no second pass is made.

What floating point may do to the result is bounded for all finite parameters, inputs and targets: docs/arithmetic.md.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain.clipping.backend_selection import Backend, prove_backend
from wholegrain.clipping.batch_invariance import LEAST_ROWS
from wholegrain.clipping.clip_units import Buckets, Units
from wholegrain.clipping.clipping import MOST_NORM, Clip, ClippedTotal, ClipPer, Pool, pool_gradients
from wholegrain.clipping.devices import USUAL
from wholegrain.clipping.gradient_norms import Uses, gradient_lengths, merge_uses
from wholegrain.clipping.heap import keep_freed_memory
from wholegrain.clipping.kernels import MOST_TRIED
from wholegrain.clipping.parameter_sums import AddBuffers, LazyZeros, SingleSums, SplitTotal, WideSums
from wholegrain.clipping.parameters import Layout, Views
from wholegrain.clipping.piece_gradients import PieceGradients, compute_weights, may_fit, pad_weights
from wholegrain.clipping.pieces import (
    Piece,
    arrange_batch,
    divide,
    each_unit,
    fill_up,
    pad_to_places,
    take_part,
    take_some,
    whole_groups,
)
from wholegrain.clipping.plain_arithmetic import in_plain_arithmetic
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.rounding import SUM, all_finite
from wholegrain.clipping.sum_groups import SumGroups, narrow_adds, plan_groups
from wholegrain.clipping.traced import TracedGradients
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.models.dropout import DropoutCoins

MEMORY = 1 << 28
"""Bytes that the activations of a batch may take, unless told otherwise. More is not faster: it is more page faults."""


Shape = tuple[torch.Size, torch.Size, torch.dtype]
"""Of an item, of its target, and the kind of numbers."""


SMALL = 1 << 14
"""Parameters of a model whose sum is copied from one place, rather than made anew in every step."""
ONE_ITEM = Units.of_items(1)
ONE_SUBJECT = Units.of_sizes(np.array([1]))
UNGROUPED = SumGroups(True, lambda size: 1, lambda size: sys.maxsize)


class BookKeeping(DropoutCoins):
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
        keep_freed_memory()
        self.reason: str | None = None
        """Why units are computed one after the other, where they are."""
        self._layout = Layout.of(model)
        self._by_shape: dict[Shape, Backend | str] = {}
        self._shape: Shape | None = None
        self._chosen: Backend | None = None
        self._most_items = 0
        self._small: Views | None = None
        self._buffers: AddBuffers | None = None
        self._units: UnitPasses | None = None

    @in_plain_arithmetic
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

        The total is in double precision where it was added up in many parts.
        """
        vector = vector.detach()
        if not inputs.shape[0]:
            return ClippedTotal(torch.zeros_like(vector), 0)
        if not all_finite(vector):  # a public fact, and the same answer whoever is in the batch
            return ClippedTotal(torch.zeros_like(vector), clip.count(groups))
        program = self._prepare(vector, inputs, targets)
        if program is None:
            return self._by_units(vector, inputs, targets, groups, clip, buckets)
        return self._sum(program, vector, inputs, targets, groups, clip, buckets)

    def _sum(
        self,
        program: TracedGradients,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None,
    ) -> ClippedTotal:
        grouping, numbers = self._find_groups(vector, groups, clip, buckets)
        # Made before the program's mode is entered: what is handed to a caller must be an ordinary tensor.
        single = self._single_total(vector) if grouping.single else None
        total, zeroed = None, 0
        with program.mode():
            batch = arrange_batch(inputs, targets, groups, clip, vector.dtype, numbers)
            if single is not None:
                total = self._at_once(vector, batch, clip, single, grouping)
            if total is None:
                total, zeroed = self._in_groups(vector, batch, clip, grouping)
        if self._small is not None and total is self._small.vector:
            total = total.clone()
        if clip.per is ClipPer.BATCH:
            mean = total[None].to(vector.dtype) / len(inputs)
            return pool_gradients(mean, torch.zeros(1, dtype=torch.int64), clip)
        return ClippedTotal(total, zeroed)

    def _prepare(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> TracedGradients | None:
        """Take the program for items of this shape; None where there is none."""
        shape = inputs.shape[1:], targets.shape[1:], vector.dtype
        if shape != self._shape:
            if shape not in self._by_shape:
                given = self.model, self._loss, self._layout, inputs, targets, self._memory
                self._by_shape[shape] = prove_backend(*given)
            found = self._by_shape[shape]
            self._shape, self._chosen = shape, None if isinstance(found, str) else found
            self.reason = found if isinstance(found, str) else None
            self._most_items = self._chosen.most_items if self._chosen is not None else 0
        if self._chosen is None:
            return None
        self._chosen.watch.require_same()
        self._chosen.program.attach(vector)
        return self._chosen.program

    def _by_units(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None,
    ) -> ClippedTotal:
        """One unit after the other."""
        if self._units is None:
            self._units = UnitPasses(self.model, self._loss, USUAL)
        return self._units(vector, inputs, targets, groups, clip, buckets)

    def _find_groups(
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
            unordered = grouping.single and all(self._chosen.steady(size, subjects) for size in range(1, most + 1))
            self._chosen.program.attach(vector)  # sizes were tried at other parameters
            self._chosen.groupings[key] = grouping, not unordered
        grouping, ordered = self._chosen.groupings[key]
        return grouping, buckets.numbers if ordered else None

    def _single_total(self, vector: Tensor) -> Views:
        """A vector to sum up in, with its views. For a small model it is kept, because views cost as much as sums."""
        if vector.numel() > SMALL:
            return Views.of(self._layout, torch.empty_like(vector))
        if self._small is None or self._small.vector.dtype is not vector.dtype:
            self._small = Views.of(self._layout, torch.empty_like(vector))
        return self._small

    def _at_once(self, vector: Tensor, batch: Piece, clip: Clip, total: Views, grouping: SumGroups) -> Tensor | None:
        """The sum of a whole batch in the vector's own precision, if that is enough and possible."""
        items = batch.inputs.shape[0]
        if items > self._most_items or batch.numbers is not None or items > grouping.most(1):
            return None
        assert self._chosen is not None
        if not may_fit(batch, clip, vector.dtype):
            return None
        size = self._find_size(vector, items)
        if size is None:
            return None
        computed = self._compute(vector, batch, clip, size)
        if computed.bad is not None or (computed.apart and not computed.fits(SUM * clip.norm, clip, grouping)):
            return None
        zeros = LazyZeros(total)
        sums = SingleSums(zeros)
        for share in computed.shares:
            share.add(computed.units, computed.units.whole, computed.weights, sums)
        zeros.settle()
        return total.vector if clip.per is not ClipPer.NONE or all_finite(total.vector) else None

    def _in_groups(self, vector: Tensor, batch: Piece, clip: Clip, grouping: SumGroups) -> tuple[Tensor, int]:
        """The sum, group by group, and how many contributions were not finite."""
        batch = replace(batch, shares=grouping.shares(batch.units, batch.numbers))
        pieces = list(self._cut(batch, grouping))
        total = self._begin_total(vector, batch, clip, 2 * len(pieces))
        assert self._chosen is not None
        self._chosen.program.attach(vector)  # sizes of subjects may have been tried at other parameters
        zeroed = sum([self._add(vector, piece, clip, total, grouping) for piece in pieces])
        if clip.per is ClipPer.NONE and not all_finite(total.settle()):
            total.wide.clear()
            measured = replace(clip, per=ClipPer.ITEM, norm=MOST_NORM)
            zeroed = sum([self._add(vector, piece, measured, total, grouping) for piece in pieces])
        return total.settle(), zeroed

    def _begin_total(self, vector: Tensor, batch: Piece, clip: Clip, parts: int) -> SplitTotal:
        """A sum to begin; of a large model in its own precision, where about so many parts can be added up in it."""
        wide = self._wide_zeros(vector.numel())
        adds = narrow_adds(batch.units.count, vector.dtype)
        if vector.numel() <= SMALL or clip.per in (ClipPer.NONE, ClipPer.BATCH) or adds < parts:
            return SplitTotal(wide)
        narrow = _ordinary(vector.numel(), vector.dtype)
        return SplitTotal(wide, LazyZeros(Views.of(self._layout, narrow)), adds, batch.units.count)

    @torch.inference_mode(False)  # as with a single total: what a caller gets must be an ordinary tensor
    def _wide_zeros(self, size: int) -> LazyZeros:
        return LazyZeros(Views.of(self._layout, _ordinary(size, torch.float64)))

    def _add(self, vector: Tensor, piece: Piece, clip: Clip, total: SplitTotal, grouping: SumGroups) -> int:
        """Add a piece's contributions into `total`; how many were not finite."""
        items = piece.inputs.shape[0]
        if items > self._most_items and piece.units.count == 1:
            return self._add_unit(vector, piece, clip, total)
        size = self._find_size(vector, items)
        if size is None and piece.units.count == 1 and items > 1:
            return self._add_unit(vector, piece, clip, total)
        if (
            size is None
        ):  # in passes of a size that is trusted, with the same rows; groups are not cut by their neighbours
            few = (some for group in whole_groups(piece, grouping) for some in divide(group, LEAST_ROWS))
            return sum([self._add(vector, some, clip, total, grouping) for some in few])
        computed = self._compute(vector, piece, clip, size)
        return self._add_gradients(vector, computed, clip, total, grouping)

    def _compute(self, vector: Tensor, piece: Piece, clip: Clip, size: int) -> PieceGradients:
        """A piece filled up to a size, its weights computed."""
        units = piece.units.pad(size - piece.inputs.shape[0])
        uses = self._run(piece, units)
        if clip.per in (ClipPer.NONE, ClipPer.BATCH):
            ones = vector.new_ones(piece.units.count)
            return PieceGradients(piece, uses.shares, units, None, pad_weights(ones, units))
        found = gradient_lengths(uses, units)
        bad = None if all_finite(found.squared) else ~torch.isfinite(found.squared[: piece.units.count])
        weights = pad_weights(compute_weights(found.squared, piece, clip), units)
        return PieceGradients(piece, uses.shares, units, found, weights, bad, max(map(len, uses.groups)))

    def _is_steady(self, size: int, batch: Piece) -> bool:
        """Whether units of so many items come out the same at every place."""
        assert self._chosen is not None
        return self._chosen.steady(size, batch.units.sizes is not None)

    def _needs_places(self, batch: Piece) -> bool:
        """Whether some units need places of their own."""
        return not all(self._is_steady(run.size, batch) for run in batch.units.runs)

    def _find_size(self, vector: Tensor, items: int) -> int | None:
        """The size that a pass over so many items should have."""
        assert self._chosen is not None
        sizes = self._chosen.pass_sizes
        if items not in sizes:
            sizes[items] = self._chosen.sizes.fit(items)
            self._chosen.program.attach(vector)  # it was tried at other parameters
        return sizes[items]

    def _run(self, piece: Piece, units: Units) -> Uses:
        """Play a piece, filled up to the units that there are to be: with its own first item, which costs nothing."""
        assert self._chosen is not None
        inputs, targets = fill_up(piece, units.whole.items.stop)
        return merge_uses(self._chosen.program.run(inputs, targets, units))

    def _add_gradients(
        self, vector: Tensor, computed: PieceGradients, clip: Clip, total: SplitTotal, grouping: SumGroups
    ) -> int:
        """Group by group, so that a subject changes no other group than its own; how many were not finite.

        Where a norm is not certain, the gradient itself tells not finite from only large.
        """
        zeroed = 0
        for parts, uncertain in computed.plan_sums(clip, grouping):
            for part in parts:
                load = computed.load(part, clip) / clip.norm if computed.uses > 1 else 0.0
                sums = WideSums(total.take(computed.uses, load), self._add_buffers(vector))
                for share in computed.shares:
                    share.add(computed.units, part, computed.weights, sums)
            zeroed += sum(
                self._add_one_by_one(vector, take_part(computed.piece, u, u + 1), clip, total) for u in uncertain
            )
        return zeroed

    def _add_buffers(self, vector: Tensor) -> AddBuffers:
        if self._buffers is None or self._buffers.product.dtype is not vector.dtype:
            self._buffers = AddBuffers.like(vector)
        return self._buffers

    def _add_one_by_one(self, vector: Tensor, piece: Piece, clip: Clip, total: SplitTotal) -> int:
        """Every unit by itself, but for those that only fill up."""
        counts = [True] * piece.units.count if piece.after is None else (piece.after != 0).tolist()
        masks = (one for one, real in zip(each_unit(piece.units.count), counts, strict=True) if real)
        return sum(self._add_unit(vector, take_some(piece, one), clip, total) for one in masks)

    def _add_unit(self, vector: Tensor, piece: Piece, clip: Clip, total: SplitTotal) -> int:
        """One unit whose norm is not certain, or that is large: its gradient is summed up first, then clipped.

        By the program that was proved; the model itself could leave something behind for others.
        """
        own = self._wide_zeros(vector.numel())
        unclipped = Clip(ClipPer.NONE, Pool.SUM, clip.norm)
        for start in range(0, len(piece.inputs), self._most_items):
            part = slice(start, start + self._most_items)
            some = Piece(piece.inputs[part], piece.targets[part], Units.of_items(len(piece.inputs[part])))
            self._add(vector, some, unclipped, SplitTotal(own), UNGROUPED)
        row = own.settle()[None] if piece.before is None else own.settle()[None] * piece.before
        pooled = pool_gradients(row, torch.zeros(1, dtype=torch.int64), Clip(ClipPer.ITEM, Pool.SUM, clip.norm))
        total.wide.settle().add_(pooled.total, alpha=1.0 if piece.after is None else float(piece.after))
        return pooled.zeroed

    def _cut(self, batch: Piece, grouping: SumGroups) -> Iterator[Piece]:
        """The batch in pieces that memory allows; units that are not steady in passes in which they have a place.

        Pieces hold whole groups, so that nobody's absence changes where the group of others is cut. A group that is
        too large for memory is divided by itself.
        """
        placed = batch.numbers is not None and self._needs_places(batch)
        start = stop = items = 0
        for run, group in [] if grouping.single and not placed else grouping.groups(batch.units, batch.numbers):
            alone = placed and not self._is_steady(run.size, batch)
            more = group.items.stop - group.items.start
            if items and (alone or items + more > self._most_items):
                yield from divide(take_part(batch, start, stop), self._most_items)
                start, items = stop, 0
            stop, items = group.units.stop, items + more
            if alone:
                yield from pad_to_places(take_part(batch, start, stop), run)
                start, items = stop, 0
        if start < batch.units.count:
            yield from divide(take_part(batch, start, batch.units.count), self._most_items)


@torch.inference_mode(False)
def _ordinary(size: int, kind: torch.dtype) -> Tensor:
    """A vector that a caller may write into, also outside of inference mode."""
    return torch.empty(size, dtype=kind)
