"""T steps in one silo: draw, clip and pool, add noise, move. Nothing else touches a silo's data in a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.data.sampling import Batch
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError
from wholegrain.gradients.reference import ClippedSum
from wholegrain.models.inputs import values
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.step import release

CHUNK = 512
"""Items that a view is computed for at once: a constant, so that every engine gets the same bits."""

View = Callable[[Tensor], Tensor]
"""A public function of an item, computed in the silo: what a frozen part of a model makes of it."""


def viewed(stored: Tensor, view: View) -> Tensor:
    """What the view makes of stored inputs [item, ...]."""
    with torch.no_grad():
        return torch.cat([view(values(some)) for some in torch.split(stored, CHUNK)])


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
        return stored if self.view is None else viewed(stored, self.view)

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
        vector = vector.clone()
        draws = self.noise.coins(round, silo.facts.name)
        noise = self.noise.stream(round, silo.facts.name)
        for _ in range(steps):
            batch = policy.sampling.draw(silo.data.roster, draws)
            total = self._pooled(silo, batch, policy, vector)
            vector.sub_(release(total, batch, policy, noise), alpha=self.learning_rate)
        return vector

    def _pooled(self, silo: Silo, batch: Batch, policy: Policy, vector: Tensor) -> Tensor:
        items, groups = torch.from_numpy(batch.items), torch.from_numpy(batch.groups)
        inputs, targets = values(silo.inputs[items]), silo.targets[items]
        if not policy.by_span:
            return self.clipped_sum(vector, inputs, targets, groups, policy.clip).total
        if silo.spans is None:
            raise SpecError(f"The silo '{silo.facts.name}' does not know in how many others its subjects are.")
        total = torch.zeros_like(vector)
        spans = torch.from_numpy(silo.spans[batch.items])
        # Subjects of one span have one clip norm.
        for span in torch.unique(spans).tolist():
            own, clip = spans == span, replace(policy.clip, norm=policy.clip.norm / math.sqrt(span))
            total += self.clipped_sum(vector, inputs[own], targets[own], groups[own], clip).total
        return total
