"""From a spec to a better one: settings chosen from public facts.

Without a learning rate, policies are weighed by what `default_settings` forecasts of each. With one, it says how steep
the loss is (with the clip norm): a pace that training without noise would bear, by whoever knows the model or has tried
it on public data. Then how fast noise lets a run go, and for how many steps, is predicted by `policies.search`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wholegrain.clipping.devices import USUAL, Compute
from wholegrain.clipping.parameters import Layout
from wholegrain.data.dataset import Dataset
from wholegrain.data.feature_scale import scale_of_numbers, scale_of_table
from wholegrain.errors import SpecError, WholegrainError
from wholegrain.federation.server_optimiser import SCHEDULES, Server
from wholegrain.policies.plan import Federation, Plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import find
from wholegrain.policies.search import POLICIES, CandidatePlan, SearchQuery, best, candidates
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.definitions import Budget
from wholegrain.runs.computing import told_compute
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.declared_sizes import declared_sizes
from wholegrain.runs.default_settings import (
    FilledSpec,
    PublicFacts,
    adds_no_noise,
    facts_of,
    fill_rate,
    fill_settings,
    leaves_out_records,
    predicted_noise,
)
from wholegrain.runs.planning import check_early, plan_for, policy_settings
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.trained_model import TrainedModel, build_trained_model, federation_model

BIAS = 2.0
"""How much better a policy has to be that leaves out or averages a subject's records: it learns other shares than those
of the score, which no forecast of noise knows. On diabetes130 that cost a point (docs/log.md)."""


@dataclass(frozen=True)
class Choice:
    """What was weighed, what was chosen, and the spec that follows."""

    weighed: tuple[CandidatePlan, ...]
    chosen: CandidatePlan
    spec: RunSpec
    plan: Plan
    parameters: int
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a setting was chosen, by its place in the spec."""
    counted: bool = False
    """Whether sizes were counted in the data, because the spec declares none."""
    compute: Compute = USUAL
    """Where the run's gradients would be computed, and in which precision."""

    @property
    def head(self) -> str:
        """What stands above the better spec in its file."""
        sizes = "counted in the data: declare [silos.sizes] for a release" if self.counted else "public: declared"
        signal = (
            f"Predicted signal to noise of the whole run: {self.chosen.ratio:.3g}, for {self.parameters:,} parameters."
        )
        return f"Settings chosen from public facts by `wholegrain plan --optimise`. Sizes are {sizes}.\n{signal}"

    @property
    def changes(self) -> tuple[str, ...]:
        """What to put after --set to have the chosen settings."""
        policy, rounds = self.spec.policy, self.spec.rounds
        return (
            f"policy.name={policy.name}",
            f"policy.rate={policy.rate:g}",
            "policy.batch_size=null",
            f"policy.group_cap={'null' if policy.group_cap is None else policy.group_cap}",
            f"policy.by_span={str(policy.by_span).lower()}",
            f"policy.clip_norm={policy.clip_norm:g}",
            f"policy.pool={policy.pool}",
            f"rounds.count={rounds.count}",
            f"rounds.steps={rounds.steps}",
            f"rounds.learning_rate={rounds.learning_rate:g}",
            f"rounds.averaging={rounds.averaging}",
            f"server.step={self.spec.server.step}",
            f"server.momentum={self.spec.server.momentum:g}",
            f"server.learning_rate={self.spec.server.learning_rate:g}",
            f"server.schedule={self.spec.server.schedule}",
            f"server.average={self.spec.server.average}",
        )


def optimise(
    spec: RunSpec,
    policies: tuple[str, ...] = POLICIES,
    pricing: Accountant | None = None,
    dataset: Dataset | None = None,
) -> Choice:
    """The spec with policy, rate, rounds, schedule and learning rate for the least predicted loss.

    Sizes are those of the section [federation], else the declared ones, else in a simulation counted in the data.
    Weights by span are taken where the spec has them, and says of its silos that they know spans.
    """
    check_early(fill_rate(spec))
    if spec.privacy.epsilon is None or spec.privacy.unit != "subject":
        raise SpecError("plan --optimise needs privacy.epsilon, a budget for a subject.")
    if spec.privacy.noise_multiplier is not None:
        raise SpecError("plan --optimise finds the noise that the budget needs; leave out privacy.noise_multiplier.")
    if spec.rounds.cohort is not None:
        raise SpecError("plan --optimise weighs rounds in which every silo trains; leave out rounds.cohort.")
    known = public_facts(spec, dataset)
    if spec.policy.by_span and not all(silo.knows_spans for silo in known.silos):
        raise SpecError("policy.by_span needs silos that know spans; say knows_spans = true of each in [federation].")
    learner = _learner(spec, known)
    parameters, compute = Layout.of(learner.model).size, _compute(spec)
    pricing = pricing or accountant(spec.privacy.accountant)
    if "learning_rate" in spec.rounds.model_fields_set:
        choice = _search(spec, known.silos, parameters, policies, pricing)
    else:
        choice = _forecast(spec, known, parameters, policies, pricing)
    return replace(choice, compute=compute)


def public_facts(spec: RunSpec, dataset: Dataset | None = None) -> PublicFacts:
    """Sizes, scale and classes: from the spec where it declares them, else in a simulation from the data."""
    if spec.federation is not None:
        federation_model(spec, spec.federation)  # which refuses more features than anybody has
        features = math.prod(spec.federation.shape)
        return PublicFacts(spec.federation.silos, scale_of_numbers(features), spec.federation.task)
    table, sizes = spec.data.table, declared_sizes(spec.silos)
    if table is not None and sizes.named and sizes.others is None:
        bound, by_span = spec.silos.items_per_subject, spec.policy.by_span
        silos = tuple(
            SiloFacts(
                name=name,
                items=size.items,
                subjects=size.subjects,
                items_per_subject=bound,
                knows_spans=by_span,
                declared=True,
            )
            for name, size in sorted(sizes.named.items())
        )
        text = table.layout.text
        return PublicFacts(silos, scale_of_table(table.layout), table.layout.task, text=text, tokens=text is not None)
    dataset = dataset or load_dataset(spec)
    return facts_of(dataset, tuple(silo.facts for silo in split_dataset(dataset, spec).silos.values()))


def _learner(spec: RunSpec, known: PublicFacts) -> TrainedModel:
    if spec.federation is not None:
        return federation_model(spec, spec.federation)
    return build_trained_model(spec.model, len(known.scale.squares), known.task, spec.seed)


def _compute(spec: RunSpec) -> Compute:
    """Where a run would compute; silos of a federation say it themselves."""
    return USUAL if spec.federation is not None else told_compute(spec)


def _forecast(
    spec: RunSpec, known: PublicFacts, parameters: int, policies: tuple[str, ...], pricing: Accountant
) -> Choice:
    """Each policy with the settings that are filled in for it; the least excess loss that is forecast wins."""
    found = []
    for policy in policies:
        filled = _fill_policy(spec, known, policy)
        if filled is not None:
            found.append(filled)
    if not found:
        raise SpecError("No policy can be priced for these silos; declare items_per_subject, or allow subject_dp.")
    found.sort(key=lambda each: each.candidate.left * (BIAS if each.leaves_out else 1.0))
    better = found[0].filled.spec
    check_early(better)
    plan = plan_for(better, known.silos, pricing)
    counted = not all(silo.declared for silo in known.silos)
    weighed = tuple(each.candidate for each in found)
    why = "the only one that can be priced here; others need items_per_subject"
    if len(found) > 1:
        why = f"the best of {len(found)} policies by predicted loss"
    reasons = {"policy.name": why, **found[0].filled.reasons}
    return Choice(weighed, weighed[0], better, plan, parameters, reasons, counted)


@dataclass(frozen=True)
class _Option:
    filled: FilledSpec
    candidate: CandidatePlan
    leaves_out: bool
    """Whether records of one subject are left out or averaged."""


def _fill_policy(spec: RunSpec, known: PublicFacts, policy: str) -> _Option | None:
    """The policy with its settings and forecast; None where it does not go with these silos."""
    reads = find(policy).reads
    update = {"name": policy, "group_cap": 1 if "group_cap" in reads else None}
    update |= {} if "by_span" in reads else {"by_span": False, "by_share": False}
    try:
        asked = spec.model_copy(update={"policy": spec.policy.model_copy(update=update)})
        if adds_no_noise(fill_rate(asked), known):
            return None
        filled = fill_settings(asked, known)
        noise, ratio = predicted_noise(filled.spec, known, parameters=len(known.scale.squares) * known.task.outputs)
    except WholegrainError:
        return None
    if not noise or (filled.forecast is None and policy != spec.policy.name):
        return None
    candidate = CandidatePlan(
        policy=policy,
        settings=policy_settings(filled.spec),
        steps=filled.spec.rounds.count,
        noise_multiplier=noise,
        schedule=filled.spec.server.schedule,
        pace=1.0,
        ratio=ratio,
        left=filled.forecast.excess if filled.forecast else 0.0,
    )
    return _Option(filled, candidate, leaves_out_records(filled.spec, known))


def _search(
    spec: RunSpec, facts: tuple[SiloFacts, ...], parameters: int, policies: tuple[str, ...], pricing: Accountant
) -> Choice:
    """Rates, steps, schedules and paces, from the learning rate that the spec says training bears."""
    question = SearchQuery(
        federation=Federation(silos=facts, span=spec.silos.span),
        budget=Budget(spec.privacy.epsilon or 0.0, spec.privacy.delta),
        parameters=parameters,
        clip_norm=spec.policy.clip_norm,
        by_span=spec.policy.by_span,
        schedules=SCHEDULES,
        policies=policies,
    )
    weighed = candidates(question)
    chosen = best(weighed)
    better = RunSpec.of(_changes(spec, chosen))
    check_early(better)
    plan = plan_for(better, facts, pricing)
    counted = not all(silo.declared for silo in facts)
    return Choice(weighed, chosen, better, plan, parameters, _search_reasons(chosen), counted)


def _search_reasons(chosen: CandidatePlan) -> dict[str, str]:
    signal = f"the best signal to noise for this budget, {chosen.ratio:.3g}"
    return {
        "policy.name": signal,
        "policy.rate": signal,
        "rounds.count": "more steps would need more noise than they are worth",
        "rounds.learning_rate": f"{chosen.pace:.3g} of the spec's own: what this noise bears",
        "rounds.averaging": "silos count by their public sizes",
        "server.schedule": "the last steps average the noise of the others",
    }


def _changes(spec: RunSpec, chosen: CandidatePlan) -> dict[str, Any]:
    tree = {"policy": {}, "rounds": {}, "server": {}} | spec.model_dump(exclude_unset=True)
    tree["policy"] |= {
        "name": chosen.policy,
        "rate": chosen.settings.rate,
        "batch_size": None,
        "group_cap": chosen.settings.group_cap,
        "by_span": chosen.settings.by_span,
    }
    # As many digits as are shown, so that what is shown gives the very same spec.
    pace = float(f"{_own_pace(spec) * chosen.pace:.4g}")
    tree["rounds"] |= {"count": chosen.steps, "steps": 1, "learning_rate": pace, "averaging": "subjects"}
    tree["server"] |= {
        "step": "plain",
        "options": {},
        "learning_rate": 1.0,
        "schedule": chosen.schedule,
        "average": "none",
    }
    return tree


def _own_pace(spec: RunSpec) -> float:
    """The spec's learning rate, as one of plain steps."""
    optimiser = Server.of(spec.server).optimiser
    if optimiser.gain is None:
        name = type(optimiser).__name__
        raise SpecError(f"plan --optimise reads from the spec how steep the way is, and {name}'s pace does not tell.")
    return spec.rounds.learning_rate * spec.server.learning_rate * optimiser.gain
