"""`account` and `calibrate`: what a step costs, and how much noise a budget needs, without any data."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from wholegrain import _check
from wholegrain._json_numbers import finite
from wholegrain.cli import display
from wholegrain.cli.options import Json
from wholegrain.errors import AccountingError, SpecError
from wholegrain.policies import as_printed
from wholegrain.policies.guarantees import Row, federation_epsilon, missing_bound, obstacles
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, make_plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, find, make_row
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.accountants import accountant as accountant_named
from wholegrain.privacy.definitions import Budget, Standing, Unit
from wholegrain.privacy.trust import SecureSum

PolicyName = Annotated[str, typer.Option("--policy", help="A policy of the catalogue.")]
Rate = Annotated[float, typer.Option(help="Sampling probability of an item (subject_dp: of a subject).")]
Bound = Annotated[int | None, typer.Option("--items-per-subject", help="K: most items of one subject in a silo.")]
Steps = Annotated[int, typer.Option(help="Noisy steps that each silo releases.")]
Silos = Annotated[int, typer.Option(help="M: silos that may hold one subject.")]
Cap = Annotated[int | None, typer.Option(help="Z: most items of one subject in a batch (local_group_dp).")]
Delta = Annotated[float, typer.Option(help="δ.")]
TrustModel = Annotated[
    Literal["local", "secure_sum"],
    typer.Option("--trust", help="Who sees what: each silo's release, or only sums over silos."),
]
BySpan = Annotated[bool, typer.Option("--by-span", help="A subject in m silos counts less in each of them.")]
AccountantName = Annotated[str, typer.Option("--accountant", help="pld or rdp.")]


@dataclass(frozen=True, kw_only=True)
class AccountQuery:
    """The public facts of like silos: what both commands are asked about."""

    policy: str
    rate: float
    bound: int | None
    steps: int
    silos: int
    cap: int | None
    delta: float
    trust: Literal["local", "secure_sum"] = "local"
    by_span: bool = False

    def __post_init__(self) -> None:
        find(self.policy)
        _check.rate("--rate", self.rate)
        _check.count("--steps", self.steps)
        _check.count("--silos", self.silos)
        _check.fraction("--delta", self.delta)
        if self.bound is not None:
            _check.count("--items-per-subject", self.bound)

    @property
    def federation(self) -> Federation:
        """M like silos; their size plays no part where items are Poisson-sampled."""
        names = [f"silo-{number}" for number in range(self._silos)]
        bound = self.bound
        facts = (
            SiloFacts(
                name=n,
                items=10**6,
                subjects=10**6,
                items_per_subject=bound,
                drops_surplus=False,
                knows_spans=self.by_span,
            )
            for n in names
        )
        return Federation(silos=tuple(facts), span=self.silos)

    @property
    def _silos(self) -> int:
        """A sum over one silo would be no sum."""
        return self.silos if self.trust == "local" else max(2, self.silos)

    @property
    def settings(self) -> PolicySettings:
        """The rows' settings; a clip norm plays no part in ε."""
        return PolicySettings(rate=self.rate, group_cap=self.cap, by_span=self.by_span, trust=self._sum)

    @property
    def _sum(self) -> SecureSum | None:
        """Everybody answers and nobody colludes: the noise that is asked about is that of the honest sum."""
        return None if self.trust == "local" else SecureSum.over(self._silos, self._silos, 0)

    @property
    def horizon(self) -> Horizon:
        """One step in each round, as a secure sum has it: rounds play no part in ε."""
        return Horizon(silos=tuple(s.name for s in self.federation.silos), rounds=self.steps, steps=1)

    def rows(self, noise: float) -> tuple[Row, ...]:
        """The catalogue's rows with this noise."""
        rows = [(make_row(self.policy, self.settings, silo), silo) for silo in self.federation.silos]
        return tuple((row.with_visible_noise(noise), silo) for row, silo in rows)

    def epsilon(self, noise: float, unit: Unit, pricing: Accountant) -> float | None:
        """ε for a unit; None where the policy promises it nothing."""
        rows = self.rows(noise)
        if obstacles(rows[0][0], unit):
            return None
        if missing_bound(rows, unit):
            why = "without --items-per-subject (items_per_subject, K) nothing can be promised to a subject"
            raise AccountingError(f"{self.policy}: {why}.")
        releases = self.horizon.releases()
        return federation_epsilon(list(rows), releases, unit, self.silos, pricing, self.delta)


def account(
    policy: PolicyName,
    rate: Rate,
    noise: Annotated[float, typer.Option(help="Noise multiplier σ.")],
    steps: Steps,
    items_per_subject: Bound = None,
    silos: Silos = 1,
    cap: Cap = None,
    delta: Delta = 1e-5,
    accountant: AccountantName = "pld",
    trust: TrustModel = "local",
    by_span: BySpan = False,
    json: Json = False,
) -> None:
    """What so many steps with so much noise cost a subject, and an item beside it."""
    _check.non_negative("--noise", noise)
    question = AccountQuery(
        policy=policy,
        rate=rate,
        bound=items_per_subject,
        steps=steps,
        silos=silos,
        cap=cap,
        delta=delta,
        trust=trust,
        by_span=by_span,
    )
    answer(costs(question, noise, accountant_named(accountant)), json)


def calibrate(
    policy: PolicyName,
    rate: Rate,
    epsilon: Annotated[float, typer.Option(help="ε to be met.")],
    steps: Steps,
    items_per_subject: Bound = None,
    silos: Silos = 1,
    cap: Cap = None,
    delta: Delta = 1e-5,
    accountant: AccountantName = "pld",
    unit: Annotated[Unit, typer.Option(help="Whom the budget protects.")] = Unit.SUBJECT,
    trust: TrustModel = "local",
    by_span: BySpan = False,
    printed: Annotated[bool, typer.Option("--as-printed", help="The paper's own calibration.")] = False,
    json: Json = False,
) -> None:
    """The least noise that meets a budget over all silos that may hold a subject."""
    budget = Budget(epsilon, delta)
    question = AccountQuery(
        policy=policy,
        rate=rate,
        bound=items_per_subject,
        steps=steps,
        silos=silos,
        cap=cap,
        delta=delta,
        trust=trust,
        by_span=by_span,
    )
    if printed:
        answer(printed_noise(question, budget), json)
        return
    if find(policy).row(question.settings, question.federation.silos[0]).noise is not None:
        raise SpecError(f"{policy} has no noise to calibrate: it promises nothing.")
    pricing = accountant_named(accountant)
    goal = Goal(epsilon=epsilon, delta=delta, unit=unit, accountant=pricing)
    plan = make_plan(policy, question.settings, question.federation, question.horizon, goal)
    row = plan.rows[0][0]
    noise = getattr(row.noise, "multiplier", 0.0)
    noise = noise if row.trust is None else row.trust.sum_noise(noise)
    answer({"noise_multiplier": noise, **costs(question, noise, pricing)}, json)


def costs(question: AccountQuery, noise: float, pricing: Accountant) -> dict[str, Any]:
    """ε for each unit that the policy promises something to."""
    subject = question.epsilon(noise, Unit.SUBJECT, pricing)
    proved = subject is not None and finite(subject) is not None
    facts: dict[str, Any] = {
        "policy": question.policy,
        "epsilon": finite(subject) if subject is not None else None,
        "delta": question.delta,
        "unit": str(Unit.SUBJECT),
        "standing": str(Standing.PROVED if proved else Standing.NONE),
        "accountant": pricing.name,
    }
    if question.trust != "local":
        facts["trust"] = "secure sums; the noise is that of the honest silos' sum"
    for unit in (Unit.ITEM, Unit.SILO):
        other = question.epsilon(noise, unit, pricing)
        facts[f"{unit}_epsilon"] = finite(other) if other is not None else None
    return facts


def printed_noise(question: AccountQuery, budget: Budget) -> dict[str, Any]:
    """σ by the paper's own arithmetic; several silos by its second way, lots × silos."""
    lots = question.steps * (1 if as_printed.CLAIMED_UNIT.get(question.policy) is Unit.ITEM else question.silos)
    facts: dict[str, Any] = {
        "policy": question.policy,
        "noise_multiplier": _paper_noise(question, budget, lots),
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": str(as_printed.CLAIMED_UNIT[question.policy]),
        "standing": str(Standing.CLAIMED),
        "accountant": "rdp",
    }
    if question.policy == "user_ldp":
        needed = as_printed.user_ldp_condition(budget)
        facts |= {"condition": needed, "condition_met": facts["noise_multiplier"] > needed}
    return facts


def _paper_noise(question: AccountQuery, budget: Budget, lots: int) -> float:
    if question.policy == "local_item_dp":
        return as_printed.item_noise(budget, question.rate, lots)
    if question.policy == "local_group_dp":
        size = _check.count("--cap (the group size Z)", question.cap or 0)
        return as_printed.group_noise(budget, question.rate, lots, size)
    if question.policy == "higradavg_dp":
        largest = _check.count("--items-per-subject (the paper's k)", question.bound or 0)
        return as_printed.higradavg_noise(budget, question.rate, lots, largest)
    if question.policy == "user_ldp":
        return as_printed.user_noise(budget, lots)
    raise SpecError(f"The paper prints no noise for '{question.policy}'.")


def answer(facts: dict[str, Any], json: bool) -> None:
    """The facts as JSON or as two columns."""
    if json:
        display.as_json(facts)
        return
    for key, value in facts.items():
        display.out.print(f"{key.replace('_', ' '):18}", "–" if value is None else _text(value))


def _text(value: Any) -> str:
    return display.number(value) if isinstance(value, float) else str(value)
