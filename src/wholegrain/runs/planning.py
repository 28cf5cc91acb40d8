"""From a spec to its plan: impossible numbers are refused before any data is read, then the rest is priced from public
facts.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import fields, replace

from wholegrain import _check
from wholegrain.clipping.devices import STEADY, UNSTEADY
from wholegrain.clipping.losses import LOSSES
from wholegrain.errors import SpecError
from wholegrain.federation.server_optimiser import Server
from wholegrain.policies.as_printed import Composition, make_printed_plan
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy import FixedNoise, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.definitions import Budget, Guarantee, Standing, Unit
from wholegrain.privacy.trust import SecureSum
from wholegrain.runs.declared_sizes import require_declared
from wholegrain.runs.metrics import find_metrics
from wholegrain.runs.score_planning import ScoredData, plan_scores
from wholegrain.runs.spec import GIVEN, RunSpec
from wholegrain.runs.spec_sections import ComputeSpec, FederationSpec

log = logging.getLogger("wholegrain.runs")

MOST_LEARNING_RATE = 1e6


def plan_federation(spec: RunSpec, federation: FederationSpec, pricing: Accountant) -> Plan:
    """The plan of a server, which holds no data, from what its silos have published."""
    check_early(spec)
    if (spec.compute.device, spec.compute.precision, spec.compute.compiled) != ("cpu", "float32", False):
        raise SpecError(
            "Silos say in their own silo.toml where they compute: leave out compute.device, precision and compiled."
        )
    require_one_rank(spec.compute)
    if spec.policy.by_share:
        raise SpecError("Silos of a federation know spans, and no shares: leave out policy.by_share.")
    private = spec.evaluation.private
    if private is not None and (private.part != "test" or spec.evaluation.validation):
        raise SpecError("Silos of a federation hold out one part; leave out evaluation.validation, and private.part.")
    silos = tuple(replace(silo, knows_spans=spec.policy.by_span) for silo in federation.silos)
    plan = plan_for(spec, silos, pricing, scored=ScoredData(federation.task, own_coins=True))
    if any(not isinstance(policy.noise, FixedNoise) or policy.noise.multiplier == 0 for policy, _ in plan.rows):
        raise SpecError(f"The policy '{spec.policy.name}' adds no noise; silos would refuse it.")
    return plan


def plan_for(
    spec: RunSpec,
    silos: tuple[SiloFacts, ...],
    pricing: Accountant,
    largest_subject: Mapping[str, int] | None = None,
    scored: ScoredData | None = None,
) -> Plan:
    """The plan that the spec asks for on silos of which these facts are public.

    Without `scored`, private scores are left out.

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
    _warn_of_large_delta(plan)
    _warn_of_small_epsilon(plan)
    if scored is not None:
        plan = plan_scores(plan, spec, silos, scored)
    plan = replace(plan, guarantees=tuple(_on_device(guarantee, spec.compute.device) for guarantee in plan.guarantees))
    if spec.privacy.noise == "secure":
        return plan
    counted = not all(silo.declared for silo in silos)
    return replace(plan, guarantees=tuple(_mark_simulation(guarantee, counted) for guarantee in plan.guarantees))


def _warn_of_large_delta(plan: Plan) -> None:
    """Tell of a δ that allows to publish somebody whole: drawing one of n people at random is (0, 1/n)-private."""
    people = sum(silo.subjects for _, silo in plan.rows)  # at most; whoever is in several silos counts in each
    if plan.delta >= 1 / people and plan.guarantee(plan.unit).standing is Standing.PROVED:
        log.warning(
            "δ = %g is not below one in %d, the subjects of all silos together: it would allow to publish all records"
            " of one of them. Set privacy.delta to 1e-5, or to a hundredth of 1/subjects where there are more.",
            plan.delta,
            people,
        )


def _warn_of_small_epsilon(plan: Plan) -> None:
    """Tell of an ε that lets nothing be learnt: n units together change no probability by more than a factor e^(nε)."""
    if plan.budget is None or plan.unit is Unit.SILO:
        return
    units = sum(silo.items if plan.unit is Unit.ITEM else silo.subjects for _, silo in plan.rows)
    if plan.budget.epsilon * units < 1:
        log.warning(
            "ε = %g is below one in %d, the %ss of all silos together: even all of them could hardly change what is"
            " released, which is noise. Set privacy.epsilon to between 0.1 and 10.",
            plan.budget.epsilon,
            units,
            plan.unit,
        )


def _on_device(guarantee: Guarantee, device: str) -> Guarantee:
    """What a guarantee becomes where gradients are computed on this device; docs/arithmetic.md says why."""
    if guarantee.standing is not Standing.PROVED or device == "cpu":
        return guarantee
    if device in UNSTEADY:
        return replace(guarantee, standing=Standing.NONE, epsilon=math.inf, because=UNSTEADY[device], event=None)
    return replace(guarantee, because=f"{guarantee.because}; {STEADY[device]}")


def require_steady(device: str) -> None:
    """Refuse a release from a device of which nothing is proved."""
    if device in UNSTEADY:
        raise SpecError(
            f"compute.device = '{device}' is for simulations: {UNSTEADY[device]}. For a release, use 'cpu' or 'cuda'."
        )


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
    policy, settings = spec.policy, policy_settings(spec, len(federation.silos))
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


def secure_sum_of(spec: RunSpec, silos: int) -> SecureSum | None:
    """The secure sum that a spec asks for over so many silos, if it does."""
    if spec.trust.model == "local":
        return None
    return SecureSum.over(silos, spec.trust.answers, spec.trust.colluding)


def check_early(spec: RunSpec) -> None:
    """Refuse impossible numbers and unknown names before any data is read."""
    find(spec.policy.name)
    if spec.model.loss not in (None, GIVEN):
        LOSSES.find(spec.model.loss)
    find_metrics(spec.evaluation.metrics)
    Server.of(spec.server)
    policy_settings(spec)
    _goal(spec, accountant(spec.privacy.accountant))
    if spec.privacy.noise == "secure":
        require_steady(spec.compute.device)
    if spec.privacy.noise == "secure" and spec.federation is None:
        require_declared(spec)
    _check.positive("rounds.learning_rate", spec.rounds.learning_rate)
    if spec.rounds.learning_rate > MOST_LEARNING_RATE:
        raise SpecError(f"rounds.learning_rate = {spec.rounds.learning_rate:g} is beyond {MOST_LEARNING_RATE:g}.")
    _check.count("rounds.count", spec.rounds.count)
    _check.count("rounds.steps", spec.rounds.steps)
    _check.count("rounds.fewest_silos", spec.rounds.fewest_silos)
    _check.count("rounds.checkpoint_every", spec.rounds.checkpoint_every)
    if spec.silos.span is not None:
        _check.count("silos.span", spec.silos.span)
    if spec.ledger.epsilon is not None:
        _check.positive("ledger.epsilon", spec.ledger.epsilon)
    if spec.privacy.noise == "secure" and spec.data.table is not None and spec.ledger.data is None:
        raise SpecError(
            "A release needs a name for its data that stays when the file is renamed: set ledger.data, under which this"
            " machine keeps the account of all that is ever released from it."
        )
    if spec.policy.as_printed and spec.policy.by_span:
        raise SpecError("The paper knows no weights by span; leave out policy.by_span or policy.as_printed.")
    if spec.policy.by_share and spec.evaluation.private is not None:
        raise SpecError("Private scores are priced for weights by span; leave out policy.by_share or them.")
    if spec.policy.as_printed and spec.trust.model != "local":
        raise SpecError("The paper's algorithms are printed for local trust; leave out trust.model or as_printed.")
    if spec.trust.model != "local" and "averaging" in spec.rounds.model_fields_set and spec.rounds.averaging == "plain":
        raise SpecError(
            "A secure sum adds up all subjects alike, whichever silo they are in, and not silos: leave out"
            " rounds.averaging, or set it to 'subjects'."
        )
    if spec.policy.as_printed and spec.privacy.epsilon is None:
        raise SpecError("The paper's algorithms are printed for a budget: set privacy.epsilon.")


def require_one_rank(compute: ComputeSpec) -> None:
    """Refuse several ranks for a silo of a real federation."""
    if compute.ranks_per_silo > 1:
        raise SpecError(
            "A silo of a federation trains in one process: leave out compute.ranks_per_silo, which is for"
            " `wholegrain run --engine distributed`."
        )


def policy_settings(spec: RunSpec, silos: int | None = None) -> PolicySettings:
    """What the policy's rows are made from; under the spec's own trust, where the number of silos is known."""
    chosen = spec.policy.model_dump(include={field.name for field in fields(PolicySettings)})
    return PolicySettings(**chosen, trust=None if silos is None else secure_sum_of(spec, silos))


def _goal(spec: RunSpec, pricing: Accountant) -> Goal:
    return Goal(
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        unit=Unit(spec.privacy.unit),
        noise_multiplier=spec.privacy.noise_multiplier,
        accountant=pricing,
    )
