"""A sum in parts, which several processes can share: every subject is in one part, by a number of its own.

How many parts there are is a public setting. So one subject more or less changes its own part and no other, and the sum
of each part has the bound of any sum (docs/arithmetic.md). Parts are added up in double precision, in their order: the
result is the same to the last bit, whoever computed which part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer
from wholegrain.clipping.parameter_sums import BLOCK
from wholegrain.clipping.reference import ClippedSum, HasItemCoins
from wholegrain.clipping.subject_updates import LocalUpdate, SubjectUpdates
from wholegrain.errors import SpecError


@dataclass(frozen=True, eq=False)
class SumPart:
    """All that a part of a sum is computed from, as in a call of `ClippedSum`.

    `local` are the steps that a subject takes by itself, and `key` is that of dropout's coins, where there are any.
    Private: items, groups and buckets.
    """

    vector: Tensor
    inputs: Tensor
    targets: Tensor
    groups: Tensor
    clip: Clip
    buckets: Buckets | None
    local: LocalUpdate | None = None
    key: int | None = None


ComputePart = Callable[[SumPart], ClippedTotal]
SpreadParts = Callable[[Sequence[SumPart | None], ComputePart], Sequence[ClippedTotal]]
"""Has parts computed, here or elsewhere, and gives their sums in the order of the parts; None is a part without items.

Which process computes a part may follow from its place alone, never from what is in it.
"""


def compute_part(gradients: ClippedSum, part: SumPart) -> ClippedTotal:
    """The sum of one part."""
    summed = gradients if part.local is None else SubjectUpdates(gradients, part.local)
    if part.key is not None and isinstance(summed, HasItemCoins):
        summed.renew_coins(part.key)
    return summed(part.vector, part.inputs, part.targets, part.groups, part.clip, part.buckets)


def compute_in_turn(parts: Sequence[SumPart | None], compute: ComputePart) -> list[ClippedTotal]:
    """All parts here, one after the other."""
    return [compute(part) for part in parts if part is not None]


def sum_in_parts(gradients: ClippedSum, count: int, clip: Clip) -> ClippedSum:
    """The sum in so many parts; itself where that is one."""
    if count == 1:
        return gradients
    _require_parts(clip)
    return PartedSum(gradients, count)


class PartedSum:
    """A `ClippedSum` in parts, by subject.

    Guarantee: a subject is in one part, which its own number and the number of parts decide; removing it moves the
    sum by as much as it moves that part, up to the rounding of `count` additions in double precision.
    """

    def __init__(
        self,
        gradients: ClippedSum,
        count: int,
        spread: SpreadParts = compute_in_turn,
        local: LocalUpdate | None = None,
    ) -> None:
        """`spread` says where parts are computed; `local` are steps that every subject takes by itself."""
        self.gradients, self._count, self._spread, self._local = gradients, count, spread, local
        self._key: int | None = None

    def over(self, spread: SpreadParts) -> "PartedSum":
        """The same sum, whose parts are computed elsewhere."""
        return PartedSum(self.gradients, self._count, spread, self._local)

    def of_updates(self, local: LocalUpdate) -> "PartedSum":
        """The sum of subjects' own updates in the place of their gradients."""
        return PartedSum(self.gradients, self._count, self._spread, local)

    @property
    def draws_coins(self) -> bool:
        """Whether the model has dropout."""
        return self._local is None and isinstance(self.gradients, HasItemCoins) and self.gradients.draws_coins

    def renew_coins(self, key: int) -> None:
        """Draw the coins of the next step with this key, wherever its parts are computed."""
        self._key = key

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        """Add up the parts, in double precision. Without `buckets` nobody has a number, and there are no parts."""
        _require_parts(clip)
        whole = SumPart(vector, inputs, targets, groups, clip, buckets, self._local, self._key)
        compute = partial(compute_part, self.gradients)
        if buckets is None:
            return compute(whole)
        number = choose_parts(buckets.numbers, self._count)
        rows = [np.flatnonzero(number == part) for part in range(self._count)]
        parts = [_take(whole, some, buckets, self._count) if len(some) else None for some in rows]
        total = torch.empty(vector.numel(), dtype=torch.float64)
        return _add_up(self._spread(parts, compute), total)


def choose_parts(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The part of each item [item], by the number of its subject.

    Scattered once more: within a part, numbers choose groups and places, for which they must be spread as before.
    """
    return (scatter_codes(numbers) >> np.int64(32)) * np.int64(count) >> np.int64(31)


def _require_parts(clip: Clip) -> None:
    if clip.per is ClipPer.BATCH:
        raise SpecError(
            "A policy that clips the mean of a whole batch (user_ldp) has one sum, which ranks cannot share: leave out"
            " compute.ranks_per_silo."
        )


def _add_up(sums: Sequence[ClippedTotal], total: Tensor) -> ClippedTotal:
    """One after the other, into `total`, whatever is in it."""
    if sums:
        total.copy_(sums[0].total)
    else:
        total.zero_()
    for each in sums[1:]:
        # Some at a time: numbers of two kinds are added several times slower at once.
        for some, own in zip(torch.split(each.total, BLOCK), torch.split(total, BLOCK), strict=True):
            own.add_(some.double())
    return ClippedTotal(total, sum(each.zeroed for each in sums))


def _take(whole: SumPart, rows: NDArray[np.int64], buckets: Buckets, count: int) -> SumPart:
    """The part that has these rows of a batch, one of so many parts."""
    own = torch.from_numpy(rows)
    expected = buckets.expected_subjects / count, buckets.expected_items / count
    return replace(
        whole,
        inputs=whole.inputs[own],
        targets=whole.targets[own],
        groups=whole.groups[own],
        buckets=Buckets(buckets.table, buckets.items[rows], *expected, buckets.largest),
    )
