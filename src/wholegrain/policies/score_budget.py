"""Private scores within a plan's budget: their noise, and the plan that releases them beside training."""

from dataclasses import replace

from dp_accounting import DpEvent

from wholegrain.errors import BudgetError, SpecError
from wholegrain.policies.plan import Plan, with_guarantees
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.privacy import events
from wholegrain.privacy.calibration import calibrate_noise
from wholegrain.privacy.definitions import Budget, Standing, Unit


def add_scores(plan: Plan, scores: ScorePlan) -> Plan:
    """The plan with private scores, priced side by side with training; refused where they would exceed the budget."""
    found = replace(plan, scores=scores, guarantees=tuple(g for g in plan.guarantees if g.standing is Standing.CLAIMED))
    found = with_guarantees(found)
    epsilon = found.guarantee(plan.unit).epsilon
    if plan.budget is not None and not epsilon <= plan.budget.epsilon:
        raise BudgetError(
            f"The private scores cost a person who is held out ε = {epsilon:.4g}, and the budget is"
            f" {plan.budget.epsilon:g}; raise evaluation.private.noise_multiplier or every, or give a share instead."
        )
    return found


def calibrate_scores(plan: Plan, scores: ScorePlan, share: float) -> ScorePlan:
    """The scores with the least noise with which they cost a person `share` of the budget's ε at most.

    Where a person may be trained on in one silo and held out in another, both together must fit the budget as well.
    """
    if plan.budget is None:
        raise SpecError(
            "evaluation.private takes its noise from a share of the budget, and there is none: set privacy.epsilon, or"
            " evaluation.private.noise_multiplier."
        )
    releases = scores.releases(plan.horizon.rounds)

    def alone(noise: float) -> DpEvent:
        return scores.with_visible_noise(noise).exposures(plan.span)[plan.unit].event(releases)

    def split(noise: float) -> DpEvent:
        terms = replace(plan, scores=scores.with_visible_noise(noise)).terms
        steps = plan.horizon.releases()
        return events.side_by_side(*(events.compose([a.event(steps), b.event(releases)]) for a, b in terms.split))

    least = calibrate_noise(alone, Budget(plan.budget.epsilon * share, plan.delta), plan.accountant)
    if plan.unit is Unit.SUBJECT and plan.accountant.epsilon(split(least), plan.delta) > plan.budget.epsilon:
        least = max(least, calibrate_noise(split, plan.budget, plan.accountant))
    return scores.with_visible_noise(least)
