"""From a server's spec to a better one: settings chosen from public facts, and no data read.

How steep the loss is, is what the spec's own clip norm and learning rate say: a pace that training without noise would
bear, by whoever knows the model or has tried it on public data. How fast noise lets a run go, and for how many steps,
is predicted.
"""

from dataclasses import dataclass
from typing import Any

from wholegrain.errors import SpecError
from wholegrain.federation.server_optimiser import SCHEDULES
from wholegrain.gradients.parameters import Layout
from wholegrain.policies.plan import Federation, Plan
from wholegrain.policies.search import POLICIES, Candidate, SearchQuery, best, candidates
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.definitions import Budget
from wholegrain.runs.planning import check_early, plan_for, read_published_facts, server_of
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.trained_model import federation_model


@dataclass(frozen=True)
class Choice:
    """What was weighed, what was chosen, and the spec that follows."""

    weighed: tuple[Candidate, ...]
    chosen: Candidate
    spec: RunSpec
    plan: Plan
    parameters: int

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
            f"rounds.count={rounds.count}",
            f"rounds.steps={rounds.steps}",
            f"rounds.learning_rate={rounds.learning_rate:g}",
            f"rounds.averaging={rounds.averaging}",
            f"server.step={self.spec.server.step}",
            f"server.learning_rate={self.spec.server.learning_rate:g}",
            f"server.schedule={self.spec.server.schedule}",
            f"server.average={self.spec.server.average}",
        )


def optimise(spec: RunSpec, policies: tuple[str, ...] = POLICIES, pricing: Accountant | None = None) -> Choice:
    """The spec with policy, rate, rounds, schedule and learning rate for the least predicted loss.

    Weights by span are taken where the spec has them, and says of its silos that they know spans.
    """
    check_early(spec)
    if spec.federation is None:
        raise SpecError("plan --optimise reads no data: the spec needs the section [federation] with the silos' sizes.")
    if spec.privacy.epsilon is None or spec.privacy.unit != "subject":
        raise SpecError("plan --optimise needs privacy.epsilon, a budget for a subject.")
    if spec.privacy.noise_multiplier is not None:
        raise SpecError("plan --optimise finds the noise that the budget needs; leave out privacy.noise_multiplier.")
    if spec.rounds.cohort is not None:
        raise SpecError("plan --optimise weighs rounds in which every silo trains; leave out rounds.cohort.")
    if spec.policy.by_span and not all(silo.knows_spans for silo in spec.federation.silos):
        raise SpecError("policy.by_span needs silos that know spans; say knows_spans = true of each in [federation].")
    facts = read_published_facts(spec.federation.silos)
    parameters = Layout.of(federation_model(spec, spec.federation).model).size
    question = SearchQuery(
        federation=Federation(silos=facts, span=spec.silos.span),
        budget=Budget(spec.privacy.epsilon, spec.privacy.delta),
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
    plan = plan_for(better, facts, pricing or accountant(spec.privacy.accountant))
    return Choice(weighed, chosen, better, plan, parameters)


def _changes(spec: RunSpec, chosen: Candidate) -> dict[str, Any]:
    tree = spec.model_dump()
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
    optimiser = server_of(spec).optimiser
    if optimiser.gain is None:
        name = type(optimiser).__name__
        raise SpecError(f"plan --optimise reads from the spec how steep the way is, and {name}'s pace does not tell.")
    return spec.rounds.learning_rate * spec.server.learning_rate * optimiser.gain
