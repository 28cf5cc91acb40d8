"""The paper to the letter [Marathe, Algorithms 1–3]: its rows, its calibration, both its ways of horizontal
composition.

Standing CLAIMED. These rows exist to reproduce the paper; where the printed claim falls short, and what can be proved
instead, stands beside it in the plan. Nothing here is in the catalogue, and nothing in the catalogue uses it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from wholegrain import _check
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.data.sampling import FixedItems
from wholegrain.errors import SpecError
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Plan, with_guarantees
from wholegrain.policies.policy import (
    FixedNoise,
    Noise,
    NoiseByLargestGroup,
    Policy,
    PublicDivisor,
    RealisedSubjects,
    SiloFacts,
)
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.accountants import DEFAULT, Accountant, RdpAccountant
from wholegrain.privacy.calibration import calibrate_noise
from wholegrain.privacy.definitions import Budget, Guarantee, Standing, Unit
from wholegrain.privacy.events import gaussian, repeat, sampled_gaussian
from wholegrain.privacy.group_privacy import item_budget

# The moments accountant is exact enough to compare digits with.
PRINTED_TOLERANCE = 1e-6


class Composition(StrEnum):
    """How the paper pays for a subject that lives in several silos."""

    FEWER_ROUNDS = "fewer_rounds"
    """First way: noise for R rounds, train only R/√s. Not sound: it takes R/s."""
    MORE_LOTS = "more_lots"
    """Second way: noise for T·R·s lots. Sound as far as composition goes."""


@dataclass(frozen=True, kw_only=True)
class PrintedSilo:
    """What the paper's calibration reads of one silo. Private: `largest_subject` is read off the data."""

    facts: SiloFacts
    batch_size: int
    largest_subject: int
    lots: int
    """How many steps to calibrate for."""

    @property
    def batch(self) -> int:
        """B, or all items where a silo has fewer."""
        return min(self.batch_size, self.facts.items)

    @property
    def rate(self) -> float:
        """Q = B/|D_i|."""
        return self.batch / self.facts.items


@cache
def item_noise(budget: Budget, rate: float, lots: int) -> float:
    """σ of LocalItemDP: the moments accountant on the Poisson-sampled Gaussian."""
    return calibrate_noise(
        lambda noise: repeat(sampled_gaussian(rate, noise), lots),
        budget,
        RdpAccountant(),
        PRINTED_TOLERANCE,
    )


def group_noise(budget: Budget, rate: float, lots: int, size: int) -> float:
    """σ_Z of LocalGroupDP: item_noise for ε = E/Z and δ = Δ/(Z·e^{(Z−1)E/Z})."""
    return item_noise(item_budget(budget, size), rate, lots)


@dataclass(frozen=True)
class GroupNoise:
    """`group_noise` as a function of the size alone."""

    budget: Budget
    rate: float
    lots: int

    def __call__(self, size: int) -> float:
        """σ_Z."""
        return group_noise(self.budget, self.rate, self.lots, size)


def higradavg_noise(budget: Budget, rate: float, lots: int, largest: int) -> float:
    """σ of HiGradAvgDP: item_noise at the subject sampling fraction min(1, kB/|D_i|)."""
    return item_noise(budget, min(1.0, largest * rate), lots)


def user_noise(budget: Budget, lots: int) -> float:
    """σ of UserLDP: q = 1 and sensitivity C."""
    return calibrate_noise(lambda noise: repeat(gaussian(noise), lots), budget, RdpAccountant(), PRINTED_TOLERANCE)


def user_ldp_condition(budget: Budget) -> float:
    """The noise that UserLDP's theorem asks for besides: 1/(√(2π)·ε·δ·e^ε) [Marathe, Theorem 3.13].

    >>> round(user_ldp_condition(Budget(4.0, 1e-5)), 1)
    182.7
    """
    scale = math.sqrt(2 * math.pi) * budget.epsilon * budget.delta
    return math.exp(-budget.epsilon) / scale


def _fedavg(silo: PrintedSilo, budget: Budget, clip_norm: float) -> Policy:
    return _row("fedavg", silo, Clip(ClipPer.NONE, Pool.SUM, clip_norm), FixedNoise(0.0))


def _local_item_dp(silo: PrintedSilo, budget: Budget, clip_norm: float) -> Policy:
    noise = FixedNoise(item_noise(budget, silo.rate, silo.lots))
    return _row("local_item_dp", silo, Clip(ClipPer.ITEM, Pool.SUM, clip_norm), noise)


def _local_group_dp(silo: PrintedSilo, budget: Budget, clip_norm: float) -> Policy:
    noise = NoiseByLargestGroup(GroupNoise(budget, silo.rate, silo.lots), min(silo.largest_subject, silo.batch))
    return _row("local_group_dp", silo, Clip(ClipPer.ITEM, Pool.SUM, clip_norm), noise)


def _higradavg_dp(silo: PrintedSilo, budget: Budget, clip_norm: float) -> Policy:
    noise = higradavg_noise(budget, silo.rate, silo.lots, silo.largest_subject)
    row = _row("higradavg_dp", silo, Clip(ClipPer.ITEM, Pool.MEAN, clip_norm), FixedNoise(noise))
    return replace(row, divisor=RealisedSubjects())


def _user_ldp(silo: PrintedSilo, budget: Budget, clip_norm: float) -> Policy:
    noise = FixedNoise(user_noise(budget, silo.lots))
    row = _row("user_ldp", silo, Clip(ClipPer.BATCH, Pool.MEAN, clip_norm), noise)
    return replace(row, divisor=PublicDivisor(1.0))


def _row(name: str, silo: PrintedSilo, clip: Clip, noise: Noise) -> Policy:
    """A batch of exactly B items, divided by B."""
    return Policy(
        name=name,
        sampling=FixedItems(silo.batch),
        clip=clip,
        noise=noise,
        divisor=PublicDivisor(float(silo.batch)),
    )


PRINTED: Mapping[str, Callable[[PrintedSilo, Budget, float], Policy]] = {
    "fedavg": _fedavg,
    "local_item_dp": _local_item_dp,
    "local_group_dp": _local_group_dp,
    "higradavg_dp": _higradavg_dp,
    "user_ldp": _user_ldp,
}

CLAIMED_UNIT = {
    "local_item_dp": Unit.ITEM,
    "local_group_dp": Unit.SUBJECT,
    "higradavg_dp": Unit.SUBJECT,
    "user_ldp": Unit.SUBJECT,
}


def make_printed_plan(
    policy: str,
    settings: PolicySettings,
    federation: Federation,
    horizon: Horizon,
    budget: Budget,
    *,
    largest_subject: Mapping[str, int],
    composition: Composition = Composition.FEWER_ROUNDS,
    accountant: Accountant = DEFAULT,
) -> Plan:
    """The paper's plan: the horizon given is R; what is returned trains as many rounds as the paper would.

    Private: `largest_subject` (the paper's k) sets the noise, as printed; a plan made so is never PROVED by it.
    """
    build = PRINTED[_check.one_of("printed policy", policy, PRINTED)]
    if settings.batch_size is None:
        raise SpecError("The paper's algorithms draw batches of a fixed size: give batch_size, not rate.")
    spread = CLAIMED_UNIT.get(policy) is Unit.SUBJECT
    lots = horizon.rounds * horizon.steps
    if spread and composition is Composition.MORE_LOTS:
        lots *= horizon.cohort_count
    silos = [
        PrintedSilo(
            facts=facts,
            batch_size=settings.batch_size,
            largest_subject=largest_subject[facts.name],
            lots=lots,
        )
        for facts in federation.silos
    ]
    rows = tuple((build(silo, budget, settings.clip_norm), silo.facts) for silo in silos)
    if spread and composition is Composition.FEWER_ROUNDS:
        horizon = replace(horizon, rounds=_fewer_rounds(horizon))
    draft = Plan(
        policy=policy,
        rows=rows,
        horizon=horizon,
        span=federation.reach,
        unit=Unit.SUBJECT,
        delta=budget.delta,
        accountant=accountant,
        guarantees=_claim(policy, rows, budget, composition),
    )
    return with_guarantees(draft)


def _fewer_rounds(horizon: Horizon) -> int:
    rounds = int(horizon.rounds / math.sqrt(horizon.cohort_count))
    if rounds < 1:
        raise SpecError(
            f"{horizon.rounds} rounds divided by √{horizon.cohort_count} leave none to train; the"
            " paper's first way of horizontal composition needs more rounds."
        )
    return rounds


def _claim(
    policy: str, rows: tuple[tuple[Policy, SiloFacts], ...], budget: Budget, way: Composition
) -> tuple[Guarantee, ...]:
    if policy not in CLAIMED_UNIT:
        return ()
    unit = CLAIMED_UNIT[policy]
    because = f"as printed, horizontal composition by {way}" if unit is Unit.SUBJECT else "as printed"
    if rows[0][0].clip.per is ClipPer.BATCH:
        because += "; claimed of a silo, and so of each subject"
        needed = user_ldp_condition(budget)
        least = min(row.noise.multiplier for row, _ in rows if isinstance(row.noise, FixedNoise))
        met = "met" if least > needed else "not met"
        because += f"; its condition σ > {needed:.4g} is {met} by σ = {least:.4g}"
    return (
        Guarantee(
            unit=unit,
            standing=Standing.CLAIMED,
            epsilon=budget.epsilon,
            delta=budget.delta,
            accountant=RdpAccountant().name,
            because=because,
        ),
    )
