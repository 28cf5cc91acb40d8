"""Which policy, how often to sample and how long to train: the best predicted signal-to-noise that a budget can buy.

The prediction reads public facts alone: sizes of silos, K, M, and how many parameters are trained. It rests on one
picture of gradients: each item's points a little (`ALIGNMENT`, as a cosine) into the direction in which the loss falls,
and otherwise anywhere. Whatever is clipped has the clip norm, so that over S steps

    signal = S·ρ·C          noise = C·√(S·(d·ν² + (1−ρ²)/b))

with ρ the alignment of what is clipped as one (a mean of k items has ρ/√(ρ² + (1−ρ²)/k)), d the parameters, ν the
noise of the silos' mean in units of C, and b the contributions to a step. Their ratio says how far a run can be trusted
to go. It does not say how far it has to go: that is the spec's own knowledge.

Where everybody is in every step, σ grows as √S and the ratio hardly depends on S: many small steps cost no more than
few large ones. Steps that are too large miss bends of the way, by about 1/S; so many are taken that this is half of
what noise makes a run miss.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dp_accounting import DpEvent

from wholegrain.errors import SpecError, WholegrainError
from wholegrain.gradients.pooling import ClipPer, Pool
from wholegrain.policies.catalog import Settings, find
from wholegrain.policies.guarantees import Row, federation_event, missing_bound, obstacles
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation
from wholegrain.policies.policy import Policy, PublicDivisor, SiloFacts
from wholegrain.privacy.calibration import first_guess
from wholegrain.privacy.events import presence
from wholegrain.privacy.units import Budget, Unit

ALIGNMENT = 0.1
"""How far a single item's gradient points the way: a cosine, from experience with small models."""
ENOUGH = 0.95
"""Of the best signal-to-noise, this share is worth having with fewer steps."""
BENDS = 2.0
"""Steps are small enough where this is the share that noise makes a run miss, times the steps."""
RATES = (1.0, 0.3, 0.1)
STEPS = (20, 40, 60, 100, 200)
POLICIES = ("subject_dp", "higradavg_dp", "local_group_dp", "local_item_dp", "user_ldp")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy with a rate and a number of steps, the noise that the budget needs, and what is predicted of it."""

    policy: str
    settings: Settings
    steps: int
    noise_multiplier: float
    ratio: float
    """Signal to noise."""

    @property
    def trusted(self) -> float:
        """The share of the way that is worth going: what a filter keeps of a signal in this much noise."""
        return self.ratio**2 / (1 + self.ratio**2)

    @property
    def fine(self) -> bool:
        """Whether its steps are small enough for how far it is trusted to come."""
        return self.steps * (1 - self.trusted) >= BENDS


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is known in public: the silos, the budget for a subject, and how many parameters are trained."""

    federation: Federation
    budget: Budget
    parameters: int
    clip_norm: float = 1.0
    policies: tuple[str, ...] = POLICIES


def candidates(question: Question) -> tuple[Candidate, ...]:
    """Every combination that can be priced, the best first."""
    found = [candidate for policy in question.policies for candidate in _of_policy(question, policy)]
    if not found:
        raise SpecError("No policy can be priced for these silos; declare items_per_subject, or allow subject_dp.")
    return tuple(sorted(found, key=lambda each: (-each.ratio, each.steps)))


def best(found: Sequence[Candidate]) -> Candidate:
    """The shortest run of small enough steps among those that are nearly as good as the best."""
    near = [each for each in found if each.ratio >= ENOUGH * found[0].ratio]
    return min(near, key=lambda each: (not each.fine, each.steps if each.fine else -each.steps, -each.ratio))


def leaders(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The best candidate of each policy, best first."""
    by_policy: dict[str, Candidate] = {}
    for each in found:
        by_policy.setdefault(each.policy, each)
    return tuple(by_policy.values())


def _of_policy(question: Question, policy: str) -> Iterator[Candidate]:
    for rate in RATES:
        settings = Settings(
            rate=rate, clip_norm=question.clip_norm, group_cap=1 if policy == "local_group_dp" else None
        )
        try:
            rows = [(find(policy).row(settings, silo), silo) for silo in question.federation.silos]
        except WholegrainError:  # this one does not go with these silos
            return
        if obstacles(rows[0][0], Unit.SUBJECT) or missing_bound(rows, Unit.SUBJECT):
            return
        for steps in STEPS:
            noise = _noise(question, rows, steps)
            ratio = signal_to_noise(rows, noise, steps, question.parameters)
            yield Candidate(policy=policy, settings=settings, steps=steps, noise_multiplier=noise, ratio=ratio)


def _noise(question: Question, rows: Sequence[Row], steps: int) -> float:
    """Nearly the noise that the budget needs; the plan that is made in the end is calibrated exactly."""
    horizon = Horizon(silos=tuple(silo.name for _, silo in rows), rounds=steps, steps=1)
    reach = question.federation.reach

    def event_of(noise: float) -> DpEvent:
        noisy = [(policy.with_noise(noise), silo) for policy, silo in rows]
        return federation_event(noisy, horizon.releases(), Unit.SUBJECT, reach)

    return first_guess(event_of, question.budget)


def signal_to_noise(rows: Sequence[Row], noise: float, steps: int, parameters: int) -> float:
    """Of `steps` steps in each of these silos, whose means are averaged by their public numbers of subjects."""
    mass = sum(silo.subjects for _, silo in rows)
    signal, spread, own = 0.0, 0.0, 0.0
    for policy, silo in rows:
        share = silo.subjects / mass
        alignment, contributions = _contributions(policy, silo)
        divisor = policy.divisor.value if isinstance(policy.divisor, PublicDivisor) else 1.0
        signal += share * alignment * contributions / divisor
        spread += (share * noise / divisor) ** 2
        own += (share / divisor) ** 2 * (1 - alignment**2) * contributions
    return math.sqrt(steps) * signal / math.sqrt(parameters * spread + own)


def _contributions(policy: Policy, silo: SiloFacts) -> tuple[float, float]:
    """Alignment of what is clipped as one, and how many of them a step is expected to sum."""
    typical = max(1.0, silo.items / silo.subjects)
    rate = getattr(policy.sampling, "rate", 1.0)
    if policy.clip.per is ClipPer.BATCH:
        return _aligned(rate * silo.items), 1.0
    if policy.clip.per is ClipPer.SUBJECT:
        return _aligned(typical), rate * silo.subjects
    if policy.clip.pool is Pool.MEAN:  # the mean of k clipped items is shorter, and points the better for it
        drawn = max(1.0, rate * typical)
        return ALIGNMENT, presence(rate, round(typical)) * silo.subjects * min(drawn, 1.0)
    cap = getattr(policy.sampling, "most_per_subject", None)
    drawn = rate * typical
    return ALIGNMENT, silo.subjects * (drawn if cap is None else min(drawn, float(cap)))


def _aligned(items: float) -> float:
    """Alignment of the mean of so many items' gradients.

    >>> round(_aligned(1), 3), _aligned(1e9) > 0.99
    (0.1, True)
    """
    return ALIGNMENT / math.sqrt(ALIGNMENT**2 + (1 - ALIGNMENT**2) / max(items, 1.0))
