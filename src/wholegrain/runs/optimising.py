"""From a server's spec to a better one: settings chosen from public facts, and no data read.

How far parameters have to go is what the spec's own rounds, clip norm and learning rate say, by whoever knows the model
or has tried it on public data. How much of that way noise lets a run go is predicted, and the learning rate follows.
"""

from dataclasses import dataclass
from typing import Any

from wholegrain.errors import SpecError
from wholegrain.gradients.parameters import Layout
from wholegrain.policies.plan import Federation, Plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.search import POLICIES, Candidate, Question, best, candidates
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.units import Budget
from wholegrain.runs.learners import federation_learner
from wholegrain.runs.planning import check_early, plan_for
from wholegrain.runs.spec import RunSpec


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
        cap = (f"policy.group_cap={policy.group_cap}",) if policy.group_cap is not None else ()
        return (
            f"policy.name={policy.name}",
            f"policy.rate={policy.rate:g}",
            *cap,
            f"rounds.count={rounds.count}",
            f"rounds.steps={rounds.steps}",
            f"rounds.learning_rate={rounds.learning_rate:.4g}",
            f"rounds.averaging={rounds.averaging}",
            f"server.step={self.spec.server.step}",
            f"server.schedule={self.spec.server.schedule}",
        )


def optimise(spec: RunSpec, policies: tuple[str, ...] = POLICIES, pricing: Accountant | None = None) -> Choice:
    """The spec with policy, rate, rounds, schedule and learning rate for the best predicted signal-to-noise.

    A linear schedule halves the way that a constant learning rate goes.
    """
    check_early(spec)
    if spec.federation is None:
        raise SpecError("plan --optimise reads no data: the spec needs the section [federation] with the silos' sizes.")
    if spec.privacy.epsilon is None or spec.privacy.unit != "subject":
        raise SpecError("plan --optimise needs privacy.epsilon, a budget for a subject.")
    facts = tuple(SiloFacts(**silo.model_dump()) for silo in spec.federation.silos)
    parameters = Layout.of(federation_learner(spec, spec.federation).model).size
    question = Question(
        federation=Federation(silos=facts, span=spec.silos.span),
        budget=Budget(spec.privacy.epsilon, spec.privacy.delta),
        parameters=parameters,
        clip_norm=spec.policy.clip_norm,
        policies=policies,
    )
    weighed = candidates(question)
    chosen = best(weighed)
    better = RunSpec.of(_changed(spec, chosen))
    plan = plan_for(better, facts, pricing or accountant(spec.privacy.accountant))
    return Choice(weighed, chosen, better, plan, parameters)


def _changed(spec: RunSpec, chosen: Candidate) -> dict[str, Any]:
    way = spec.rounds.count * spec.rounds.steps * spec.rounds.learning_rate
    if spec.server.schedule != "constant":
        way /= 2
    tree = spec.model_dump()
    tree["policy"] |= {
        "name": chosen.policy,
        "rate": chosen.settings.rate,
        "batch_size": None,
        "group_cap": chosen.settings.group_cap,
    }
    tree["rounds"] |= {"count": chosen.steps, "steps": 1, "learning_rate": 2 * way * chosen.trusted / chosen.steps}
    tree["rounds"]["averaging"] = "subjects"
    tree["server"] |= {"step": "plain", "schedule": "linear"}
    return tree
