"""From a spec to a finished run: prepare (everything that can be refused), then execute (everything that costs
budget).
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from wholegrain import _check
from wholegrain.data.dataset import Dataset
from wholegrain.data.schema import TableLayout
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Task
from wholegrain.engines.inprocess import InProcess
from wholegrain.engines.score_engine import ScoresInProcess
from wholegrain.engines.secure_sum_engine import SecureSums
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.errors import BudgetError
from wholegrain.federation.aggregation import Averaging, weights
from wholegrain.federation.messages import Engine, ScoreEngine
from wholegrain.federation.private_score import PrivateScore
from wholegrain.federation.round_record import RoundRecord, Score
from wholegrain.federation.rounds import Aggregation, Payer, RoundResult, State, rounds
from wholegrain.federation.scoring import ScorePayer, score_round
from wholegrain.federation.server_optimiser import Server
from wholegrain.gradients.engine import BookKeeping
from wholegrain.gradients.losses import find_loss, require_mean
from wholegrain.gradients.parameters import flatten, load
from wholegrain.gradients.reference import ClippedSum, Loss
from wholegrain.models.backbone import PublicStart
from wholegrain.policies.plan import Plan
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.definitions import Guarantee, Standing, Unit
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.accounts import (
    AccountState,
    account_state,
    guard_run,
    open_ledger,
    release_ledger,
    require_known,
    spent_guarantees,
)
from wholegrain.runs.constant_answer import warn
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.declared_sizes import require_declared
from wholegrain.runs.default_settings import facts_of, fill_rate, fill_settings
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.ledger_registry import ledger_path
from wholegrain.runs.metrics import find_metrics
from wholegrain.runs.model_fit import require_fit, require_tokens
from wholegrain.runs.noise_to_signal import noise_distance
from wholegrain.runs.observers import ObservedEngine, Observer, ignore
from wholegrain.runs.planning import check_early, plan_for
from wholegrain.runs.score_planning import ScoredData
from wholegrain.runs.setting_origins import Origins, find_origins
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.trained_model import TrainedModel, build_trained_model, own_model
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.noise_sources import noise_source
from wholegrain.silo.score_release import ScoreMaker
from wholegrain.silo.training import Silo, Trainer

log = logging.getLogger("wholegrain.runs")

MOST_GIB = 2.0**30  # as good as no limit


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedRun:
    """All that a run needs, checked and priced; nothing has been released or written yet."""

    spec: RunSpec
    data: str
    """The name under which the data's owner keeps its account."""
    plan: Plan
    silos: Mapping[str, Silo]
    scored: Mapping[str, SubjectData]
    groups: Mapping[str, SubjectData]
    """Parts of what is scored, of which only the final model's scores are told."""
    learner: TrainedModel
    """The model; silos and scored items are seen through its frozen beginning, where it has one."""
    first: Tensor
    """The parameters before round 0: runs leave their own in the model."""
    task: Task
    features: int
    """Number of values in one input."""
    loss: Loss
    clipped_sum: ClippedSum
    noise: NoiseSource
    server: Server
    layout: TableLayout | None = None
    held_out: Mapping[str, SubjectData] = field(default_factory=dict)
    """Whom each silo holds out to be scored privately."""
    origins: Origins = field(default_factory=dict)
    """Where each setting comes from."""

    @property
    def model(self) -> nn.Module:
        """The whole model, which takes items as they are stored."""
        return self.learner.model

    @property
    def public(self) -> PublicStart | None:
        """What the run starts from that is public: nothing, or a backbone."""
        return self.learner.public


@dataclass(frozen=True, eq=False)
class StartState:
    """Where a run begins or goes on: the state, and the rounds that led to it."""

    state: State
    done: tuple[RoundRecord, ...] = ()


Recorder = Callable[[RoundRecord, State], None]
"""Makes a round last, before anybody is told of it."""


def forget(done: RoundRecord, state: State) -> None:
    """The recorder that keeps nothing."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RunResult:
    """A finished run: its plan, what was spent in the end, what each round gave, and the trained model."""

    spec: RunSpec
    plan: Plan
    guarantees: tuple[Guarantee, ...]
    """What the plan's guarantees have come to, by the ledger: rounds that were played again are counted again."""
    account: AccountState
    rounds: tuple[RoundRecord, ...]
    task: Task
    features: int
    layout: TableLayout | None
    """How columns of a table became inputs, if they did; kept with the model."""
    scores: Mapping[str, Score]
    """Scores of the final model by part, in all the usual metrics of the task. Not private."""
    constant: Mapping[str, Score]
    """What the best constant answer would score on each part. Not private."""
    vector: Tensor
    model: nn.Module
    noise: str
    seconds: float
    private: Mapping[str, PrivateScore] = field(default_factory=dict)
    """Private scores of the final model, of all silos together and of each; none where the spec asks for none."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Bad news about the model, in sentences: that it is no better than a constant answer, or has diverged."""
        return warn(self.scores, self.constant)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test part (or on whatever part was scored last)."""
        parts = self.scores
        return (parts.get("test") or list(parts.values())[-1]).accuracy if parts else float("nan")

    @property
    def guarantee(self) -> Guarantee:
        """What is proved for a subject, of what was released; `plan.guarantee()` is what was planned."""
        return self.spent(Unit.SUBJECT)

    def spent(self, unit: Unit) -> Guarantee:
        """What is proved for a unit, of what was released."""
        return next(g for g in self.guarantees if g.unit is unit and g.standing is not Standing.CLAIMED)


def prepare(
    spec: RunSpec,
    *,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    loss: Loss | None = None,
    pricing: Accountant | None = None,
) -> PreparedRun:
    """Load, split, check and price; every refusal comes from here. Data, a model or a loss may be given as values."""
    check_early(fill_rate(spec))
    if spec.privacy.noise == "secure":  # whoever holds data declares its sizes, whatever else the spec describes
        require_declared(spec)
    dataset = dataset or load_dataset(spec)
    dataset.require_targets()
    find_metrics(spec.evaluation.metrics, dataset.task)
    parts = split_dataset(dataset, spec)
    facts = tuple(silo.facts for silo in parts.silos.values())
    filled = fill_settings(spec, facts_of(dataset, facts, own_model=model is not None))
    origins, spec = find_origins(spec, filled.reasons), filled.spec
    largest = {name: silo.data.largest_subject for name, silo in parts.silos.items()}
    scored_data = ScoredData(dataset.task, own_test=dataset.test is not None)
    plan = plan_for(spec, facts, pricing or accountant(spec.privacy.accountant), largest, scored_data)
    if model is None:
        learner = build_trained_model(spec.model, dataset.features, dataset.task.outputs, spec.seed)
    else:
        learner = own_model(model, spec.model, spec.seed)
    scored, groups = ({}, {}) if _scores_privately_alone(spec) else (dict(parts.held_out), parts.groups)
    if spec.evaluation.train:
        scored |= {f"train/{name}": silo.data for name, silo in parts.silos.items() if silo.data.items}
    if loss is None:
        loss = find_loss(spec.model.loss, dataset.task)
    else:
        require_mean(loss, getattr(loss, "__name__", "given"), dataset.task)
    gradients = BookKeeping(learner.trained, loss, memory=_memory(spec))
    require_fit(learner.model, gradients, plan.rows[0][0].clip, dataset, learner.frozen)
    require_tokens(learner.model, dataset)
    return PreparedRun(
        spec=spec,
        data=dataset.name,
        plan=plan,
        silos=learner.silos(parts.silos),
        scored={name: learner.apply_frozen(data) for name, data in scored.items()},
        groups={name: learner.apply_frozen(data) for name, data in groups.items()},
        held_out={name: learner.apply_frozen(data) for name, data in parts.scored.items()},
        learner=learner,
        first=flatten(learner.model),
        task=dataset.task,
        features=dataset.features,
        layout=dataset.layout,
        origins=origins,
        loss=loss,
        clipped_sum=gradients,
        noise=noise_source(spec.privacy.noise, spec.seed),
        server=Server.of(spec.server),
    )


@contextlib.contextmanager
def open_guard(prepared: PreparedRun, run: str, folder: Path | None = None, *, create: bool = True) -> Iterator[Guard]:
    """The run's guard, with its ledger open; a run that its account cannot pay for is refused.

    Without `create`, the run has begun, and its ledger must know it.
    """
    with _ledger(prepared, folder, create) as ledger:
        if not create:
            require_known(ledger, run)
        yield guard_run(ledger, run, prepared.spec, prepared.data, prepared.plan, prepared.noise)


def _ledger(prepared: PreparedRun, folder: Path | None, create: bool) -> contextlib.AbstractContextManager[Ledger]:
    """A release is paid for where this machine keeps the data's account. A server has no silos here; theirs pay."""
    spec, path = prepared.spec, ledger_path(prepared.spec, folder)
    if spec.privacy.noise == "seeded" or not prepared.silos or path is None:
        return open_ledger(path, create=create)
    return release_ledger(path, spec.ledger.data or prepared.data, create=create)


def execute(
    prepared: PreparedRun,
    guard: Guard,
    *,
    engine: Engine | None = None,
    start: StartState | None = None,
    record: Recorder = forget,
    observe: Observer = ignore,
    score_engine: ScoreEngine | None = None,
) -> RunResult:
    """Play the rounds; each is recorded, then told to the observer, when it is averaged and scored."""
    start = start or StartState(State(0, prepared.first))
    guard.require_paid(prepared.plan.horizon.releases(start.state.round))
    played = play_rounds(
        prepared, guard, engine=engine, start=start, record=record, observe=observe, score_engine=score_engine
    )
    return make_result(prepared, played, guard.ledger, guard.run)


@dataclass(frozen=True, eq=False)
class PlayedRounds:
    """What a run's rounds left: their records, and the parameters that its server shows."""

    rounds: tuple[RoundRecord, ...]
    vector: Tensor


class RunPayer(Payer, ScorePayer, Protocol):
    """Who answers for a run's releases, of training and of scores."""


def play_rounds(
    prepared: PreparedRun,
    guard: RunPayer,
    *,
    engine: Engine | None = None,
    start: StartState | None = None,
    record: Recorder = forget,
    observe: Observer = ignore,
    score_engine: ScoreEngine | None = None,
) -> PlayedRounds:
    """The rounds alone, whoever pays for them."""
    start = start or StartState(State(0, prepared.first))
    state, done = start.state, list(start.done)
    carrier, averaged = ObservedEngine(engine or in_process(prepared), observe), aggregation_for(prepared)
    size, each_round = state.vector.numel(), _scorer(prepared)
    for played, state in _affordable(rounds(state, prepared.plan.horizon, carrier, guard, averaged), done):  # noqa: B020
        chosen = averaged.server.choose_parameters(state.vector, state.memory)
        played = replace(played, noise=_noise(prepared, averaged, played, size))
        played = _score_privately(prepared, played, chosen, guard, score_engine)
        done.append(replace(played, scores=_scores(prepared, chosen, each_round)))
        record(done[-1], state)
        observe(done[-1])
    return PlayedRounds(tuple(done), averaged.server.choose_parameters(state.vector, state.memory))


def make_result(prepared: PreparedRun, played: PlayedRounds, ledger: Ledger, run: str) -> RunResult:
    """The finished run, with what its ledger says of it."""
    load(prepared.model, played.vector)
    book, final = ledger.book, _scorer(prepared, prepared.task.metrics)
    parts = {**prepared.scored, **prepared.groups}
    return RunResult(
        spec=prepared.spec,
        plan=prepared.plan,
        guarantees=spent_guarantees(prepared.plan, book.runs[run]),
        account=account_state(book, run, prepared.plan.accountant),
        rounds=played.rounds,
        task=prepared.task,
        features=prepared.features,
        layout=prepared.layout,
        scores={name: final.score(prepared.learner.trained, played.vector, data) for name, data in parts.items()},
        constant={name: final.constant(data) for name, data in parts.items()},
        vector=played.vector,
        model=prepared.model,
        noise=prepared.noise.name,
        seconds=sum(each.seconds for each in played.rounds),
        private=played.rounds[-1].private if played.rounds else {},
    )


def _score_privately(
    prepared: PreparedRun, played: RoundRecord, vector: Tensor, guard: ScorePayer, engine: ScoreEngine | None
) -> RoundRecord:
    """The round with its private scores, where one is due."""
    plan = prepared.plan.scores
    if plan is None or not plan.is_due(played.round, prepared.plan.horizon.rounds):
        return played
    engine = engine or scores_in_process(prepared, plan)
    found = score_round(plan, prepared.task, engine, guard, played.round, vector)
    return replace(played, private=found.scores, faults=played.faults + found.faults)


def scores_in_process(prepared: PreparedRun, plan: ScorePlan) -> ScoresInProcess:
    """Who scores all silos here."""
    maker = ScoreMaker(model=prepared.learner.trained, loss=prepared.loss, task=prepared.task, noise=prepared.noise)
    return ScoresInProcess(prepared.held_out, plan.form, maker)


def _scores_privately_alone(spec: RunSpec) -> bool:
    """Whether nothing is scored but what is paid for: a release that pays for scores needs no others."""
    return spec.evaluation.private is not None and spec.privacy.noise == "secure"


def _affordable(played: Iterator[RoundResult], done: list[RoundRecord]) -> Iterator[RoundResult]:
    """Rounds, until the budget cannot pay for the next one: what was paid for and played makes a model, too.

    A plan fits its budget, but with secure noise a round that was interrupted is paid for twice.
    """
    try:
        yield from played
    except BudgetError as error:
        if not done:
            raise
        log.warning("%s The run ends after the rounds that were played.", error)


def in_process(prepared: PreparedRun) -> InProcess | SecureSums:
    """The engine that trains all silos here, one after the other."""
    trainer = Trainer(
        clipped_sum=prepared.clipped_sum,
        noise=prepared.noise,
        learning_rate=prepared.spec.rounds.learning_rate,
    )
    trust = prepared.plan.trust
    if trust is not None:
        silos = SumSilos(prepared.silos, prepared.plan, trainer, trust)
        return SecureSums(silos, prepared.plan, trust, trainer.learning_rate)
    return InProcess(prepared.silos, prepared.plan, trainer)


def aggregation_for(prepared: PreparedRun) -> Aggregation:
    """How the run's server makes parameters of a round's answers."""
    facts = [facts for _, facts in prepared.plan.rows]
    settings = prepared.spec.rounds
    return Aggregation(weights(facts, Averaging(settings.averaging)), settings.fewest_silos, prepared.server)


def _noise(prepared: PreparedRun, averaged: Aggregation, played: RoundRecord, size: int) -> float | None:
    """How far noise alone would be expected to move the parameters in this round."""
    share = averaged.server.noise_share(played.round, prepared.plan.horizon.rounds)
    if share is None:
        return None
    learning_rate = prepared.spec.rounds.learning_rate * share
    return noise_distance(prepared.plan, played.cohort, averaged.weights, learning_rate, size)


def _scorer(prepared: PreparedRun, metrics: Iterable[str] = ()) -> Scorer:
    """With the task's headline, these metrics, and those that the spec names."""
    return Scorer.of(prepared.task, prepared.loss, [*metrics, *prepared.spec.evaluation.metrics])


def _scores(prepared: PreparedRun, vector: Tensor, scorer: Scorer) -> Mapping[str, Score]:
    return {name: scorer.score(prepared.learner.trained, vector, data) for name, data in prepared.scored.items()}


def _memory(spec: RunSpec) -> int:
    return int(min(_check.positive("compute.memory_gib", spec.compute.memory_gib), MOST_GIB) * 2**30)
