"""A tuning that is checked and priced: every combination of settings has a plan, and the best trial a guarantee."""

from dataclasses import dataclass, replace

from wholegrain.data.dataset import Dataset
from wholegrain.errors import SpecError
from wholegrain.policies.plan import Plan, set_noise
from wholegrain.policies.policy_catalog import make_row
from wholegrain.policies.score_settings import ScoreSettings
from wholegrain.privacy.definitions import Budget, Guarantee
from wholegrain.privacy.trial_count import TrialCount
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.planning import check_early, policy_settings
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import prepare
from wholegrain.runs.setting_origins import Origin, Origins, find_origins
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.tuning_plan import Noise, PlanMaker, SelectionPlan, plan_selection, require_proved
from wholegrain.runs.tuning_space import SearchSpace, Settings, apply_settings

ALONE = 0.5
"""About what a trial alone costs, of the best of ten: for settings that are planned, not for any price."""
DRAFT_NOISE = 100.0
"""Of a plan that is looked at before its noise is known."""


@dataclass(frozen=True, eq=False)
class PreparedTuning:
    """All that a tuning needs, checked and priced; nothing has been drawn, released or written yet."""

    base: PreparedRun
    """The run whose settings are changed; it is never played itself."""
    space: SearchSpace
    selection: SelectionPlan
    combinations: tuple[Settings, ...]
    dataset: Dataset | None
    """Data that was given as a value; None where the spec names it."""
    epsilon: float
    """What the best trial costs, for the unit that the budget protects."""
    budget: Budget | None = None
    """What it may cost; None where the noise was given."""

    @property
    def spec(self) -> RunSpec:
        """The spec, with nothing left out, before any trial's settings."""
        return self.base.spec

    @property
    def is_release(self) -> bool:
        """Whether people are to be protected: then nothing of the trials is shown or kept."""
        return self.spec.privacy.noise == "secure"

    @property
    def origins(self) -> Origins:
        """Where the chosen run's settings come from: what was searched is paid for."""
        return {**self.base.origins, **dict.fromkeys(self.space.settings, Origin.PAID)}

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What is proved of the best trial."""
        return self.selection.guarantees()

    def trial_spec(self, settings: Settings) -> RunSpec:
        """The spec of a trial with these settings, with the noise that was priced for them."""
        place = self.combinations.index(dict(self.space.combination_of(settings)))
        return _with_noise(apply_settings(self.spec, settings), self.selection.noise[place])


def prepare_tuning(
    spec: RunSpec, space: SearchSpace, count: TrialCount, dataset: Dataset | None = None
) -> PreparedTuning:
    """Check every combination of settings, and price the best of the trials; every refusal comes from here."""
    given, written = dataset, spec
    spec = _with_private_scores(spec)
    dataset = dataset or load_dataset(spec)
    noise = _given_noise(spec)
    # The plan of a spec without noise would be calibrated for one run; here all trials share the budget.
    draft = _with_noise(spec, noise or Noise(DRAFT_NOISE, DRAFT_NOISE))
    asked = _without_budget(draft)
    planned = _fill_settings(spec, dataset, asked)
    base = replace(prepare(planned.spec, dataset=dataset), origins=find_origins(written, planned.reasons))
    _require_possible(base, space, dataset)
    combinations = tuple(map(dict, space.priced_combinations()))
    plans = []
    for combination in combinations:
        plan = base.plan if not combination else prepare(apply_settings(base.spec, combination), dataset=dataset).plan
        require_proved(plan)
        plans.append(plan)
    private = spec.evaluation.private
    share = 1.0 if private is None or private.share is None else private.share
    budget = None if spec.privacy.epsilon is None else Budget(spec.privacy.epsilon, spec.privacy.delta)
    found = plan_selection(tuple(map(_maker, plans)), count, budget, noise, share)
    found = replace(found, plans=tuple(map(_restore, found.plans, plans)))
    epsilon = found.epsilon(base.plan.unit)
    if budget is not None and not epsilon <= budget.epsilon:
        raise SpecError(
            f"The best of {count} trials with this noise costs ε = {epsilon:.4g}, and the budget is"
            f" {budget.epsilon:g}; leave out privacy.noise_multiplier, and the noise is found."
        )
    return PreparedTuning(base, space, found, combinations, given, epsilon, budget)


def _require_possible(base: PreparedRun, space: SearchSpace, dataset: Dataset) -> None:
    """Refuse a choice, or an end of a range, that no run could have: a trial must not find out when all is paid."""
    facts = next(iter(base.silos.values())).facts
    for settings in space.single_settings():
        spec = apply_settings(base.spec, settings)
        check_early(spec)
        make_row(spec.policy.name, policy_settings(spec), facts)
        if any(place.startswith("model.") for place in settings):
            prepare(spec, dataset=dataset)


@dataclass(frozen=True)
class _FilledSettings:
    spec: RunSpec
    reasons: tuple[str, ...] = ()
    """Places that were filled in."""


def _fill_settings(spec: RunSpec, dataset: Dataset, asked: RunSpec) -> _FilledSettings:
    """The spec with the settings that a single run would be given that costs what a trial does, and draft noise."""
    epsilon = spec.privacy.epsilon
    if epsilon is None or "learning_rate" in spec.rounds.model_fields_set:
        return _FilledSettings(asked)
    alone = spec.privacy.model_copy(update={"epsilon": epsilon * ALONE})
    filled = prepare(spec.model_copy(update={"privacy": alone}), dataset=dataset)
    places = tuple(place for place, origin in filled.origins.items() if origin is Origin.PLANNED)
    changes = {"privacy": asked.privacy, "evaluation": asked.evaluation}
    return _FilledSettings(filled.spec.model_copy(update=changes), places)


def _maker(plan: Plan) -> PlanMaker:
    return lambda training, scores: set_noise(plan, training, scores)


def _restore(found: Plan, drafted: Plan) -> Plan:
    """With the standing that the draft was given: noise changes how much is proved, not whether it is."""
    return replace(found, guarantees=drafted.guarantees)


def _with_private_scores(spec: RunSpec) -> RunSpec:
    """The spec, with the private scores that trials are ranked by: as it asks for them, or as they are by default."""
    if spec.evaluation.private is not None:
        return spec
    evaluation = spec.evaluation.model_copy(update={"private": ScoreSettings()})
    return spec.model_copy(update={"evaluation": evaluation})


def _given_noise(spec: RunSpec) -> Noise | None:
    private = spec.evaluation.private
    assert private is not None
    training, scores = spec.privacy.noise_multiplier, private.noise_multiplier
    if (training is None) != (scores is None):
        raise SpecError(
            "Give privacy.noise_multiplier and evaluation.private.noise_multiplier both, or neither: then the noise is"
            " found that the budget needs."
        )
    return None if training is None or scores is None else Noise(training, scores)


def _with_noise(spec: RunSpec, noise: Noise) -> RunSpec:
    assert spec.evaluation.private is not None
    private = spec.evaluation.private.model_copy(update={"noise_multiplier": noise.scores, "share": None})
    evaluation = spec.evaluation.model_copy(update={"private": private})
    privacy = spec.privacy.model_copy(update={"noise_multiplier": noise.training, "epsilon": None})
    return spec.model_copy(update={"privacy": privacy, "evaluation": evaluation})


def _without_budget(spec: RunSpec) -> RunSpec:
    return spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"epsilon": None})})
