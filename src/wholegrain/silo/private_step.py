"""The one step. Every algorithm is this function on another row."""

import math

from torch import Tensor

from wholegrain.data.sampling import Batch
from wholegrain.gradients.rounding import constant_tensor
from wholegrain.policies.policy import MOST_SPAN, Policy
from wholegrain.silo.noise import NoiseStream


def release(total: Tensor, batch: Batch, policy: Policy, noise: NoiseStream) -> Tensor:
    """(Σ contributions + N(0, (σC)² I)) / divisor, from the pooled sum of a batch.

    Guarantee: for rows of the catalogue, scale and divisor are public constants, so that the result is a Gaussian
    mechanism of sensitivity as declared, on empty batches as on any other.
    Private: `total`, which is overwritten, and `batch`; only the result may leave the silo.
    """
    least = policy.clip.norm / math.sqrt(MOST_SPAN) if policy.by_span else policy.clip.norm
    noise.add_to(total, policy.noise_multiplier_for(batch), policy.clip.norm, least)
    return total.div_(constant_tensor(policy.divisor.divisor_for(batch), total.dtype))
