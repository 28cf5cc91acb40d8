"""Which policy, how often to sample, how long and how fast to train: the best that a budget is predicted to buy.

The prediction reads public facts alone: sizes of silos, K, M, and how many parameters are trained. It rests on two
pictures. The first is of gradients: each item's points a little (`ALIGNMENT`, as a cosine) into the direction in which
the loss falls, and otherwise anywhere. Whatever is clipped has the clip norm C, so that a step has

    signal = ρ·C          noise = C·√(d·ν² + (1−ρ²)/b)

with ρ the alignment of what is clipped as one (a mean of k items has ρ/√(ρ² + (1−ρ²)/k)), d the parameters, ν the
noise of the silos' mean in units of C, and b the contributions to a step. C is a factor of both: the choice does not
depend on it, as long as contributions are clipped at all, and only its product with the learning rate counts.

The second is of the loss: a bowl whose k-th direction is 1/k as steep as the first, as natural data has it. How steep
the first is, is the spec's own knowledge: its learning rate is one that this direction bears. There is as far to go in
each direction, and noise falls on all of them alike; where the bowl is flat neither counts for much. In each direction
a step at learning rate η takes ηλ of what is left and adds its noise, so that where it ends can be computed for any
schedule. In a bowl that all silos share it makes no difference how many steps lie between two averages; where silos
differ one is best, and one is taken.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from wholegrain.clipping.clipping import ClipPer, Pool
from wholegrain.errors import SpecError, WholegrainError
from wholegrain.policies.guarantees import Row, federation_event, missing_bound, obstacles
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation
from wholegrain.policies.policy import Policy, PublicDivisor, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings, find, make_row
from wholegrain.privacy.calibration import first_guess
from wholegrain.privacy.definitions import Budget, Unit
from wholegrain.privacy.events import presence

ALIGNMENT = 0.3
"""How far a single item's gradient points the way: a cosine, from experience with small models."""
ENOUGH = 0.995
"""Of what the best candidate is predicted to learn, this share is worth having with fewer steps."""
KINDS = 24
"""The bowl's directions are computed in so many kinds of like ones."""
PACES = tuple(2.0 ** (half / 2) for half in range(-14, 5))
"""Learning rates that are weighed, as multiples of the spec's."""
RATES = (1.0, 0.3, 0.1)
STEPS = (20, 40, 60, 100, 200)
POLICIES = tuple(name for name, entry in CATALOG.items() if "local_steps" not in entry.reads)[::-1]
"""All of the catalogue that moves by gradients; what cannot be priced is passed over. Of equals the first is taken."""


@dataclass(frozen=True, kw_only=True)
class CandidatePlan:
    """A policy with a rate and a number of steps, the noise that the budget needs, and what is predicted of it."""

    policy: str
    settings: PolicySettings
    steps: int
    noise_multiplier: float
    schedule: str
    pace: float
    """The learning rate at the start, as a multiple of the spec's."""
    ratio: float
    """Signal to noise of all steps together, on a constant schedule."""
    left: float
    """How far from what could be learnt it is predicted to end: 0 is there, 1 nowhere near."""


@dataclass(frozen=True, kw_only=True)
class SearchQuery:
    """What is known in public: the silos, the budget for a subject, and how many parameters are trained."""

    federation: Federation
    budget: Budget
    parameters: int
    clip_norm: float = 1.0
    by_span: bool = False
    schedules: Mapping[str, Callable[[float], float]] = field(default_factory=lambda: {"constant": lambda done: 1.0})
    """What the learning rate is multiplied by when a share of the steps is done."""
    policies: tuple[str, ...] = POLICIES


def candidates(question: SearchQuery) -> tuple[CandidatePlan, ...]:
    """Every combination that can be priced, the best first."""
    found = [candidate for policy in question.policies for candidate in _of_policy(question, policy)]
    if not found:
        raise SpecError("No policy can be priced for these silos; declare items_per_subject, or allow subject_dp.")
    return tuple(sorted(found, key=lambda each: (each.left, each.steps)))


def best(found: Sequence[CandidatePlan]) -> CandidatePlan:
    """The shortest run among those that are predicted to learn nearly as much as the best."""
    near = [each for each in found if 1 - each.left >= ENOUGH * (1 - found[0].left)]
    return min(near, key=lambda each: (each.steps, each.left))


def leaders(found: Sequence[CandidatePlan]) -> tuple[CandidatePlan, ...]:
    """The best candidate of each policy, best first."""
    by_policy: dict[str, CandidatePlan] = {}
    for each in found:
        by_policy.setdefault(each.policy, each)
    return tuple(by_policy.values())


def _of_policy(question: SearchQuery, policy: str) -> Iterator[CandidatePlan]:
    reads = find(policy).reads
    by_span = question.by_span and "by_span" in reads
    for rate in RATES[:1] if by_span else RATES:  # by span, everybody is in every step
        settings = PolicySettings(
            rate=rate,
            clip_norm=question.clip_norm,
            group_cap=1 if "group_cap" in reads else None,
            by_span=by_span,
        )
        try:
            rows = [(make_row(policy, settings, silo), silo) for silo in question.federation.silos]
        except WholegrainError:  # this one does not go with these silos
            return
        if obstacles(rows[0][0], Unit.SUBJECT) or missing_bound(rows, Unit.SUBJECT):
            return
        for steps in STEPS:
            yield from _of_length(question, policy, settings, rows, steps)


def _of_length(
    question: SearchQuery, policy: str, settings: PolicySettings, rows: Sequence[Row], steps: int
) -> Iterator[CandidatePlan]:
    """For each schedule, the best learning rate."""
    multiplier = _noise(question, rows, steps)
    signal, noise = one_step(rows, multiplier, question.parameters, question.federation.reach)
    for name, schedule in question.schedules.items():
        paces = [schedule(step / steps) for step in range(steps)]
        remaining = misalignment(signal, noise, paces, parameters=question.parameters)
        fastest = int(remaining.argmin())
        yield CandidatePlan(
            policy=policy,
            settings=settings,
            steps=steps,
            noise_multiplier=multiplier,
            schedule=name,
            pace=PACES[fastest],
            ratio=math.sqrt(steps) * signal / noise,
            left=float(remaining[fastest]),
        )


def _noise(question: SearchQuery, rows: Sequence[Row], steps: int) -> float:
    """Nearly the noise that the budget needs; the plan that is made in the end is calibrated exactly."""
    horizon = Horizon(silos=tuple(silo.name for _, silo in rows), rounds=steps, steps=1)
    reach = question.federation.reach

    def event_of(noise: float) -> DpEvent:
        noisy = [(policy.with_noise(noise), silo) for policy, silo in rows]
        return federation_event(noisy, horizon.releases(), Unit.SUBJECT, reach)

    return first_guess(event_of, question.budget)


def one_step(rows: Sequence[Row], noise: float, parameters: int, reach: int) -> tuple[float, float]:
    """Signal and noise, in units of C, of a step in each of these silos, averaged by their public numbers of subjects.

    By span, a subject is taken to be in all silos that it may be in: then both shrink alike, and nothing is gained.
    """
    mass = sum(silo.subjects for _, silo in rows)
    signal, spread, own = 0.0, 0.0, 0.0
    for policy, silo in rows:
        share = silo.subjects / mass
        alignment, contributions = _contributions(policy, silo)
        divisor = policy.divisor.value if isinstance(policy.divisor, PublicDivisor) else 1.0
        weight = 1 / math.sqrt(reach) if policy.by_span else 1.0
        signal += share * alignment * weight * contributions / divisor
        spread += (share * noise / divisor) ** 2
        own += (share * weight / divisor) ** 2 * (1 - alignment**2) * contributions
    return signal, math.sqrt(parameters * spread + own)


def misalignment(
    signal: float, noise: float, schedule: Sequence[float], *, parameters: int, kinds: int = KINDS
) -> NDArray[np.float64]:
    """[pace] how far the end of a schedule is from what there was to learn: 1 − cos², weighed by how steep the bowl is.

    An angle, because what a classifier answers does not depend on the length of its scores. Noise makes it wider, and
    the more so the faster one goes:

    >>> quiet, loud = (misalignment(1.0, noise, [1.0] * 50, parameters=1000) for noise in (0.0, 10.0))
    >>> bool((quiet < loud).all()), bool(loud.argmin() < quiet.argmin())
    (True, True)
    """
    edges = np.unique(np.geomspace(1, parameters + 1, kinds + 1).round())
    counts, first = np.diff(edges), edges[:-1]  # [kind] how many directions, and the number of the first
    curvatures = 1 / np.sqrt(first * (edges[1:] - 1))
    weights = counts * curvatures
    # As far to go in each: the gradient, λ times the distance, has the length of the signal.
    distance = signal / math.sqrt((counts * curvatures**2).sum())
    gone = np.zeros((len(PACES), len(counts)))  # [pace, kind] expected
    squares = np.zeros_like(gone)  # of noise
    for pace in schedule:
        rates = pace * np.array(PACES)[:, None]
        gone += rates * curvatures * (distance - gone)
        squares = (1 - rates * curvatures) ** 2 * squares + rates**2 * noise**2 / parameters
    along = (weights * gone).sum(1) ** 2
    whole = weights.sum() * (weights * (gone**2 + squares)).sum(1)
    remaining: NDArray[np.float64] = 1 - along / whole
    return remaining


def _contributions(policy: Policy, silo: SiloFacts) -> tuple[float, float]:
    """Alignment of what is clipped as one, and how many of them a step is expected to sum."""
    typical = max(1.0, silo.items / silo.subjects)
    rate = getattr(policy.sampling, "rate", 1.0)
    if policy.clip.per is ClipPer.BATCH:
        return _alignment(rate * silo.items), 1.0
    if policy.clip.per is ClipPer.SUBJECT:
        return _alignment(typical), rate * silo.subjects
    if policy.clip.pool is Pool.MEAN:  # of k clipped items: shorter, but it points the better for it, and both cancel
        return ALIGNMENT, presence(rate, round(typical)) * silo.subjects
    cap = getattr(policy.sampling, "most_per_subject", None)
    drawn = rate * typical
    return ALIGNMENT, silo.subjects * (drawn if cap is None else min(drawn, float(cap)))


def _alignment(items: float) -> float:
    """Alignment of the mean of so many items' gradients.

    >>> round(_alignment(1), 3), _alignment(1e9) > 0.99
    (0.3, True)
    """
    return ALIGNMENT / math.sqrt(ALIGNMENT**2 + (1 - ALIGNMENT**2) / max(items, 1.0))
