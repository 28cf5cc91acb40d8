"""A clipped sum by a program in C: what programs for different models have in common."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.plain_arithmetic import in_plain_arithmetic
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.rounding import all_finite


class CompiledSum(ABC):
    """`ClippedSum` for one model and its loss.

    Guarantee: removing the items of one subject moves the sum by at most what the clip allows, times 1 + SLACK, for all
    finite parameters, inputs and targets. What is computed of a unit is a function of its own items and of the
    parameters, to the last bit. Its length is off by γ_d of double precision, for d parameters; a sum of n units by
    n·2⁻³⁹ C + n²·2⁻⁶⁸ C at most, with and without the subject.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self._loss = model, loss
        self._layout = Layout.of(model)

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

        The total is in double precision; no group of it has to be kept apart.
        """
        vector = vector.detach().contiguous()
        total = torch.zeros(self._layout.size, dtype=torch.float64)
        if not inputs.shape[0]:
            return ClippedTotal(total, 0)
        if not all_finite(vector):  # a public fact, and the same answer whoever is in the batch
            return ClippedTotal(total, clip.count(groups))
        return ClippedTotal(total, self._add_to(total, vector, inputs, targets, groups, clip))

    @abstractmethod
    def _add_to(
        self, total: Tensor, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip
    ) -> int:
        """Add the clipped sum of a batch to `total`; how many units were left out of it."""


def clip_facts(clip: Clip) -> tuple[float, bool]:
    """A clip as the programs are told of it: the norm, and whether a unit's items are averaged."""
    return math.inf if clip.per is ClipPer.NONE else clip.norm, clip.pool is Pool.MEAN or clip.per is ClipPer.BATCH
