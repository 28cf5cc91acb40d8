"""T steps in one silo: draw, clip and pool, add noise, move. Nothing else touches a silo's data in a run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.data.sampling import Batch
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError
from wholegrain.gradients import devices
from wholegrain.gradients.clip_units import Buckets, scatter_codes
from wholegrain.gradients.reference import ClippedSum, HasItemCoins
from wholegrain.models.model_inputs import values
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.private_step import release, release_to_sum
from wholegrain.silo.views import View, apply_view


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Trainer:
    """What local training needs and all silos share: public choices and the machinery of gradients."""

    clipped_sum: ClippedSum
    noise: NoiseSource
    learning_rate: float

    def train(self, silo: Silo, policy: Policy, vector: Tensor, round: int, steps: int) -> Tensor:
        """Parameters after `steps` local steps from `vector`, which is left as it was.

        Guarantee: what the result reveals of the silo's data is exactly `steps` releases of the policy's step.
        """
        vector = vector.to(devices.place_of(self.clipped_sum), copy=True)
        local = LocalSteps(self.clipped_sum, self.noise, silo, policy, round)
        for _ in range(steps):
            vector.sub_(local.gradient(vector), alpha=self.learning_rate)
        return devices.to_host(vector)

    def add_to_sum(self, silo: Silo, policy: Policy, vector: Tensor, round: int) -> Tensor:
        """One step's part of a secure sum, in whole steps of the public grid [parameter].

        Private: the result; masked, it may leave the silo.
        """
        vector = vector.to(devices.place_of(self.clipped_sum))
        return devices.to_host(LocalSteps(self.clipped_sum, self.noise, silo, policy, round).part_of_sum(vector))


class LocalSteps:
    """The steps of one silo in one round: each draws a batch, pools its clipped gradients and adds noise.

    Parameters are given where the gradients expect them (`devices.place_of`), and what is released is there, too.

    Guarantee: `gradient` is one release of the policy's step, wherever the parameters come from, as long as they tell
    no more of the silo's data than earlier releases did.
    """

    def __init__(self, clipped_sum: ClippedSum, noise: NoiseSource, silo: Silo, policy: Policy, round: int) -> None:
        """Coins and noise are those of the silo in this round."""
        self._sum, self._repeats = policy.clipped_sum(clipped_sum), noise.repeats
        self._silo, self._policy = silo, policy
        self._draws = noise.coins(round, silo.facts.name)
        self._key: Callable[[int], int] = lambda step: noise.step_key(round, silo.facts.name, step)
        # Not by `isinstance`: to ask a protocol takes as long as a small silo's step.
        self._coins = cast(HasItemCoins, self._sum) if getattr(self._sum, "draws_coins", False) else None
        self._step = 0
        self._noise = noise.stream(round, silo.facts.name)
        self._public = *policy.expected_sizes(silo.facts), policy.largest_subject(silo.facts)

    def gradient(self, vector: Tensor) -> Tensor:
        """The noisy mean gradient of the next step, at these parameters."""
        batch = self._policy.sampling.draw(self._silo.data.index, self._draws)
        total = self._clipped_sum(batch, vector)
        if not self._repeats:
            # One format, whichever way the sum came about: what is rounded later must not tell which it was.
            total = total.double()
        return release(total, batch, self._policy, self._noise).to(vector.dtype)

    def part_of_sum(self, vector: Tensor) -> Tensor:
        """The silo's part of a secure sum of the next step, in whole steps of the public grid.

        Private: the result; masked, it may leave the silo.
        """
        batch = self._policy.sampling.draw(self._silo.data.index, self._draws)
        return release_to_sum(self._clipped_sum(batch, vector).double(), batch, self._policy, self._noise)

    def _clipped_sum(self, batch: Batch, vector: Tensor) -> Tensor:
        silo, policy = self._silo, self._policy
        if self._coins is not None:
            self._coins.renew_coins(self._key(self._step))
        self._step += 1
        items, groups = torch.from_numpy(batch.items), torch.from_numpy(batch.groups)
        inputs, targets = values(silo.inputs.index_select(0, items)), silo.targets.index_select(0, items)
        buckets = Buckets(silo.numbers, batch.items, *self._public)
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
