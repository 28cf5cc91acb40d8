"""What paid tuning costs: one price for the best of a random number of trials, and the noise that meets a budget.

A trial draws settings, trains with them and scores what came of it privately. Its event is the worst over all settings
that it may draw, and for each of them the worse of training and of scores, which concern different people. The best of
the trials is then priced as one release (`privacy.renyi`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dp_accounting import DpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from wholegrain.errors import AccountingError, BudgetError, SpecError
from wholegrain.policies.plan import Plan
from wholegrain.privacy import events
from wholegrain.privacy.accountants import SELECTION
from wholegrain.privacy.calibration import first_guess, least_noise
from wholegrain.privacy.definitions import Budget, Guarantee, Standing, Unit
from wholegrain.privacy.pricing import Exposure, Terms
from wholegrain.privacy.renyi import renyi_epsilon
from wholegrain.privacy.trial_count import TrialCount

TRIALS = "all trials"
"""Stands for all silos in the ledger: the best trial is one release of all of them together."""

UNITS = (Unit.SUBJECT, Unit.ITEM)
CLOSE = 0.005
"""How much of the budget may be left when the search for noise ends."""
MOST_PASSES = 12

PlanMaker = Callable[[float, float], Plan]
"""The plan of one combination of settings, with these noise multipliers of training and of scores."""


@dataclass(frozen=True)
class Noise:
    """The noise multipliers of one combination's trials."""

    training: float
    scores: float


@dataclass(frozen=True)
class SelectionPlan:
    """Plans of all combinations with their noise, and what the best of all trials costs."""

    count: TrialCount
    plans: tuple[Plan, ...]
    noise: tuple[Noise, ...]

    def event(self, unit: Unit) -> DpEvent:
        """What the best trial reveals of a unit."""
        return RepeatAndSelectDpEvent(self.trial_event(unit), self.count.mean, self.count.shape)

    def trial_event(self, unit: Unit) -> DpEvent:
        """What any one trial reveals of a unit."""
        found = [_trial(plan, unit) for plan in self.plans]
        return events.worst_of(case for event in found for case in events.iterate_cases(event))

    @property
    def terms(self) -> Terms:
        """On what terms the ledger prices the best trial, as one step."""
        return Terms({unit: Exposure(1, {TRIALS: self.event(unit)}, self.event(unit)) for unit in UNITS})

    def epsilon(self, unit: Unit) -> float:
        """The price at the plans' δ."""
        return renyi_epsilon(self.event(unit), self.plans[0].delta)

    def guarantees(self) -> tuple[Guarantee, ...]:
        """What is proved of the best trial, for a subject and for an item; nothing is for a silo."""
        return tuple(self._guarantee(planned) for planned in self.plans[0].guarantees)

    def _guarantee(self, planned: Guarantee) -> Guarantee:
        if planned.standing is not Standing.PROVED or planned.unit not in UNITS:
            why = "the best of several trials is priced for subjects and items alone"
            return replace(planned, standing=Standing.NONE, epsilon=math.inf, because=why, event=None)
        alone = max(plan.accountant.epsilon(_trial(plan, planned.unit), plan.delta) for plan in self.plans)
        because = (
            f"the best of {self.count} trials is released, and neither the others nor their number; a trial alone costs"
            f" ε = {alone:.4g}, where whoever is trained on pays for training and whoever is held out for scores"
        )
        return replace(
            planned,
            epsilon=self.epsilon(planned.unit),
            accountant=SELECTION,
            because=because,
            event=self.event(planned.unit),
        )


def _trial(plan: Plan, unit: Unit) -> DpEvent:
    return plan.terms.event(unit, plan.horizon.releases(), plan.score_releases)


def require_proved(plan: Plan) -> None:
    """Refuse a trial that protects nobody."""
    found = plan.guarantee(plan.unit)
    if found.standing is not Standing.PROVED or plan.claimed is not None:
        raise SpecError(f"A trial's own guarantee must be PROVED, and {plan.policy} has none: {found.because}.")
    if plan.unit not in UNITS:
        raise SpecError("Tuning is priced for subjects and items; set privacy.unit to one of them.")


def plan_selection(
    makers: tuple[PlanMaker, ...], count: TrialCount, budget: Budget | None, given: Noise | None, share: float = 1.0
) -> SelectionPlan:
    """The plans of all combinations, with the given noise or the least that meets the budget."""
    if given is not None:
        return _make(makers, count, (given,) * len(makers))
    if budget is None:
        raise SpecError("Tuning needs privacy.epsilon, the budget of the chosen model, or privacy.noise_multiplier.")
    # Each side alone meets the target; together, the worst at every order may cost a little more.
    target = budget.epsilon
    for _ in range(MOST_PASSES):
        found = _make(makers, count, tuple(_least(maker, count, target, share, budget.delta) for maker in makers))
        spent = found.epsilon(found.plans[0].unit)
        if spent <= budget.epsilon:
            return found
        target *= min(budget.epsilon / spent, 1.0) * (1 - CLOSE / 5)
    raise BudgetError(f"No noise was found with which {count} trials cost ε = {budget.epsilon:g}; train less.")


def _make(makers: tuple[PlanMaker, ...], count: TrialCount, noise: tuple[Noise, ...]) -> SelectionPlan:
    plans = tuple(make(each.training, each.scores) for make, each in zip(makers, noise, strict=True))
    return SelectionPlan(count, plans, noise)


def _least(maker: PlanMaker, count: TrialCount, epsilon: float, share: float, delta: float) -> Noise:
    """The least noise of training, and of scores, with which either alone meets ε (of scores, a share of it)."""

    def training(noise: float) -> DpEvent:
        plan = maker(noise, 1.0)
        return plan.terms.of(plan.unit).event(plan.horizon.releases())

    def scores(noise: float) -> DpEvent:
        plan = maker(1.0, noise)
        assert plan.scores is not None
        return plan.scores.exposures(plan.span)[plan.unit].event(plan.score_releases)

    return Noise(
        _least_noise(training, count, Budget(epsilon, delta)),
        _least_noise(scores, count, Budget(epsilon * share, delta)),
    )


def _least_noise(event_of: Callable[[float], DpEvent], count: TrialCount, budget: Budget) -> float:
    def cost(noise: float) -> float:
        return renyi_epsilon(RepeatAndSelectDpEvent(event_of(noise), count.mean, count.shape), budget.delta)

    guess = first_guess(event_of, Budget(budget.epsilon / 2, budget.delta))
    try:
        return least_noise(cost, guess, budget, tolerance=CLOSE)
    except AccountingError as error:
        raise SpecError(f"A trial cannot be priced: {error}") from error
