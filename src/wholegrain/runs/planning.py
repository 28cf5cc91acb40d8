"""From a spec to its plan: impossible numbers are refused before any data is read, then the rest is priced from public
facts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from wholegrain import _check
from wholegrain.errors import SpecError
from wholegrain.federation.server_optimiser import Average, Server, make_optimiser
from wholegrain.gradients.losses import find_loss
from wholegrain.policies.as_printed import Composition, make_printed_plan
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy import FixedNoise, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.definitions import Budget, Guarantee, Standing, Unit
from wholegrain.runs.declared_sizes import require_declared
from wholegrain.runs.metrics import find_metrics
from wholegrain.runs.spec import FederationSpec, RunSpec, SiloFactsSpec

MOST_LEARNING_RATE = 1e6


def plan_federation(spec: RunSpec, federation: FederationSpec, pricing: Accountant) -> Plan:
    """The plan of a server, which holds no data, from what its silos have published."""
    check_early(spec)
    plan = plan_for(spec, read_published_facts(federation.silos), pricing)
    if any(not isinstance(policy.noise, FixedNoise) or policy.noise.multiplier == 0 for policy, _ in plan.rows):
        raise SpecError(f"The policy '{spec.policy.name}' adds no noise; silos would refuse it.")
    return plan


def read_published_facts(silos: Iterable[SiloFactsSpec]) -> tuple[SiloFacts, ...]:
    """What silos have published of themselves."""
    return tuple(SiloFacts(**silo.model_dump(), declared=True) for silo in silos)


def plan_for(
    spec: RunSpec,
    silos: tuple[SiloFacts, ...],
    pricing: Accountant,
    largest_subject: Mapping[str, int] | None = None,
) -> Plan:
    """The plan that the spec asks for on silos of which these facts are public.

    Private: `largest_subject`, which only the paper's own rows read; without it they are refused.
    """
    federation = Federation(silos=silos, span=spec.silos.span)
    horizon = Horizon(
        silos=tuple(silo.name for silo in silos),
        rounds=spec.rounds.count,
        steps=spec.rounds.steps,
        cohort_size=spec.rounds.cohort,
        seed=spec.seed,
    )
    plan = _calibrated_plan(spec, federation, horizon, pricing, largest_subject)
    if spec.rounds.fewest_silos > plan.horizon.cohort_count:
        raise SpecError(
            f"rounds.fewest_silos = {spec.rounds.fewest_silos} is more than the {plan.horizon.cohort_count} silos that"
            " train in a round."
        )
    if spec.privacy.noise == "secure":
        return plan
    counted = not all(silo.declared for silo in silos)
    return replace(plan, guarantees=tuple(_mark_simulation(guarantee, counted) for guarantee in plan.guarantees))


def _mark_simulation(guarantee: Guarantee, counted: bool) -> Guarantee:
    """The guarantee of a simulation, which says what it is not true of: the noise, and sizes read off the data."""
    if guarantee.standing is Standing.NONE:
        return guarantee
    return replace(guarantee, simulation=True, counted_sizes=counted)


def _calibrated_plan(
    spec: RunSpec,
    federation: Federation,
    horizon: Horizon,
    pricing: Accountant,
    largest_subject: Mapping[str, int] | None,
) -> Plan:
    policy, settings = spec.policy, policy_settings(spec)
    if not policy.as_printed:
        return make_plan(policy.name, settings, federation, horizon, _goal(spec, pricing))
    if largest_subject is None:
        raise SpecError(
            "The paper's algorithms read private facts of the data; nobody who holds no data can plan them."
        )
    return make_printed_plan(
        policy.name,
        settings,
        federation,
        horizon,
        Budget(spec.privacy.epsilon or 0.0, spec.privacy.delta),
        largest_subject=largest_subject,
        composition=Composition(policy.composition),
        accountant=pricing,
    )


def check_early(spec: RunSpec) -> None:
    """Refuse impossible numbers and unknown names before any data is read."""
    find(spec.policy.name)
    find_loss(spec.model.loss)
    find_metrics(spec.evaluation.metrics)
    server_of(spec)
    policy_settings(spec)
    _goal(spec, accountant(spec.privacy.accountant))
    if spec.privacy.noise == "secure" and spec.federation is None:
        require_declared(spec)
    _check.positive("rounds.learning_rate", spec.rounds.learning_rate)
    if spec.rounds.learning_rate > MOST_LEARNING_RATE:
        raise SpecError(f"rounds.learning_rate = {spec.rounds.learning_rate:g} is beyond {MOST_LEARNING_RATE:g}.")
    _check.count("rounds.count", spec.rounds.count)
    _check.count("rounds.steps", spec.rounds.steps)
    _check.count("rounds.fewest_silos", spec.rounds.fewest_silos)
    _check.count("rounds.checkpoint_every", spec.rounds.checkpoint_every)
    if spec.ledger.epsilon is not None:
        _check.positive("ledger.epsilon", spec.ledger.epsilon)
    if spec.privacy.noise == "secure" and spec.data.table is not None and spec.ledger.data is None:
        raise SpecError(
            "A release needs a name for its data that stays when the file is renamed: set ledger.data, under which this"
            " machine keeps the account of all that is ever released from it."
        )
    if spec.policy.as_printed and spec.policy.by_span:
        raise SpecError("The paper knows no weights by span; leave out policy.by_span or policy.as_printed.")
    if spec.policy.as_printed and spec.privacy.epsilon is None:
        raise SpecError("The paper's algorithms are printed for a budget: set privacy.epsilon.")


def policy_settings(spec: RunSpec) -> PolicySettings:
    """What the policy's rows are made from."""
    policy = spec.policy
    return PolicySettings(
        rate=policy.rate,
        batch_size=policy.batch_size,
        clip_norm=policy.clip_norm,
        group_cap=policy.group_cap,
        items_per_step=policy.items_per_step,
        by_span=policy.by_span,
    )


def server_of(spec: RunSpec) -> Server:
    """What the server makes of each round's mean."""
    server = spec.server
    return Server(
        optimiser=make_optimiser(server.step, server.options, server.momentum),
        learning_rate=server.learning_rate,
        schedule=server.schedule,
        average=Average(server.average),
        tail=server.tail,
        decay=server.decay,
    )


def _goal(spec: RunSpec, pricing: Accountant) -> Goal:
    return Goal(
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        unit=Unit(spec.privacy.unit),
        noise_multiplier=spec.privacy.noise_multiplier,
        accountant=pricing,
    )
