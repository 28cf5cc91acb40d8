"""How much of a round's movement is noise: from public facts alone, before and after any training."""

import math
from collections.abc import Mapping

from wholegrain.policies.plan import Plan
from wholegrain.policies.policy import FixedNoise, Policy, PublicDivisor


def noise_distance(
    plan: Plan, cohort: tuple[str, ...], weights: Mapping[str, float], learning_rate: float, size: int
) -> float | None:
    """The expected distance by which the noise of one round moves `size` parameters.

    Each silo's noise enters with its share of the mean, once for each step; independent noises add up in squares.
    """
    spread = [_step_noise(plan.policy_for(silo)) for silo in cohort]
    if any(std is None for std in spread):
        return None
    mass = sum(weights[silo] for silo in cohort)
    shares = [weights[silo] / mass for silo in cohort]
    squares = sum((share * (std or 0.0)) ** 2 for share, std in zip(shares, spread, strict=True))
    return learning_rate * math.sqrt(plan.horizon.steps * squares * size)


def _step_noise(policy: Policy) -> float | None:
    """Standard deviation of one value of one release; None where the batch, a private fact, sets it."""
    if not isinstance(policy.noise, FixedNoise) or not isinstance(policy.divisor, PublicDivisor):
        return None
    return policy.noise.multiplier * policy.clip.norm / policy.divisor.value
