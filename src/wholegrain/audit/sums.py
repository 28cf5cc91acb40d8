"""The sum of a silo just before noise is added, and how far apart the sums of two silos are.

Nothing is computed here that training does not compute: the run's own trainer makes one step, with a source of noise
that adds none and keeps what it was given. All items are in the batch, so that no coin decides.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from wholegrain.clipping import devices
from wholegrain.clipping.clipping import ClipPer, Pool
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.sampling import PoissonItems, PoissonSubjects
from wholegrain.data.subjects import SubjectData, rank_within
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.silo.noise import NoiseStream
from wholegrain.silo.training import Silo, Trainer


class SumRecorder:
    """A source of noise, and its only stream: it adds nothing, and keeps a copy of the last sum."""

    name = identity = "none: a sum is looked at"
    repeats = True

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def stream(self, round: int, silo: str) -> NoiseStream:
        """The tap itself."""
        return self

    def coins(self, round: int, silo: str) -> np.random.Generator:
        """Coins that decide nothing: everybody is in the batch."""
        return np.random.default_rng(0)

    def step_key(self, round: int, silo: str, step: int) -> int:
        """Coins of dropout that are the same whoever is there."""
        return 0

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        """Keep the sum."""
        self.total = devices.to_host(total).to(torch.float64, copy=True)

    def add_steps_to(self, total: Tensor, multiplier: float, clip_norm: float, step: float) -> None:
        """Keep the sum; what is rounded afterwards is not looked at."""
        self.add_to(total, multiplier, clip_norm)


def noised_sum_input(gradients: ClippedSum, silo: Silo, policy: Policy, vector: Tensor) -> Tensor:
    """The clipped sum of all items of a silo at these parameters, in double precision.

    Private: all of it.
    """
    tap = SumRecorder()
    Trainer(clipped_sum=gradients, noise=tap, learning_rate=1.0).train(silo, everybody(policy), vector, 0, 1)
    assert tap.total is not None
    return tap.total


def everybody(policy: Policy) -> Policy:
    """The row with everybody in every batch."""
    by_subject = isinstance(policy.sampling, PoissonSubjects)
    return replace(policy, sampling=PoissonSubjects(1.0) if by_subject else PoissonItems(1.0))


def within_batch(data: SubjectData, policy: Policy) -> SubjectData:
    """What can be in one batch: of each subject the first items, as many as the policy lets in."""
    most = _most_in_batch(policy)
    return data if most is None else data.take(np.flatnonzero(rank_within(data.subjects) < most))


def allowed_move(policy: Policy, silo: SiloFacts) -> float | None:
    """By how much a subject of this silo may move its sum, as it was priced; None where nothing bounds that."""
    clip = policy.clip
    if clip.per is ClipPer.NONE:
        return None
    if clip.per is ClipPer.BATCH:
        return 2 * clip.norm
    if clip.per is ClipPer.SUBJECT or clip.pool is Pool.MEAN:
        return clip.norm
    bounds = [bound for bound in (_most_in_batch(policy), silo.items_per_subject) if bound is not None]
    return min(bounds) * clip.norm if bounds else None


def distance(one: Tensor, other: Tensor) -> float:
    """How far apart two sums are; without end where one of them is not finite."""
    apart = float((one - other).norm())
    return apart if math.isfinite(apart) else math.inf


def _most_in_batch(policy: Policy) -> int | None:
    return getattr(policy.sampling, "most_per_subject", None) or getattr(policy.sampling, "items", None)
