"""The one step. Every algorithm is this function on another row."""

import torch
from torch import Tensor

from wholegrain.clipping.rounding import constant_tensor
from wholegrain.data.sampling import Batch
from wholegrain.errors import SpecError
from wholegrain.policies.policy import Policy
from wholegrain.silo.noise import NoiseStream
from wholegrain.silo.secure_noise import grid


def release(total: Tensor, batch: Batch, policy: Policy, noise: NoiseStream) -> Tensor:
    """(Σ contributions + N(0, (σC)² I)) / divisor, from the pooled sum of a batch.

    Guarantee: for rows of the catalogue, scale and divisor are public constants, so that the result is a Gaussian
    mechanism of sensitivity as declared, on empty batches as on any other.
    Private: `total`, which is overwritten, and `batch`; only the result may leave the silo.
    """
    if policy.trust is not None:
        raise SpecError("A part of a secure sum has too little noise to be released by itself.")
    noise.add_to(total, policy.noise_multiplier_for(batch), policy.clip.norm, policy.least_norm)
    return total.div_(constant_tensor(policy.divisor.divisor_for(batch), total.dtype))


def release_to_sum(total: Tensor, batch: Batch, policy: Policy, noise: NoiseStream) -> Tensor:
    """(Σ contributions + noise) in whole steps of the public grid: a silo's part of a secure sum.

    Guarantee: a sum over silos of such parts is a Gaussian mechanism on the sum of their totals, with the noise of all
    of them; docs/secure-sums.md has the proof. It is for a secure sum alone: by itself a part has less noise than was
    priced.
    Private: `total`, in double precision, which is overwritten, and `batch`. The result may leave the silo masked only.
    """
    step = grid(policy.least_norm, total.numel())
    noise.add_steps_to(total, policy.noise_multiplier_for(batch), policy.clip.norm, step)
    return total.to(torch.int64)
