"""What is on record of a plan: its numbers, which read and write their own file form."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from wholegrain.policies.plan import Plan, rounds_allowed
from wholegrain.policies.policy import FixedNoise, NoiseByLargestGroup, Policy
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.privacy.definitions import Guarantee, Standing, Unit


@dataclass(frozen=True)
class SiloPlan:
    """What is planned for one silo: its public sizes, how it samples and how much noise it adds."""

    name: str
    items: int
    subjects: int
    items_per_subject: int | None
    steps: int
    sampling: Mapping[str, Any]
    """The kind of sampling and its settings."""
    clip_per: str
    clip_norm: float
    noise_multiplier: float | list[float] | None
    """The least and the most where batches decide."""


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """A plan in numbers: per silo, and as a whole."""

    policy: str
    unit: Unit
    rounds: int
    steps_per_round: int
    cohort: int
    span: int
    rounds_allowed: int | None
    guarantees: tuple[Guarantee, ...]
    silos: tuple[SiloPlan, ...]
    scores: Mapping[str, Any] | None = None
    """The private scores that are planned: their form, when, of which part, and how many people each silo holds out."""

    @staticmethod
    def of(plan: Plan) -> "PlanRecord":
        """The record of a plan, before any training."""
        releases = plan.horizon.releases()
        return PlanRecord(
            policy=plan.policy,
            unit=plan.unit,
            rounds=plan.horizon.rounds,
            steps_per_round=plan.horizon.steps,
            cohort=plan.horizon.cohort_count,
            span=plan.span,
            rounds_allowed=rounds_allowed(plan),
            guarantees=plan.guarantees,
            silos=tuple(
                SiloPlan(
                    name=facts.name,
                    items=facts.items,
                    subjects=facts.subjects,
                    items_per_subject=facts.items_per_subject,
                    steps=releases.get(facts.name, 0),
                    sampling={"kind": type(policy.sampling).__name__, **asdict(policy.sampling)},
                    clip_per=str(policy.clip.per),
                    clip_norm=policy.clip.norm,
                    noise_multiplier=_noise_multiplier(policy),
                )
                for policy, facts in plan.rows
            ),
            scores=None if plan.scores is None else _score_facts(plan.scores),
        )

    @property
    def promise(self) -> Guarantee:
        """What can be proved for the unit that the budget protects, or that nothing can."""
        return proper(self.guarantees, self.unit)

    @property
    def claim(self) -> Guarantee | None:
        """What the paper claims, where the plan was made as printed."""
        return next((found for found in self.guarantees if found.standing is Standing.CLAIMED), None)

    def facts(self) -> dict[str, Any]:
        """The record as JSON has it."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.scores is None:
            del facts["scores"]
        return facts | {
            "unit": str(self.unit),
            "guarantees": [guarantee.facts() for guarantee in self.guarantees],
            "silos": [asdict(silo) for silo in self.silos],
        }

    @staticmethod
    def read(facts: Mapping[str, Any]) -> "PlanRecord":
        """The record that `facts` wrote."""
        return PlanRecord(
            **{
                **facts,
                "unit": Unit(facts["unit"]),
                "guarantees": tuple(Guarantee.read(each) for each in facts["guarantees"]),
                "silos": tuple(SiloPlan(**each) for each in facts["silos"]),
            }
        )


def _score_facts(scores: ScorePlan) -> dict[str, Any]:
    return {
        **scores.form.model_dump(mode="json"),
        "every": scores.every,
        "part": scores.part,
        "people": dict(scores.sizes),
        "counted": scores.counted,
    }


def proper(guarantees: tuple[Guarantee, ...], unit: Unit) -> Guarantee:
    """The guarantee for this unit that is more than a claim."""
    return next(found for found in guarantees if found.unit is unit and found.standing is not Standing.CLAIMED)


def _noise_multiplier(policy: Policy) -> float | list[float] | None:
    if isinstance(policy.noise, FixedNoise):
        return policy.noise.multiplier
    if isinstance(policy.noise, NoiseByLargestGroup):
        return [policy.noise.by_size(1), policy.noise.by_size(policy.noise.largest)]
    return None
