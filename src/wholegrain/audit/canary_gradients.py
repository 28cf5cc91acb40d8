"""Gradients that are made up: which rows have them, told by their targets, and how they are clipped with real ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool, pool_gradients
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.tasks import Targets

Codes = NDArray[np.int64]

BASE = 1 << 40
"""Class numbers from here on are codes of made-up rows."""
NUMBER_BASE = 1 << 10
"""Other targets are numbers within [−1, 1]; from here on the first of a row is a code. float32 is exact up to 2²⁴."""
MOST_KNOWN = 64
"""Batches of up to so many made-up rows are remembered."""


def made_up_targets(codes: Codes, like: Targets) -> Targets:
    """Targets of the form of others that say which made-up rows these are."""
    if like.ndim == 1:
        return BASE + codes
    assert NUMBER_BASE + codes.max(initial=0) < 1 << 24, "float32 cannot tell so many codes apart"
    targets = np.zeros((len(codes), *like.shape[1:]), np.float32)
    targets[:, 0] = NUMBER_BASE + codes
    return targets


def made_up_codes(targets: Any) -> Any:
    """The codes of rows with such targets, an array or a tensor; those of real rows are below 0."""
    if targets.ndim == 1:
        return targets - BASE
    first = targets[:, 0]
    return (first.long() if isinstance(first, Tensor) else first.astype(np.int64)) - NUMBER_BASE


class ExtendedClippedSum:
    """`ClippedSum` on a vector that has the block behind the model's parameters.

    Real rows go through the run's own gradients, made-up ones through the same engine on the block. Contributions add
    up over subjects, so that the parts put together are what one engine would give; only a clip of the whole batch has
    to see the sum first.
    """

    def __init__(self, real: ClippedSum, size: int, coordinates: Tensor, lengths: Tensor, block: int) -> None:
        """`real` are the gradients of a model of so many parameters; code c moves coordinate `coordinates[c]`."""
        self._real, self._size, self._coordinates = real, size, coordinates

        def loss(outputs: Tensor, codes: Tensor) -> Tensor:
            return (outputs[:, 0] * lengths[codes]).mean()

        self._engine: ClippedSum = BookKeeping(nn.Sequential(nn.Embedding(block, 1), nn.Flatten()), loss)
        self._known: dict[tuple[bytes, bytes, Clip], ClippedTotal] = {}

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        """Pool a batch in which both kinds of rows may be."""
        codes = made_up_codes(targets)
        ours = codes >= 0
        if not ours.any():
            real = self._real(vector[: self._size], inputs, targets, groups, clip, buckets)
            return ClippedTotal(torch.cat([real.total, torch.zeros_like(vector[self._size :])]), real.zeroed)
        alone = Clip(ClipPer.NONE, Pool.SUM, clip.norm) if clip.per is ClipPer.BATCH else clip
        real = self._real(
            vector[: self._size],
            inputs[~ours],
            targets[~ours],
            _renumber(groups[~ours]),
            alone,
            _chosen(buckets, ~ours),
        )
        made_up = self._made_up(
            vector[self._size :], codes[ours], _renumber(groups[ours]), alone, _chosen(buckets, ours)
        )
        pooled = ClippedTotal(torch.cat([real.total, made_up.total]), real.zeroed + made_up.zeroed)
        if clip.per is not ClipPer.BATCH or not len(targets):
            return pooled
        mean = pooled.total[None].to(vector.dtype) / len(targets)
        return pool_gradients(mean, torch.zeros(1, dtype=torch.int64), clip)

    def _made_up(
        self, vector: Tensor, codes: Tensor, groups: Tensor, clip: Clip, buckets: Buckets | None
    ) -> ClippedTotal:
        """Made-up gradients are the same at all parameters: those of a few rows are computed once."""
        if len(codes) > MOST_KNOWN:
            return self._engine(vector, self._coordinates[codes][:, None], codes, groups, clip, buckets)
        if clip.per is ClipPer.NONE:  # then nothing but how often each code is there makes a difference
            codes, groups = codes.sort().values, groups[:0]
        key = codes.numpy().tobytes(), groups.numpy().tobytes(), clip
        if key not in self._known:
            groups = groups if len(groups) else torch.zeros_like(codes)
            self._known[key] = self._engine(vector, self._coordinates[codes][:, None], codes, groups, clip)
        return self._known[key]


def _chosen(buckets: Buckets | None, items: Tensor) -> Buckets | None:
    """Of some of a batch's items."""
    return None if buckets is None else replace(buckets, items=buckets.items[items.numpy()])


def _renumber(groups: Tensor) -> Tensor:
    """Groups numbered from 0 without gaps."""
    return groups if not len(groups) else torch.unique(groups, return_inverse=True)[1]
