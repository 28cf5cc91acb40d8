"""A policy: a local algorithm as a row of public facts. One step interprets the row, and one event prices it.

    release = ( Σ contributions + N(0, (noise·C)² I) ) / divisor

Rows of the catalogue hold public facts only. The paper's rows may also name a noise or a divisor that is read off the
batch; what that costs is for `guarantees` to say, never for the step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from wholegrain import _check
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.parted_sum import PartedSum
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.subject_updates import LocalUpdate, SubjectUpdates
from wholegrain.data.sampling import Batch, FixedItems, PoissonItems, PoissonSubjects, Sampling
from wholegrain.errors import SpecError
from wholegrain.policies.silo_facts import SiloFacts as SiloFacts
from wholegrain.privacy.trust import SecureSum

MOST_SPAN = 1024
"""Silos that one subject can be in, where that decides what it counts in each."""
SHARE_STEPS = 64
"""Shares are kept as whole numbers: 64 times the reciprocal of a share, rounded up."""
UNKNOWN = 16
"""Items of a subject in a batch, where no bound on them is public."""


@dataclass(frozen=True)
class FixedNoise:
    """The same noise multiplier for every batch."""

    multiplier: float

    def __post_init__(self) -> None:
        _check.non_negative("noise_multiplier", self.multiplier)

    def multiplier_for(self, batch: Batch) -> float:
        """The multiplier, whatever the batch."""
        return self.multiplier


@dataclass(frozen=True)
class NoiseByLargestGroup:
    """σ_Z by the batch's largest group [Marathe, Alg. 2 line 10]: a private fact sets the noise.

    Each σ_Z takes a search, and of the sizes that are possible few occur: `by_size` is asked when one does.
    """

    by_size: Callable[[int], float]
    largest: int
    """The largest Z that is possible."""

    def multiplier_for(self, batch: Batch) -> float:
        """σ_Z; an empty batch counts as Z = 1."""
        return self.by_size(max(batch.largest_group, 1))


@dataclass(frozen=True)
class PublicDivisor:
    """A constant from public facts."""

    value: float

    def __post_init__(self) -> None:
        _check.positive("divisor", self.value)

    def divisor_for(self, batch: Batch) -> float:
        """The constant, whatever the batch."""
        return self.value


@dataclass(frozen=True)
class RealisedSubjects:
    """|subjects(B)| [Marathe, Alg. 3 line 12]: a private fact scales the noise."""

    def divisor_for(self, batch: Batch) -> float:
        """Subjects in the batch; an empty batch counts as one."""
        return float(max(batch.subjects, 1))


Noise = FixedNoise | NoiseByLargestGroup
Divisor = PublicDivisor | RealisedSubjects


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One silo's algorithm. `noise`, which this silo adds, is None until a plan has calibrated it.

    `by_span`: a subject that is in m silos contributes at most `norm_for(m)` in each of them. `by_share`: in place of m
    each silo has SHARE_STEPS/w for the subject, rounded up, and the shares w of one subject add up to 1 at most.
    `trust` is None where whoever sees the silos' releases sees each of them.
    """

    name: str
    sampling: Sampling
    clip: Clip
    divisor: Divisor
    noise: Noise | None = None
    by_span: bool = False
    by_share: bool = False
    trust: SecureSum | None = None
    local: LocalUpdate | None = None
    """The steps that a subject takes by itself before it is clipped; None where its gradient is what is clipped."""

    def __post_init__(self) -> None:
        if self.local is not None and (self.clip.per is not ClipPer.SUBJECT or self.clip.pool is not Pool.MEAN):
            raise SpecError(
                f"The policy '{self.name}' takes local steps for each subject, which is clipped as one mean."
            )

    def clipped_sum(self, gradients: ClippedSum) -> ClippedSum:
        """What this row adds up: clipped gradients, or clipped updates of several local steps."""
        if self.local is None:
            return gradients
        if isinstance(gradients, PartedSum):
            return gradients.of_updates(self.local)
        return SubjectUpdates(gradients, self.local)

    def norm_for(self, span: int) -> float:
        """What a subject in `span` silos contributes at most in each: C/√m, or of a secure sum C/m; C without spans.

        Separate releases add up in squares, a sum adds up the moves themselves. Nobody is in more silos than there are;
        a share may be smaller than one in so many.
        """
        if not self.by_span:
            return self.clip.norm
        if self.by_share:
            share = SHARE_STEPS / span
            return self.clip.norm * (share if self.trust is not None else math.sqrt(share))
        if self.trust is None:
            return self.clip.norm / math.sqrt(min(span, MOST_SPAN))
        return self.clip.norm / min(span, self.trust.silos)

    @cached_property
    def least_norm(self) -> float:
        """What a grid for the sum must be fine enough for: by span, what a subject in all silos contributes in each.

        Each silo rounds its sum once, so that it is the number of silos that counts, and not how small a share may be.
        """
        return replace(self, by_share=False).norm_for(MOST_SPAN if self.trust is None else self.trust.silos)

    def with_noise(self, multiplier: float) -> "Policy":
        """The same row with this noise multiplier."""
        return replace(self, noise=FixedNoise(multiplier))

    def with_visible_noise(self, multiplier: float) -> "Policy":
        """The same row with so much noise on what is seen: of a secure sum, this silo adds its part of it."""
        return self.with_noise(multiplier if self.trust is None else self.trust.silo_noise(multiplier))

    @property
    def sums_single_items(self) -> bool:
        """Whether every item has a coin of its own, is clipped by itself and simply added up, as in DP-SGD.

        Such a row protects one item best, as long as no item makes room for another.
        """
        sampling = self.sampling
        alone = isinstance(sampling, PoissonItems) and sampling.most_per_subject is None
        return alone and self.clip.per is ClipPer.ITEM and self.clip.pool is Pool.SUM

    def expected_sizes(self, silo: SiloFacts) -> tuple[float, float]:
        """How many subjects and how many items public sizes let expect in a batch."""
        sampling = self.sampling
        if isinstance(sampling, PoissonSubjects):
            subjects = sampling.rate * silo.subjects
            return subjects, min(sampling.rate * silo.items, subjects * self.largest_subject(silo))
        rate = getattr(sampling, "rate", 1.0)  # a sampling of one's own may have none
        items = float(sampling.size) if isinstance(sampling, FixedItems) else rate * silo.items
        return min(items, float(silo.subjects)), items

    def largest_subject(self, silo: SiloFacts) -> int:
        """The most items of one subject in a batch, as far as it is public; where nothing is, a guess for speed."""
        drawn = self.sampling.items if isinstance(self.sampling, PoissonSubjects) else None
        bounds = (drawn, silo.items_per_subject)
        return min((bound for bound in bounds if bound is not None), default=UNKNOWN)

    def noise_multiplier_for(self, batch: Batch) -> float:
        """Noise on the sum, in units of the clip norm; refused before calibration."""
        if self.noise is None:
            raise SpecError(f"The policy '{self.name}' has no noise yet; make a plan first.")
        return self.noise.multiplier_for(batch)
