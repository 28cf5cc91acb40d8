"""The fast way: one backward pass for the clipped sum of any policy.

Each layer keeps its inputs and the gradient of its outputs. From these come the norms, and then the weighted sum by one
product for each layer; no gradient per item of a large layer is ever formed, and no second pass is made. Before an
engine is trusted with a model, it is compared with the reference on items made up for the purpose.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from wholegrain.errors import ModelError
from wholegrain.gradients import reference
from wholegrain.gradients.choice import Chosen, choose
from wholegrain.gradients.layers.base import Cannot
from wholegrain.gradients.norms import squares, united
from wholegrain.gradients.parameters import Layout
from wholegrain.gradients.pooling import Clip, ClipPer, Pool, Pooled, pool_gradients
from wholegrain.gradients.programs import Program
from wholegrain.gradients.reference import Loss
from wholegrain.gradients.shares import Share
from wholegrain.gradients.units import Units, arranged

MEMORY = 1 << 28
"""Bytes that the activations of a batch may take, unless told otherwise. More is not faster: it is more page faults."""
# Roundings between a squared norm and a weighted sum, from above.
MARGIN = 32


Shape = tuple[torch.Size, torch.Size, torch.dtype]
"""Of an item, of its target, and the kind of numbers."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Whole units of a batch that are computed at once.

    A unit's gradient is multiplied by `before` when it is measured and summed, by `after` only when it is summed: the
    mean of a subject's gradients, or the mean of its clipped gradients.
    """

    inputs: Tensor
    targets: Tensor
    units: Units
    before: Tensor | None = None  # [unit]
    after: Tensor | None = None  # [unit]


class BookKeeping:
    """`ClippedSum` for one model and loss, by one backward pass.

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
        self._by_shape: dict[Shape, Chosen] = {}
        self._shape: Shape | None = None
        self._chosen: Chosen | None = None
        self._most_items = 0

    def __call__(self, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip) -> Pooled:
        """Pool the gradients, at parameters `vector`, of a batch whose item i belongs to subject `groups[i]`."""
        vector = vector.detach()
        if not inputs.shape[0]:
            return Pooled(torch.zeros_like(vector), 0)
        program = self._prepare(vector, inputs, targets)
        total = vector.new_zeros(vector.shape)
        with program.mode():
            batch = _arrange(inputs, targets, groups, clip, vector.dtype)
            pieces = [batch] if inputs.shape[0] <= self._most_items else list(self._pieces(batch))
            zeroed = sum([self._add(vector, piece, clip, total) for piece in pieces])
            if clip.per is ClipPer.NONE and not _finite(total):
                total.zero_()
                zeroed = sum([self._add_carefully(vector, piece, clip, total) for piece in pieces])
        if clip.per is ClipPer.BATCH:
            return pool_gradients(total[None] / len(inputs), torch.zeros(1, dtype=torch.int64), clip)
        return Pooled(total, zeroed)

    def _prepare(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> Program:
        """Take the program for items of this shape: what was tried with one shape says nothing of another."""
        shape = inputs.shape[1:], targets.shape[1:], vector.dtype
        if shape != self._shape:
            if shape not in self._by_shape:
                self._by_shape[shape] = choose(self.model, self._loss, self._layout, vector, inputs, targets)
            self._shape, self._chosen = shape, self._by_shape[shape]
            self._most_items = max(1, self._memory // self._chosen.bytes_per_item)
        assert self._chosen is not None
        self._chosen.attach(vector)
        return self._chosen.program

    def _add(self, vector: Tensor, piece: Piece, clip: Clip, total: Tensor) -> int:
        """Add a piece's contributions into `total`; how many were not finite."""
        if piece.inputs.shape[0] > self._most_items:
            return self._add_large(vector, piece, clip, total)
        shares = self._run(piece)
        if clip.per in (ClipPer.NONE, ClipPer.BATCH):
            self._sum(shares, piece.units, total.new_ones(piece.units.count), total)
            return 0
        squared = squares(shares, piece.units)
        if not _finite(squared):
            return self._add_carefully(vector, piece, clip, total)
        self._sum(shares, piece.units, _weights(squared, piece, clip), total)
        return 0

    def _run(self, piece: Piece) -> list[Share]:
        assert self._chosen is not None
        try:
            return united(self._chosen.program.run(self._loss, piece.inputs, piece.targets, piece.units))
        except Cannot as error:
            raise ModelError(f"The model computes something else than it was tried with: {error}.") from error

    def _sum(self, shares: list[Share], units: Units, weights: Tensor, total: Tensor) -> None:
        views = self._layout.views(total)
        for share in shares:
            share.add(units, weights, views)

    def _add_carefully(self, vector: Tensor, piece: Piece, clip: Clip, total: Tensor) -> int:
        """Where a norm is not finite, find out whose; the reference tells not finite from only large."""
        if not _finite(vector):
            return piece.units.count
        good = torch.isfinite(squares(self._run(piece), piece.units))
        if bool(good.any()):
            self._add(vector, _some(piece, good), clip, total)
        return sum(self._by_reference(vector, _some(piece, one), clip, total) for one in _each(~good))

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
        for start in range(0, len(piece.inputs), self._most_items):
            part = slice(start, start + self._most_items)
            items = Piece(piece.inputs[part], piece.targets[part], Units.of_items(len(piece.inputs[part])))
            self._sum(self._run(items), items.units, own.new_ones(items.units.count), own)
        row = own[None] if piece.before is None else own[None] * piece.before
        pooled = pool_gradients(row, torch.zeros(1, dtype=torch.int64), Clip(ClipPer.ITEM, Pool.SUM, clip.norm))
        total.add_(pooled.total)
        return pooled.zeroed

    def _pieces(self, batch: Piece) -> Iterator[Piece]:
        """The batch in pieces of whole units that memory allows; a unit that is too large comes alone."""
        units = batch.units
        ends = np.cumsum(np.ones(units.count, np.int64) if units.sizes is None else units.sizes.numpy())
        start, items = 0, 0
        while start < units.count:
            stop = max(start + 1, int(np.searchsorted(ends, items + self._most_items, side="right")))
            yield _part(batch, slice(items, int(ends[stop - 1])), slice(start, stop))
            start, items = stop, int(ends[stop - 1])


def _arrange(inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip, kind: torch.dtype) -> Piece:
    """The whole batch with its units: subjects where they are clipped as one, otherwise items."""
    if clip.per is ClipPer.SUBJECT:
        order, sizes = arranged(groups)
        units = Units.of_sizes(sizes)
        before = 1 / units.sizes.to(kind) if clip.pool is Pool.MEAN and units.sizes is not None else None
        if order is not None:
            inputs, targets = inputs[order], targets[order]
        return Piece(inputs, targets, units, before=before)
    after = None
    if clip.per is ClipPer.ITEM and clip.pool is Pool.MEAN:
        after = 1 / torch.bincount(groups).to(kind)[groups]
    return Piece(inputs, targets, Units.of_items(inputs.shape[0]), after=after)


def _weights(squared: Tensor, piece: Piece, clip: Clip) -> Tensor:
    """What each unit's gradient is multiplied by in the sum [unit], from its squared norm, which is overwritten.

    Guarantee: no clipped contribution is longer than the clip norm, by a margin wider than rounding.
    """
    limit = clip.norm * (1 - MARGIN * torch.finfo(squared.dtype).eps)
    if piece.before is not None:
        squared.mul_(piece.before).mul_(piece.before)
    weights = squared.clamp_(min=limit * limit).rsqrt_().mul_(limit)
    for factor in (piece.before, piece.after):
        if factor is not None:
            weights.mul_(factor)
    return weights


def _finite(values: Tensor) -> bool:
    # A sum is much faster than a test of each value, and finite unless a value is not, or they are very large.
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _part(batch: Piece, items: slice, units: slice) -> Piece:
    """Some neighbouring units, which have these items."""
    sizes = batch.units.sizes
    return Piece(
        batch.inputs[items],
        batch.targets[items],
        Units.of_items(items.stop - items.start) if sizes is None else Units.of_sizes(sizes[units].numpy()),
        None if batch.before is None else batch.before[units],
        None if batch.after is None else batch.after[units],
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
    )


def _each(chosen: Tensor) -> Iterator[Tensor]:
    """A mask of its own for every unit of a mask."""
    for unit in chosen.nonzero()[:, 0]:
        one = torch.zeros_like(chosen)
        one[unit] = True
        yield one
