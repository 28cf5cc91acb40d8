"""From a spec to a finished run: prepare (everything that can be refused), then execute (everything that costs
budget).
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from wholegrain.clipping.losses import find_loss, require_mean
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.parted_sum import sum_in_parts
from wholegrain.clipping.reference import Loss
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Task
from wholegrain.engines.inprocess import InProcess
from wholegrain.engines.score_engine import ScoresInProcess, ScoreSums
from wholegrain.engines.secure_sum_engine import SecureSums
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.errors import BudgetError
from wholegrain.federation.aggregation import Averaging, weights
from wholegrain.federation.messages import Engine, ScoreEngine
from wholegrain.federation.round_record import RoundRecord
from wholegrain.federation.rounds import Aggregation, Payer, RoundResult, State, rounds
from wholegrain.federation.scoring import ScorePayer, score_round
from wholegrain.federation.server_optimiser import Server
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.accounts import (
    guard_run,
    open_ledger,
    release_ledger,
    require_known,
)
from wholegrain.runs.computing import asked_compute, gradient_engine, told_compute
from wholegrain.runs.datasets import DataParts, load_dataset, split_dataset
from wholegrain.runs.declared_sizes import require_declared
from wholegrain.runs.default_settings import facts_of, fill_rate, fill_settings
from wholegrain.runs.ledger_registry import ledger_path
from wholegrain.runs.metrics import find_metrics
from wholegrain.runs.model_fit import require_fit, require_tokens
from wholegrain.runs.noise_to_signal import noise_distance
from wholegrain.runs.observers import ObservedEngine, Observer, ignore
from wholegrain.runs.planning import check_early, plan_for
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_result import PlayedRounds, RunResult, make_result
from wholegrain.runs.score_planning import ScoredData
from wholegrain.runs.setting_origins import find_origins
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.trained_model import build_trained_model, own_model
from wholegrain.silo.noise_sources import noise_source
from wholegrain.silo.score_release import HeldOut, ScoreMaker
from wholegrain.silo.training import Trainer

log = logging.getLogger("wholegrain.runs")


@dataclass(frozen=True, eq=False)
class StartState:
    """Where a run begins or goes on: the state, and the rounds that led to it."""

    state: State
    done: tuple[RoundRecord, ...] = ()


Recorder = Callable[[RoundRecord, State], None]
"""Makes a round last, before anybody is told of it."""


def forget(done: RoundRecord, state: State) -> None:
    """The recorder that keeps nothing."""


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
    asked_compute(spec)  # which refuses what this machine has not, before data is read
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
        learner = build_trained_model(spec.model, dataset.features, dataset.task, spec.seed)
    else:
        learner = own_model(model, spec.model, spec.seed)
    loss = _require_loss(loss, spec, dataset.task)
    gradients = gradient_engine(spec, learner.trained, loss)
    require_fit(learner.model, gradients, plan.rows[0][0].clip, dataset, learner.frozen)
    require_tokens(learner.model, dataset)
    scored, groups = _scored_parts(spec, parts)
    return PreparedRun(
        spec=spec,
        data=dataset.name,
        plan=plan,
        silos=learner.silos(parts.silos),
        scored={name: learner.apply_frozen(data) for name, data in scored.items()},
        groups={name: learner.apply_frozen(data) for name, data in groups.items()},
        held_out={name: learner.apply_frozen(data) for name, data in parts.scored.items()},
        held_out_spans=parts.scored_spans,
        learner=learner,
        first=flatten(learner.model),
        task=dataset.task,
        features=dataset.features,
        layout=dataset.layout,
        origins=origins,
        loss=loss,
        clipped_sum=sum_in_parts(gradients, spec.compute.ranks_per_silo, plan.rows[0][0].clip),
        compute=told_compute(spec),
        noise=noise_source(spec.privacy.noise, spec.seed, spec.compute.compiled),
        server=Server.of(spec.server),
    )


def _require_loss(given: Loss | None, spec: RunSpec, task: Task) -> Loss:
    """The loss that was given, or that the spec names."""
    if given is None:
        return find_loss(spec.model.loss, task)
    require_mean(given, getattr(given, "__name__", "given"), task)
    return given


def _scored_parts(spec: RunSpec, parts: DataParts) -> tuple[Mapping[str, SubjectData], Mapping[str, SubjectData]]:
    """What is scored in each round, and the groups of it that only the final model is scored on."""
    scored, groups = ({}, {}) if _scores_privately_alone(spec) else (dict(parts.held_out), parts.groups)
    if spec.evaluation.train:
        scored |= {f"train/{name}": silo.data for name, silo in parts.silos.items() if silo.data.items}
    return scored, groups


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
    size, each_round = state.vector.numel(), prepared.scorer()
    for played, state in _affordable(rounds(state, prepared.plan.horizon, carrier, guard, averaged), done):  # noqa: B020
        chosen = averaged.server.choose_parameters(state.vector, state.memory)
        played = replace(played, noise=_noise(prepared, averaged, played, size))
        played = _score_privately(prepared, played, chosen, guard, score_engine)
        played = replace(played, scores=prepared.score(chosen, each_round))
        done.append(played if prepared.spec.privacy.noise == "seeded" else played.without_time())
        record(done[-1], state)
        observe(played)
    return PlayedRounds(tuple(done), averaged.server.choose_parameters(state.vector, state.memory))


def _score_privately(
    prepared: PreparedRun, played: RoundRecord, vector: Tensor, guard: ScorePayer, engine: ScoreEngine | None
) -> RoundRecord:
    """The round with its private scores, where one is due."""
    plan = prepared.plan.scores
    if plan is None or not plan.is_due(played.round, prepared.plan.horizon.rounds):
        return played
    engine = engine or score_engine_of(prepared, plan)
    found = score_round(plan, prepared.task, engine, guard, played.round, vector)
    return replace(played, private=found.scores, faults=played.faults + found.faults)


def score_engine_of(prepared: PreparedRun, plan: ScorePlan) -> ScoreEngine:
    """Who scores all silos here: each by itself, or only their sum."""
    scores = scores_in_process(prepared, plan)
    sums = in_process(prepared)
    if not isinstance(sums, SecureSums):
        return scores
    assert isinstance(sums.post, SumSilos)
    return ScoreSums(plan, replace(sums, post=replace(sums.post, score=scores.part_of_sum)))


def scores_in_process(prepared: PreparedRun, plan: ScorePlan) -> ScoresInProcess:
    """Who scores each silo here."""
    maker = ScoreMaker(model=prepared.learner.trained, loss=prepared.loss, task=prepared.task, noise=prepared.noise)
    spans = prepared.held_out_spans
    held_out = {name: HeldOut(data, spans.get(name)) for name, data in prepared.held_out.items()}
    return ScoresInProcess(held_out, plan.form, maker)


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
