"""How the whole numbers of a secure sum are read: from public facts of the plan and the size of the model alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.clipping.clipping import ClipPer, Pool
from wholegrain.errors import SpecError
from wholegrain.policies.guarantees import Row
from wholegrain.policies.policy import FixedNoise, PublicDivisor
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.silo.score_release import STEPS
from wholegrain.silo.secure_noise import grid

TAIL = 12.0
"""Standard deviations of noise that must fit: beyond them lies less than 2⁻⁴⁰, for 10⁹ numbers at once."""

ROOM = 4.0
"""How much larger than declared the silos may be before a sum wraps."""

LEAST_STEPS = 8.0
"""The least standard deviation of a silo's noise in steps of the grid: the proof of the sum's law rests on it."""


@dataclass(frozen=True)
class SumScale:
    """The grid's step, and how many bits of each number travel.

    A sum that needs more bits wraps around, which costs accuracy and no privacy.
    """

    step: float
    bits: int

    @staticmethod
    def of(rows: Iterable[Row], size: int) -> "SumScale":
        """The scale for these rows and so many parameters."""
        rows = list(rows)
        step = grid(rows[0][0].least_norm, size)
        noises = [
            policy.noise.multiplier * policy.clip.norm for policy, _ in rows if isinstance(policy.noise, FixedNoise)
        ]
        if not min(noises) / step >= LEAST_STEPS:
            raise SpecError("There is too little noise for a secure sum on its grid; use a smaller ε or fewer silos.")
        units = sum(_units(row) for row in rows)
        largest = ROOM * units * rows[0][0].clip.norm + TAIL * math.sqrt(sum(noise**2 for noise in noises))
        bits = 8 * math.ceil((math.log2(largest / step) + 2) / 8)
        if bits > 64:
            raise SpecError(f"A secure sum of {size:,} parameters over so many subjects does not fit 64 bits.")
        return SumScale(step, bits)

    @staticmethod
    def of_scores(plan: ScorePlan) -> "SumScale":
        """The scale for private scores: their parts are whole steps of their own grid."""
        noise = require_score_noise(plan.form)
        largest = ROOM * sum(plan.sizes.values()) + TAIL * noise * math.sqrt(len(plan.sizes))
        bits = 8 * math.ceil((math.log2(largest * STEPS) + 2) / 8)
        if bits > 64:
            raise SpecError("A secure sum of scores over so many people does not fit 64 bits.")
        return SumScale(1 / STEPS, bits)

    def move(self, vector: Tensor, numbers: NDArray[np.int64], rows: Iterable[Row], learning_rate: float) -> Tensor:
        """Parameters after one step by the mean gradient of the silos in an opened sum, given by their rows."""
        divisor = sum(policy.divisor.value for policy, _ in rows if isinstance(policy.divisor, PublicDivisor))
        mean = torch.from_numpy(numbers).double().mul_(self.step / divisor)
        return vector - mean.to(vector.dtype) * learning_rate


def require_score_noise(form: ScoreForm) -> float:
    """The standard deviation of a silo's noise on a score; refused where it is too small for the grid."""
    noise = form.noise_multiplier * form.reach
    if not noise * STEPS >= LEAST_STEPS:
        raise SpecError("There is too little noise for a secure sum of scores on its grid; use a smaller ε.")
    return noise


def _units(row: Row) -> float:
    """How many contributions of the clip norm public sizes let expect of a silo, at most."""
    policy, silo = row
    subjects, items = policy.expected_sizes(silo)
    return items if policy.clip.per is ClipPer.ITEM and policy.clip.pool is Pool.SUM else subjects
