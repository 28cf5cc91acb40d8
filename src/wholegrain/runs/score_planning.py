"""From a spec to the private scores of its run: their form, their noise, and how many people they are about."""

from dataclasses import dataclass

from wholegrain.data.tasks import Task
from wholegrain.errors import SpecError
from wholegrain.policies.plan import Plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.score_budget import add_scores, calibrate_scores
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.score_release import make_form

TEST_SHARE = 0.2
"""Of the people, held out where the spec does not say and the data has no test part of its own."""


@dataclass(frozen=True)
class ScoredData:
    """What is public of the data that is scored: what is predicted, whether it has a test part of its own, and whether
    each silo tosses its own coins about who is held out.
    """

    task: Task
    own_test: bool = False
    own_coins: bool = False


def plan_scores(plan: Plan, spec: RunSpec, facts: tuple[SiloFacts, ...], scored: ScoredData) -> Plan:
    """The plan with the private scores that the spec asks for; as it is, where it asks for none."""
    asked = spec.evaluation.private
    if asked is None:
        return plan
    _require_disjoint(spec)
    by_span = plan.trust is not None and spec.policy.by_span
    draft = ScorePlan(
        form=make_form(asked, scored.task, 1.0, by_span=by_span),
        every=asked.every,
        part=asked.part,
        sizes=held_out_sizes(spec, facts, scored.own_test),
        counted=not all(silo.declared for silo in facts),
        trust=plan.trust,
        own_coins=scored.own_coins,
        some_items=spec.evaluation.scored_items is not None,
    )
    if asked.noise_multiplier is not None:
        return add_scores(plan, draft.with_visible_noise(asked.noise_multiplier))
    return add_scores(plan, calibrate_scores(plan, draft, 1.0 if asked.share is None else asked.share))


def _require_disjoint(spec: RunSpec) -> None:
    """Refuse what could put one person on both sides, or protect nobody."""
    if spec.evaluation.by == "item":
        raise SpecError(
            'Private scores are of people who are not trained on, and evaluation.by = "item" trains on their other'
            ' items; set it to "subject".'
        )
    if Unit(spec.privacy.unit) is Unit.SILO:
        raise SpecError("Private scores protect people and items; nothing bounds what a whole silo adds to them.")
    if Unit(spec.privacy.unit) is Unit.ITEM and spec.evaluation.scored_items is not None:
        raise SpecError(
            "evaluation.scored_items scores some items of a person, so that an item that leaves lets another in, which"
            ' has no price; leave it out, or set privacy.unit = "subject".'
        )


def held_share(spec: RunSpec, own_test: bool = False) -> float:
    """The share of all people who are held out for private scores; 0 where nobody is."""
    private = spec.evaluation.private
    if private is None:
        return 0.0
    test = _test_share(spec, own_test)
    return test if private.part == "test" else (1 - test) * spec.evaluation.validation


def held_out_sizes(spec: RunSpec, facts: tuple[SiloFacts, ...], own_test: bool = False) -> dict[str, int]:
    """How many people each silo is expected to hold out, from the public number of those whom it trains on."""
    trained = (1 - _test_share(spec, own_test)) * (1 - spec.evaluation.validation)
    ratio = held_share(spec, own_test) / trained
    return {silo.name: max(1, round(silo.subjects * ratio)) for silo in facts}


def _test_share(spec: RunSpec, own_test: bool) -> float:
    if spec.evaluation.test is None:
        return 0.0 if own_test else TEST_SHARE
    return spec.evaluation.test
