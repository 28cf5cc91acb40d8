"""Each subject's own local update, clipped as one: several steps on its items alone, as ULDP-AVG has it.

After Kato et al. (2024), *ULDP-FL: Federated Learning with Across-Silo User-Level Differential Privacy*. From the same
parameters every subject takes L steps of gradient descent on its own items. What it adds to the sum is how far it came,
in units of the local learning rate: with one step that is its mean gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from wholegrain import _check
from wholegrain.clipping import devices
from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool
from wholegrain.clipping.reference import ClippedSum
from wholegrain.errors import SpecError

MOST_LOCAL_STEPS = 1000
BELOW = 1 - 2.0**-40
"""How much of C a clipped update may have: its length is off by less than the rest, in double precision."""


@dataclass(frozen=True)
class LocalUpdate:
    """So many steps on a subject's own items, with this learning rate."""

    steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        if _check.count("local_steps", self.steps) > MOST_LOCAL_STEPS:
            raise SpecError(f"local_steps = {self.steps} is more than {MOST_LOCAL_STEPS}.")
        _check.positive("local_rate", self.learning_rate)


@dataclass(frozen=True, eq=False)
class SubjectUpdates:
    """A `ClippedSum` of subjects' local updates, one subject after the other.

    Guarantee: a subject's update is computed from its own items and the parameters alone, and is clipped in double
    precision to at most C. Sums are in double precision, too. Removing one of n subjects moves the total by C at most,
    up to n²·2⁻⁵³ C: every sum on the way is as long as n·C at most, and is rounded once with the subject and once
    without. Up to a million subjects that is 2⁻¹³ C, which SLACK pays for. An update that is not finite counts as zero.
    """

    gradients: ClippedSum
    local: LocalUpdate

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        """Add up the updates of the batch's subjects, from `vector`."""
        if clip.per is not ClipPer.SUBJECT or clip.pool is not Pool.MEAN:
            raise SpecError("A subject's local update is clipped as one, and its gradients are averaged.")
        total, zeroed = torch.zeros_like(vector, dtype=torch.float64), 0
        for subject in torch.unique(groups).tolist():
            own = groups == subject
            update = self._update(vector, inputs[own], targets[own])
            length = float(devices.to_host(torch.linalg.vector_norm(update)))
            if not length < torch.inf:
                zeroed += 1
            elif length > 0:
                total.add_(update, alpha=min(1.0, BELOW * clip.norm / length))
        return ClippedTotal(total, zeroed)

    def _update(self, start: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """How far a subject comes, in units of the local learning rate, in double precision."""
        alone, as_it_is = torch.zeros(len(inputs), dtype=torch.int64), Clip(ClipPer.NONE, Pool.SUM, 1.0)
        vector = start
        for _ in range(self.local.steps):
            mean = self.gradients(vector, inputs, targets, alone, as_it_is).total / len(inputs)
            vector = vector - mean.to(vector.dtype) * self.local.learning_rate
        return (start.double() - vector.double()).div_(self.local.learning_rate)
