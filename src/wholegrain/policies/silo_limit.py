"""What a plan costs in a silo's own ledger, and the limit that its charter needs.

A silo prices what is asked of it by a filter, since it cannot know what it will be asked next, and a filter's ε is
larger than the plan's. How much larger depends on noise, rate and length: there is no rule of thumb for it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from wholegrain.policies.guarantees import Row, terms
from wholegrain.policies.plan import Plan
from wholegrain.policies.score_plan import add_score_terms
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.privacy.pricing import Exposure, Spending, Terms, price

STEP = 1.01
"""By so much a limit is raised until it pays for itself: a filter is tuned for its limit."""


def own_terms(rows: list[Row], silo: str, span: int, scores: ScoreForm | None) -> Terms:
    """What a round of a secure sum over these silos reveals, as one silo's ledger has it: under its own name alone.

    Every silo decides by itself whom it holds out, so that a person may be trained on here and held out elsewhere.
    """
    whole = terms(rows, min(span, len(rows)))
    if scores is not None:
        whole = add_score_terms(whole, rows, scores, min(span, len(rows)), own_coins=True)

    def own(exposure: Exposure) -> Exposure:
        return Exposure(1, {silo: exposure.steps[silo]}, exposure.worst)

    through, scored = whole.through_subject, whole.scores
    return Terms(
        {unit: own(each) for unit, each in whole.exposures.items()},
        through and own(through),
        None if scored is None else {unit: own(each) for unit, each in scored.items()},
        tuple((own(one), own(other)) for one, other in whole.split),
    )


def local_terms(row: Row, scores: ScoreForm | None) -> Terms:
    """What a step of a silo's own release reveals, as its ledger has it."""
    trained = terms([row], span=1)
    return trained if scores is None else add_score_terms(trained, [row], scores, 1, own_coins=False)


def least_limits(plan: Plan) -> Mapping[str, float]:
    """By silo, the smallest limit with which its ledger pays for all that is planned, in three digits.

    It is for charters with the plan's unit, δ, K and span. Under a secure sum every round is priced as one that all
    silos take part in; over fewer of them a person adds up less. Infinite where nothing can be proved.
    """
    known: dict[object, float] = {}
    found, steps, scores = {}, plan.horizon.releases(), plan.score_releases
    for policy, facts in plan.rows:
        counts = steps.get(facts.name, 0), scores.get(facts.name, 0)
        alike = policy, replace(facts, name=""), counts
        if alike not in known:
            known[alike] = _least_limit(plan, (policy, facts), *counts)
        found[facts.name] = known[alike]
    return found


def _least_limit(plan: Plan, row: Row, steps: int, scores: int) -> float:
    silo, form = row[1].name, None if plan.scores is None else plan.scores.form
    own = local_terms(row, form) if plan.trust is None else own_terms(list(plan.rows), silo, plan.span, form)
    spent = [Spending(own, {silo: steps}, {silo: scores})]

    def needed(limit: float | None) -> float:
        return price(spent, plan.unit, plan.accountant.as_filter(limit), plan.delta)

    limit = _rounded_up(needed(None))
    while math.isfinite(limit) and (better := _rounded_up(needed(limit))) < limit:
        limit = better
    while math.isfinite(limit) and needed(limit) > limit:
        limit = _rounded_up(limit * STEP)
    return limit


def _rounded_up(value: float) -> float:
    """The next number of three digits.

    >>> _rounded_up(4.6201), _rounded_up(0.58781)
    (4.63, 0.588)
    """
    if value <= 0 or not math.isfinite(value):
        return value
    digits = 2 - math.floor(math.log10(value))
    scale = 10.0**digits
    return round(math.ceil(value * scale) / scale, max(digits, 0))
