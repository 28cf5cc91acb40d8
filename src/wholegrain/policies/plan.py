"""The plan: everything that must agree for a guarantee to hold, calibrated, frozen, made before any silo trains.

A plan is made from public facts only. What it promises is in its guarantees; `epsilon` prices what was really
released, by the same accountant and the same events.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dp_accounting import DpEvent

from wholegrain import _check
from wholegrain._html import html_table
from wholegrain.errors import AccountingError, BudgetError, SpecError
from wholegrain.policies.guarantees import Row, federation_epsilon, federation_event, missing_bound, obstacles, terms
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.policy import MOST_SPAN, FixedNoise, Policy, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, make_row
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.privacy.accountants import DEFAULT, Accountant
from wholegrain.privacy.calibration import MOST_NOISE, first_guess, least_noise, most_rounds
from wholegrain.privacy.definitions import Budget, Guarantee, Standing, Unit
from wholegrain.privacy.pricing import NOTHING, Releases, Spending, Terms, price
from wholegrain.privacy.trust import SecureSum


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One row per silo, how long, for which budget, and what that guarantees.

    `unit` is whom the budget protects and `span` is M, the most silos that hold one subject. `budget` is None where
    nothing is enforced (FedAvg, noise given by hand, the paper as printed).
    """

    policy: str
    rows: tuple[Row, ...]
    horizon: Horizon
    span: int
    unit: Unit
    delta: float
    accountant: Accountant
    budget: Budget | None = None
    guarantees: tuple[Guarantee, ...] = ()
    scores: ScorePlan | None = None
    """Private scores of people who are held out, if there are any."""

    def policy_for(self, silo: str) -> Policy:
        """The row of this silo."""
        return self._by_silo[silo]

    @cached_property
    def _by_silo(self) -> Mapping[str, Policy]:
        return {facts.name: policy for policy, facts in self.rows}

    def epsilon(self, releases: Mapping[str, int], unit: Unit | None = None) -> float:
        """What these releases cost, proved; infinite where nothing can be."""
        return federation_epsilon(self.rows, releases, unit or self.unit, self.span, self.accountant, self.delta)

    def __str__(self) -> str:
        counts = ((self.horizon.rounds, "round"), (self.horizon.steps, "step"), (len(self.rows), "silo"))
        rounds, steps, silos = (f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
        return f"{self.policy}, {rounds} of {steps} in {silos}"

    def _repr_html_(self) -> str:
        rows = [(each.unit, f"{each.epsilon:.4g}", f"{each.delta:g}", each.standing) for each in self.guarantees]
        noise = [row.noise.multiplier for row, _ in self.rows if isinstance(row.noise, FixedNoise)]
        note = f"Noise multiplier {max(noise):.4g}." if noise else ""
        return html_table(f"Plan: {self}", ("protects", "ε", "δ", "standing"), rows, note)

    @property
    def trust(self) -> SecureSum | None:
        """The secure sum over all silos; None where each silo's release is seen."""
        return self.rows[0][0].trust

    @property
    def terms(self) -> Terms:
        """What one step of each silo reveals, for every unit: all that a ledger needs to price what was released."""
        trained = terms(self.rows, self.span)
        return trained if self.scores is None else self.scores.add_to(trained, self.rows, self.span)

    @property
    def score_releases(self) -> Releases:
        """Private scores that each silo is to release."""
        return NOTHING if self.scores is None else self.scores.releases(self.horizon.rounds)

    def guarantee(self, unit: Unit = Unit.SUBJECT) -> Guarantee:
        """The strongest standing for this unit: proved before none; what is only claimed is never returned here."""
        proper = [g for g in self.guarantees if g.unit is unit and g.standing is not Standing.CLAIMED]
        if not proper:
            raise SpecError(f"The plan says nothing about the unit '{unit}'.")
        return proper[0]

    @property
    def claimed(self) -> Guarantee | None:
        """What the paper claims of this plan, if it was made as printed."""
        claims = [g for g in self.guarantees if g.standing is Standing.CLAIMED]
        return claims[0] if claims else None


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The public facts of the silos, and M."""

    silos: tuple[SiloFacts, ...]
    span: int | None = None

    def __post_init__(self) -> None:
        if not self.silos:
            raise SpecError("A federation needs at least one silo.")
        if self.span is not None and _check.count("span", self.span) > len(self.silos):
            raise SpecError(f"span = {self.span} is more than the {len(self.silos)} silos of the federation.")

    @property
    def reach(self) -> int:
        """M: the most silos that may hold one subject."""
        return self.span or len(self.silos)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the plan is to meet.

    With a budget and no noise, noise is calibrated. With noise and a budget, the horizon is checked. With noise and no
    budget (ε None), whatever follows is reported.
    """

    epsilon: float | None
    delta: float
    unit: Unit = Unit.SUBJECT
    noise_multiplier: float | None = None
    accountant: Accountant = DEFAULT

    def __post_init__(self) -> None:
        _check.fraction("delta", self.delta)
        if self.epsilon is not None:
            _check.positive("epsilon", self.epsilon)
        if self.noise_multiplier is not None:
            _check.positive("noise_multiplier", self.noise_multiplier)
            if self.noise_multiplier > MOST_NOISE:
                raise SpecError(f"noise_multiplier = {self.noise_multiplier:g} is beyond {MOST_NOISE:g}.")

    @property
    def budget(self) -> Budget | None:
        """The budget, if there is one."""
        return None if self.epsilon is None else Budget(self.epsilon, self.delta)


def make_plan(policy: str, settings: PolicySettings, federation: Federation, horizon: Horizon, goal: Goal) -> Plan:
    """A plan whose guarantees are proved, or an error that says why there is none.

    >>> silos = tuple(SiloFacts(name=n, items=900, subjects=300, items_per_subject=5) for n in "ab")
    >>> plan = make_plan(
    ...     "subject_dp", PolicySettings(rate=0.1), Federation(silos=silos),
    ...     Horizon(silos=("a", "b"), rounds=10, steps=2), Goal(epsilon=2.0, delta=1e-5))
    >>> print(plan.guarantee())
    subject: ε = 2, δ = 1e-05, PROVED by pld
    """
    rows = tuple((make_row(policy, settings, silo), silo) for silo in federation.silos)
    if settings.by_span and len(rows) > MOST_SPAN:
        raise SpecError(f"by_span is for at most {MOST_SPAN} silos, and there are {len(rows)}.")
    if settings.trust is not None:
        _require_summable(policy, settings.trust, rows, horizon)
    draft = Plan(
        policy=policy,
        rows=rows,
        horizon=horizon,
        span=federation.reach,
        unit=goal.unit,
        delta=goal.delta,
        accountant=goal.accountant,
    )
    if rows[0][0].noise is not None:  # FedAvg: nothing to calibrate and nothing to promise
        return with_guarantees(draft)
    _require_priceable(draft, goal)
    if goal.noise_multiplier is None:
        draft = _calibrate(draft, goal)
    else:
        draft = _with_noise(draft, goal.noise_multiplier)
        _require_met(draft, goal)
    return with_guarantees(replace(draft, budget=goal.budget))


def _require_summable(policy: str, trust: SecureSum, rows: tuple[Row, ...], horizon: Horizon) -> None:
    """Refuse what is no sum over all silos: the sum of gradients at one point is what is linear."""
    if rows[0][0].noise is not None:
        raise SpecError(f"{policy} adds no noise, so a secure sum would protect nobody; choose a private policy.")
    if horizon.steps != 1:
        raise SpecError(
            f"rounds.steps = {horizon.steps}: a secure sum adds up one step of every silo in a round; set rounds.steps"
            " to 1 and rounds.count to more, or trust.model to 'local'."
        )
    if horizon.cohort_count != len(rows) or trust.silos != len(rows):
        raise SpecError("A secure sum is over all silos in every round; leave out rounds.cohort.")


def rounds_allowed(plan: Plan) -> int | None:
    """The most rounds that the plan's noise and budget allow; None where there is no budget."""
    if plan.budget is None:
        return None
    return most_rounds(lambda rounds: plan.epsilon(plan.horizon.releases(rounds)), plan.budget)


def with_guarantees(plan: Plan) -> Plan:
    """The plan with what can be proved for each unit, after any claim that it already carries."""
    found = tuple(_guarantee(plan, unit) for unit in (Unit.SUBJECT, Unit.ITEM, Unit.SILO))
    return replace(plan, guarantees=plan.guarantees + found)


def _guarantee(plan: Plan, unit: Unit) -> Guarantee:
    reasons = _obstacles(plan, unit) or _missing_bound(plan, unit)
    if plan.scores is not None and unit is Unit.SILO:
        reasons = (*reasons, "private scores bound what a person adds to them, not what a silo does")
    if reasons:
        return Guarantee(
            unit=unit,
            standing=Standing.NONE,
            epsilon=math.inf,
            delta=plan.delta,
            accountant=plan.accountant.name,
            because="; ".join(reasons),
        )
    released = Spending(plan.terms, plan.horizon.releases(), plan.score_releases)
    event = released.terms.event(unit, released.steps, released.scores)
    epsilon = price([released], unit, plan.accountant, plan.delta)
    through_subject = epsilon < plan.accountant.epsilon(event, plan.delta)
    return Guarantee(
        unit=unit,
        standing=Standing.PROVED,
        epsilon=epsilon,
        delta=plan.delta,
        accountant=plan.accountant.name,
        trust=plan.trust,
        because=("at most twice what its subject pays in one silo" if through_subject else _composition(plan, unit))
        + _beside(plan, unit),
        event=None if through_subject else event,
    )


def _beside(plan: Plan, unit: Unit) -> str:
    """Why scores do not come on top: nobody pays for both."""
    if plan.scores is None:
        return ""
    alone = plan.scores.exposures(plan.span)[unit].event(plan.score_releases)
    epsilon = plan.accountant.epsilon(alone, plan.delta)
    count = plan.scores.count(plan.horizon.rounds)
    many = "1 private score" if count == 1 else f"{count} private scores"
    if plan.scores.own_coins and plan.span > 1 and unit is Unit.SUBJECT:
        return f"; whoever is held out pays for {many} instead (ε = {epsilon:.4g}), in each silo for one of the two"
    return f"; whoever is held out pays for {many} instead (ε = {epsilon:.4g}), and nobody for both"


def _composition(plan: Plan, unit: Unit) -> str:
    if plan.trust is not None:
        return _sum_of_silos(plan, plan.trust)
    if unit is not Unit.SUBJECT:
        return f"an {unit} pays in one silo" if unit is Unit.ITEM else "each silo pays for itself"
    if all(policy.by_share for policy, _ in plan.rows):
        return "a subject with a share w of its items in a silo counts √w there: together they reveal what one would"
    if all(policy.by_span for policy, _ in plan.rows):
        return "a subject in m silos counts 1/√m in each: together they reveal at most what the worst one would"
    if plan.span >= len(plan.rows):
        whose = "the one silo" if len(plan.rows) == 1 else f"all {len(plan.rows)} silos"
        return f"the releases of {whose} are composed"
    most = "1 silo" if plan.span == 1 else f"{plan.span} silos"
    return f"a subject is in {most} at most; the worst step is composed as often"


def _sum_of_silos(plan: Plan, trust: SecureSum) -> str:
    seen = f"only sums of at least {trust.answers} of {trust.silos} silos are seen"
    return f"{seen}, {trust.colluding} of them colluding at most; {_weight_in_sum(plan)}"


def _weight_in_sum(plan: Plan) -> str:
    if plan.rows[0][0].by_share:
        return "a subject counts in each silo by its share of items there"
    return "a subject in m silos counts 1/m in each" if plan.rows[0][0].by_span else f"in {plan.span} silos at most"


def _obstacles(plan: Plan, unit: Unit) -> tuple[str, ...]:
    """Those of any silo's row: a policy of one's own may give each silo another."""
    return tuple(dict.fromkeys(reason for policy, _ in plan.rows for reason in obstacles(policy, unit)))


def _missing_bound(plan: Plan, unit: Unit) -> tuple[str, ...]:
    silo = missing_bound(plan.rows, unit)
    return () if silo is None else (f"no public bound on the items of one subject is declared for '{silo}'",)


def _require_priceable(plan: Plan, goal: Goal) -> None:
    reasons = _obstacles(plan, plan.unit)
    if reasons:
        raise SpecError(f"{plan.policy} cannot promise anything for the unit '{plan.unit}': {'; '.join(reasons)}.")
    missing = _missing_bound(plan, plan.unit)
    if missing and goal.budget is not None:
        raise AccountingError(f"{plan.policy} needs items_per_subject: {missing[0]}.")


def _calibrate(plan: Plan, goal: Goal) -> Plan:
    if goal.budget is None:
        raise SpecError(f"{plan.policy} needs epsilon (in a spec, privacy.epsilon) and delta, or a noise_multiplier.")
    releases = plan.horizon.releases()

    def event_of(noise: float) -> DpEvent:
        return federation_event(_with_noise(plan, noise).rows, releases, plan.unit, plan.span)

    def cost(noise: float) -> float:
        return _with_noise(plan, noise).epsilon(releases)

    return _with_noise(plan, least_noise(cost, first_guess(event_of, goal.budget), goal.budget))


def _with_noise(plan: Plan, noise: float) -> Plan:
    """The plan with this noise on what is seen: a silo's release, or the sum of the honest silos."""
    return replace(plan, rows=tuple((policy.with_visible_noise(noise), silo) for policy, silo in plan.rows))


def set_noise(plan: Plan, training: float, scores: float) -> Plan:
    """The plan with other noise multipliers of training and of its private scores; it promises nothing yet."""
    found = replace(_with_noise(plan, training), budget=None, guarantees=())
    if plan.scores is None:
        return found
    return replace(found, scores=plan.scores.with_visible_noise(scores))


def _require_met(plan: Plan, goal: Goal) -> None:
    if goal.budget is None:
        return
    epsilon = plan.epsilon(plan.horizon.releases())
    if epsilon <= goal.budget.epsilon:
        return
    allowed = rounds_allowed(replace(plan, budget=goal.budget))
    raise BudgetError(
        f"{plan.horizon.rounds} rounds with noise_multiplier = {goal.noise_multiplier:g} cost"
        f" ε = {epsilon:.4g} and the budget is {goal.budget.epsilon:g}; it allows {allowed} of them."
    )
