"""my_policies.py"""

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.data.sampling import PoissonSubjects
from wholegrain.policies.policy import Policy, PublicDivisor, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings


def two_clips(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """A person, by sampling people and averaging their clipped gradients."""
    rate = settings.rate_over(silo.subjects)
    return Policy(
        name="two_clips",
        sampling=PoissonSubjects(rate, items=settings.items_per_step),
        clip=Clip(ClipPer.ITEM, Pool.MEAN, settings.clip_norm),
        divisor=PublicDivisor(rate * silo.subjects),
    )
