"""Errors as values: an exception at one person's item counts as a gradient that is not finite.

An exception tells that somebody is there whose value the model cannot take: by a fault of the round, a message, or the
end of the run. So what fails at an item is zero, as what is not finite is, and nothing is told of it.

Others must not notice either, to the last bit. It is found which items fail alone, and the rest of the batch is
computed as if whoever fails were not there: that is what the neighbour without that person computes.

An error that does not depend on items is an error. It is met first, by items that are made up, before any is read.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from wholegrain.clipping import devices
from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.trial_items import TRIAL, zero_items
from wholegrain.errors import ModelError, WholegrainError

T = TypeVar("T")

PLATFORM = (MemoryError, torch.OutOfMemoryError, WholegrainError)
"""What is no fault of an item: what the machine lacks, and what the library refuses, which is public."""


def attempt(compute: Callable[[], T]) -> T | None:
    """What is computed, or None where that raises.

    Private: which of them, and why.
    """
    try:
        return compute()
    except PLATFORM:
        raise
    except Exception:  # the model and the loss are the user's own code
        return None


class ErrorsAsValues:
    """A `ClippedSum` in which a unit that raises counts as zero.

    Guarantee: that of `engine`, for models that raise at some items, too. Whether an item raises must depend on the
    item and the parameters alone, as its gradient must; where it depends on the others in the batch, every subject is
    computed by itself, and nothing is raised either.
    """

    def __init__(self, engine: ClippedSum, model: nn.Module) -> None:
        self.engine, self._model = engine, model
        self._tried = set[tuple[object, ...]]()
        self._size = flatten(model).numel()

    @property
    def place(self) -> torch.device:
        """Where parameters are best given."""
        return devices.place_of(self.engine)

    @property
    def reason(self) -> str | None:
        """Why units are computed one after the other, where they are; known after a first call."""
        return getattr(self.engine, "reason", None)

    @property
    def draws_coins(self) -> bool:
        """Whether the model has dropout."""
        return bool(getattr(self.engine, "draws_coins", False))

    def renew_coins(self, key: int) -> None:
        """Draw the coins of the next step with this key."""
        if (renew := getattr(self.engine, "renew_coins", None)) is not None:
            renew(key)

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        """Pool the gradients, at parameters `vector`, of a batch whose item i belongs to subject `groups[i]`."""
        if len(inputs):
            self._require_works(vector, inputs, targets, clip)

        def sum_up(chosen: Tensor | None = None) -> ClippedTotal | None:
            some = (inputs, targets, groups, clip, buckets)
            batch = some if chosen is None else _take(*some, chosen)
            return attempt(lambda: self.engine(vector, *batch))

        return sum_up() or self._sum_what_works(vector, groups, clip, sum_up)

    def _sum_what_works(
        self, vector: Tensor, groups: Tensor, clip: Clip, sum_up: Callable[[Tensor], ClippedTotal | None]
    ) -> ClippedTotal:
        """The sum without the units that raise, which `sum_up` is asked about by items of the batch."""
        nothing = torch.zeros_like(vector, dtype=torch.float64)
        if clip.per is ClipPer.BATCH:
            return ClippedTotal(nothing, 1)
        raised = torch.zeros(len(groups), dtype=torch.bool)
        raised[_find_raising(torch.arange(len(groups)), sum_up)] = True
        if clip.per is ClipPer.SUBJECT:
            raised = torch.isin(groups, groups[raised])
        zeroed = clip.count(groups[raised])
        if (rest := sum_up(~raised)) is not None:
            return ClippedTotal(rest.total, rest.zeroed + zeroed)
        for subject in torch.unique(groups[~raised]).tolist():
            own = (groups == subject) & ~raised
            alone = sum_up(own) or ClippedTotal(nothing, clip.count(groups[own]))
            nothing, zeroed = nothing + alone.total, zeroed + alone.zeroed
        return ClippedTotal(nothing, zeroed)

    def _require_works(self, vector: Tensor, inputs: Tensor, targets: Tensor, clip: Clip) -> None:
        """Raise what every item would raise: tried with items made up, once for each shape and kind of numbers."""
        if vector.shape != (self._size,):
            raise ModelError(f"The model has {self._size} parameters, and was given {list(vector.shape)}.")
        kind = inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype, vector.dtype
        if kind in self._tried:
            return
        # The model's own parameters: those that are given may be a server's that has the trial's result in mind.
        self.engine(flatten(self._model).to(vector), zero_items(inputs), zero_items(targets), torch.arange(TRIAL), clip)
        self._tried.add(kind)


def _find_raising(items: Tensor, sum_up: Callable[[Tensor], ClippedTotal | None]) -> list[int]:
    """Which of these items raise alone: looked for in halves, because those without any have none."""
    if sum_up(items) is not None:
        return []
    if len(items) == 1:
        return items.tolist()
    middle = len(items) // 2
    return _find_raising(items[:middle], sum_up) + _find_raising(items[middle:], sum_up)


def _take(
    inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip, buckets: Buckets | None, chosen: Tensor
) -> tuple[Tensor, Tensor, Tensor, Clip, Buckets | None]:
    """Some items of a batch, in memory of their own; subjects are numbered as if there were no others."""
    _, numbered = np.unique(groups[chosen].numpy(), return_inverse=True)
    kept = None if buckets is None else replace(buckets, items=buckets.items[chosen.numpy()])
    return inputs[chosen], targets[chosen], torch.from_numpy(numbered), clip, kept
