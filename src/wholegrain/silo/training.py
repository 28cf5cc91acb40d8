"""T steps in one silo: draw, clip and pool, add noise, move. Nothing else touches a silo's data in a run."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.clipping import devices
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.reference import ClippedSum, HasItemCoins
from wholegrain.clipping.rounding import VECTOR_BYTES
from wholegrain.data.sampling import Batch, draw_batches
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError
from wholegrain.models.model_inputs import values
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.silo.batch_memory import BatchMemory
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.private_step import release, release_to_sum
from wholegrain.silo.views import View, apply_view

AHEAD = 1 << 22
"""Bytes of the batches of a silo that are drawn ahead of their steps."""
ITEM = 32
"""Bytes that an item takes beside its inputs: position, subject and target."""
ANYBODY = np.zeros(VECTOR_BYTES, np.int64)
"""Items that stand between two batches, and are in neither."""


@dataclass(frozen=True, eq=False)
class Silo:
    """A silo's data, already held to its cap, and what is public of it.

    `spans` says in how many silos each item's subject is, where the silo knows it. With a `view`, models are shown what
    it makes of an item instead of the item. It is a function of that item alone, so that no guarantee changes.
    """

    facts: SiloFacts
    data: SubjectData
    view: View | None = None
    spans: NDArray[np.int64] | None = None  # [item]

    @cached_property
    def inputs(self) -> Tensor:
        """Inputs as they are trained on: a tensor that shares the array's memory, or what the view made of it, once."""
        stored = torch.from_numpy(self.data.inputs)
        return stored if self.view is None else apply_view(stored, self.view, self.data.subjects)

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """What decides in which group of a sum an item's subject is added up [item]; see clip_units.Buckets."""
        return scatter_codes(self.data.subjects)

    @cached_property
    def targets(self) -> Tensor:
        """Targets as a tensor that shares the array's memory."""
        return torch.from_numpy(self.data.targets)

    @cached_property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs and targets as batches are copied from: numpy, which has no bfloat16, copies rows fastest."""
        inputs = self.inputs.view(torch.int16) if self.inputs.dtype is torch.bfloat16 else self.inputs
        return np.ascontiguousarray(inputs.numpy()), np.ascontiguousarray(self.data.targets)


@dataclass(frozen=True, eq=False, kw_only=True)
class Trainer:
    """What local training needs and all silos share: public choices and the machinery of gradients."""

    clipped_sum: ClippedSum
    noise: NoiseSource
    learning_rate: float
    memory: BatchMemory = field(default_factory=BatchMemory, repr=False)

    def begin(self, silo: Silo, policy: Policy, round: int, steps: int) -> "LocalSteps":
        """The steps of a silo in a round, the first batches drawn: for whoever begins several silos at a time.

        One after the other, they find code and tables in the cache, which the steps of a silo drive out of it.
        """
        local = self._local_steps(silo, policy, round, steps)
        local.draw_ahead()
        return local

    def train(
        self, silo: Silo, policy: Policy, vector: Tensor, round: int, steps: int, begun: "LocalSteps | None" = None
    ) -> Tensor:
        """Parameters after `steps` local steps from `vector`, which is left as it was; `begun` is what `begin` gave.

        Guarantee: what the result reveals of the silo's data is exactly `steps` releases of the policy's step.
        """
        vector = vector.to(devices.place_of(self.clipped_sum), copy=True)
        local = begun or self._local_steps(silo, policy, round, steps)
        for _ in range(steps):
            vector.sub_(local.gradient(vector), alpha=self.learning_rate)
        return devices.to_host(vector)

    def add_to_sum(self, silo: Silo, policy: Policy, vector: Tensor, round: int) -> Tensor:
        """One step's part of a secure sum, in whole steps of the public grid [parameter].

        Private: the result; masked, it may leave the silo.
        """
        vector = vector.to(devices.place_of(self.clipped_sum))
        return devices.to_host(self._local_steps(silo, policy, round, 1).part_of_sum(vector))

    def _local_steps(self, silo: Silo, policy: Policy, round: int, steps: int) -> "LocalSteps":
        return LocalSteps(self.clipped_sum, self.noise, silo, policy, round, steps, self.memory)


class Drawn(NamedTuple):
    """A batch, its items as they are stored, and whose they are. Private: all of it."""

    batch: Batch
    inputs: Tensor
    targets: Tensor
    groups: Tensor
    buckets: Buckets


def _gather(
    silo: Silo, batches: Sequence[Batch], public: tuple[float, float, int], memory: BatchMemory
) -> Iterator[Drawn]:
    """The items of some batches, copied together: in small silos the calls would take longer than the copies.

    Every batch begins where a vector of the processor does, whoever is in those before it: kernels may add up in
    another order at another alignment (docs/arithmetic.md).
    """
    rows = max(map(_rows_to_align, silo.arrays))
    sizes = [len(batch.items) for batch in batches]
    gaps = [*(-size % rows for size in sizes[:-1]), 0]
    parts = [part for batch, gap in zip(batches, gaps, strict=True) for part in (batch.items, ANYBODY[:gap])]
    places = np.concatenate(parts)
    inputs, targets = (memory.copy_rows(array, places) for array in silo.arrays)
    begin = 0
    for batch, size, gap in zip(batches, sizes, gaps, strict=True):
        own, end = slice(begin, begin + size), begin + size + gap
        shown, wanted = torch.from_numpy(inputs[own]), torch.from_numpy(targets[own])
        if shown.dtype is not silo.inputs.dtype:
            shown = shown.view(silo.inputs.dtype)
        buckets = Buckets(silo.numbers, batch.items, *public)
        yield Drawn(batch, shown, wanted, torch.from_numpy(batch.groups), buckets)
        begin = end


def _rows_to_align(array: NDArray[Any]) -> int:
    """After how many rows a vector of the processor begins again: a power of two."""
    return VECTOR_BYTES // math.gcd(VECTOR_BYTES, _row_bytes(array))


def _row_bytes(array: NDArray[Any]) -> int:
    return array.itemsize * math.prod(array.shape[1:])


def _bytes_of_step(silo: Silo, expected_items: float) -> float:
    """What a batch is expected to take, by what is public."""
    return max(1.0, expected_items) * (_row_bytes(silo.arrays[0]) + ITEM)


def _steps_ahead(silo: Silo, expected_items: float) -> int:
    """For how many steps batches are drawn at a time: as many as take little memory, by what is public."""
    return int(AHEAD / _bytes_of_step(silo, expected_items))


class LocalSteps:
    """The steps of one silo in one round: each draws a batch, pools its clipped gradients and adds noise.

    Parameters are given where the gradients expect them (`devices.place_of`), and what is released is there, too.

    Guarantee: `gradient` is one release of the policy's step, wherever the parameters come from, as long as they tell
    no more of the silo's data than earlier releases did.
    """

    def __init__(
        self,
        clipped_sum: ClippedSum,
        noise: NoiseSource,
        silo: Silo,
        policy: Policy,
        round: int,
        steps: int = 1,
        memory: BatchMemory | None = None,
    ) -> None:
        """Coins and noise are those of the silo in this round, of which so many steps are to come."""
        self._sum, self._repeats = policy.clipped_sum(clipped_sum), noise.repeats
        self._silo, self._policy = silo, policy
        self._draws = noise.coins(round, silo.facts.name)
        self._key: Callable[[int], int] = lambda step: noise.step_key(round, silo.facts.name, step)
        # Not by `isinstance`: to ask a protocol takes as long as a small silo's step.
        self._coins = cast(HasItemCoins, self._sum) if getattr(self._sum, "draws_coins", False) else None
        self._step = 0
        self._noise = noise.stream(round, silo.facts.name)
        self._public = *policy.expected_sizes(silo.facts), policy.largest_subject(silo.facts)
        self._ahead = _steps_ahead(silo, self._public[1])
        self.expected_bytes = min(steps, max(1, self._ahead)) * _bytes_of_step(silo, self._public[1])
        self._left, self._drawn = steps, deque[Drawn]()
        self._memory = memory or BatchMemory()

    def gradient(self, vector: Tensor) -> Tensor:
        """The noisy mean gradient of the next step, at these parameters."""
        drawn = self._draw()
        total = self._clipped_sum(drawn, vector)
        if not self._repeats:
            # One format, whichever way the sum came about: what is rounded later must not tell which it was.
            total = total.double()
        released = release(total, drawn.batch, self._policy, self._noise)
        return released if released.dtype is vector.dtype else released.to(vector.dtype)

    def part_of_sum(self, vector: Tensor) -> Tensor:
        """The silo's part of a secure sum of the next step, in whole steps of the public grid.

        Private: the result; masked, it may leave the silo.
        """
        drawn = self._draw()
        return release_to_sum(self._clipped_sum(drawn, vector).double(), drawn.batch, self._policy, self._noise)

    def draw_ahead(self) -> None:
        """Draw and gather the batches of several steps together, which gives the same batches."""
        count = max(1, min(self._left, self._ahead))
        self._left -= count
        silo, public = self._silo, self._public
        batches = draw_batches(self._policy.sampling, silo.data.index, self._draws, count)
        self._drawn.extend(_gather(silo, batches, public, self._memory))

    def _draw(self) -> Drawn:
        """The next batch."""
        if not self._drawn:
            self.draw_ahead()
        return self._drawn.popleft()

    def _clipped_sum(self, drawn: Drawn, vector: Tensor) -> Tensor:
        silo, policy, batch = self._silo, self._policy, drawn.batch
        if self._coins is not None:
            self._coins.renew_coins(self._key(self._step))
        self._step += 1
        _, inputs, targets, groups, buckets = drawn
        inputs = values(inputs)
        if not policy.by_span:
            return self._sum(vector, inputs, targets, groups, policy.clip, buckets).total
        if silo.spans is None:
            raise SpecError(f"The silo '{silo.facts.name}' does not know in how many others its subjects are.")
        total = torch.zeros_like(vector, dtype=torch.float64)
        spans = silo.spans[batch.items]
        # Subjects of one span have one clip norm.
        for span in np.unique(spans).tolist():
            own, clip = torch.from_numpy(spans == span), replace(policy.clip, norm=policy.norm_for(span))
            some = replace(buckets, items=batch.items[spans == span])
            total += self._sum(vector, inputs[own], targets[own], groups[own], clip, some).total
        return total
