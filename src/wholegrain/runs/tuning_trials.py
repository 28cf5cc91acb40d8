"""The trials of a tuning, each made by itself, in this process or in several; what comes of one is kept in private."""

import contextlib
import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wholegrain._files import write_whole
from wholegrain._json_numbers import finite
from wholegrain._random import Purpose, derive
from wholegrain.data.dataset import Dataset
from wholegrain.errors import BudgetError, RunError
from wholegrain.federation.private_score import ALL, headline_value
from wholegrain.policies.plan import Plan
from wholegrain.privacy.guard import Reservation
from wholegrain.privacy.trial_count import TrialCount
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_result import PlayedRounds
from wholegrain.runs.runner import play_rounds, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.tuning_plan import Noise, SelectionPlan
from wholegrain.runs.tuning_setup import PreparedTuning
from wholegrain.runs.tuning_space import SearchSpace, Settings
from wholegrain.silo.noise_sources import noise_source

log = logging.getLogger("wholegrain.runs")


@dataclass(frozen=True)
class Trial:
    """A finished trial: its settings, what it is ranked by (more is better), and where the rest of it is."""

    number: int
    settings: Settings
    score: float
    seconds: float

    def facts(self) -> dict[str, Any]:
        """The trial as JSON has it."""
        return {**asdict(self), "score": finite(self.score)}

    @staticmethod
    def read(facts: Mapping[str, Any]) -> "Trial":
        """The trial that `facts` wrote."""
        score = facts["score"]
        return Trial(**{**facts, "score": -math.inf if score is None else score})


@dataclass(frozen=True)
class TrialJob:
    """One trial that is to be made: where it is kept, what it is drawn from, and its number."""

    work: Path
    seed: int
    number: int


def play_trials(prepared: PreparedTuning, jobs: list[TrialJob], processes: int) -> Iterator[Trial]:
    """Make these trials, in their order, in so many processes."""
    if processes <= 1 or len(jobs) <= 1:
        yield from (make_trial(prepared, job) for job in jobs)
        return
    context = get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(min(processes, len(jobs)), context, _set_up, (_portable(prepared),)) as pool:
        yield from pool.map(_make_trial_there, jobs)


@dataclass(eq=False)
class PaidBefore:
    """Who answers for a trial: all trials are paid for before the first begins, up to what a trial was planned for.

    `epsilon` is what the best of them costs; a trial by itself is never released.
    """

    plan: Plan
    epsilon: float
    left: Counter[str] = field(init=False)
    scores_left: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.left = Counter(self.plan.horizon.releases())
        self.scores_left = Counter(self.plan.score_releases)

    def reserve(self, round: int, steps: Mapping[str, int], start: str) -> Reservation:
        """Count steps; more than were planned are refused."""
        return self._take(self.left, steps)

    def reserve_scores(self, round: int, silos: Iterable[str], start: str) -> Reservation:
        """Count scores; more than were planned are refused."""
        return self._take(self.scores_left, dict.fromkeys(silos, 1))

    def confirm(self, reservation: Reservation, silos: Iterable[str]) -> None:
        """Nothing has left the private folder."""

    def _take(self, left: Counter[str], asked: Mapping[str, int]) -> Reservation:
        left.subtract(asked)
        if min(left.values(), default=0) < 0:
            raise BudgetError("A trial would release more than was priced.")
        return Reservation((), self.epsilon)


_PREPARED: list[PreparedTuning] = []
"""In a process that makes trials: what they are made from."""


Parts = tuple[RunSpec, SearchSpace, TrialCount, tuple[Noise, ...], Dataset | None, float]
"""What another process makes trials from."""


def _portable(prepared: PreparedTuning) -> Parts:
    selection = prepared.selection
    return prepared.spec, prepared.space, selection.count, selection.noise, prepared.dataset, prepared.epsilon


def _set_up(parts: Parts) -> None:
    torch.set_num_threads(1)
    spec, space, count, noise, dataset, epsilon = parts
    base = prepare(spec, dataset=dataset)
    combinations = tuple(map(dict, space.priced_combinations()))
    # Nothing is priced here: the noise was found where the tuning was paid for.
    _PREPARED[:] = [PreparedTuning(base, space, SelectionPlan(count, (), noise), combinations, dataset, epsilon)]


def _make_trial_there(job: TrialJob) -> Trial:
    return make_trial(_PREPARED[0], job)


def make_trial(prepared: PreparedTuning, job: TrialJob) -> Trial:
    """Draw settings, train, score, and keep the outcome in the private folder.

    Guarantee: its noise is its own. A trial that fails, which is decided by noisy values alone, ranks below all others.
    """
    settings = prepared.space.draw(np.random.default_rng(derive(job.seed, Purpose.TUNING, "settings", job.number)))
    try:
        with _unheard() if prepared.is_release else contextlib.nullcontext():
            run = _prepare_trial(prepared, settings, job)
            played = play_rounds(run, PaidBefore(run.plan, prepared.epsilon))
    except RunError as error:
        if not prepared.is_release:
            log.warning("A trial failed: %s", error)
        trial = Trial(job.number, settings, -math.inf, 0.0)
    else:
        trial = Trial(job.number, settings, _rank(played), sum(done.seconds for done in played.rounds))
        _write_outcome(job, _without_times(played) if prepared.is_release else played)
    write_whole(trial_file(job.work, job.number, "json"), json.dumps(trial.facts()).encode(), private=True)
    return trial


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Nothing is logged: a warning of each trial would tell how many there are."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _without_times(played: PlayedRounds) -> PlayedRounds:
    """The rounds, without how long they took: the first trial of a process is the slowest, and would be known by it."""
    return replace(played, rounds=tuple(done.without_time() for done in played.rounds))


def _prepare_trial(prepared: PreparedTuning, settings: Settings, job: TrialJob) -> PreparedRun:
    run = prepare(prepared.trial_spec(settings), dataset=prepared.dataset or loaded_data(prepared))
    if prepared.is_release:
        return run  # its noise is keyed anew by the operating system, at every call
    seed = derive(job.seed, Purpose.NOISE, "trial", job.number)
    return replace(run, noise=noise_source("seeded", seed, run.compute.compiled))


_DATA: dict[str, Dataset] = {}


def loaded_data(prepared: PreparedTuning) -> Dataset:
    """The data that the spec names, loaded once for all trials of a process."""
    key = prepared.spec.data.model_dump_json()
    if key not in _DATA:
        _DATA.clear()
        _DATA[key] = load_dataset(prepared.spec)
    return _DATA[key]


def _rank(played: PlayedRounds) -> float:
    """What a trial is ranked by: the private score of all silos together, after its last round."""
    score = played.rounds[-1].private.get(ALL)
    return -math.inf if not score else headline_value(score)


def trial_file(work: Path, number: int, ending: str) -> Path:
    """A file of a trial, in its private folder."""
    return work / f"trial-{number:04d}.{ending}"


def _write_outcome(job: TrialJob, played: PlayedRounds) -> None:
    lines = "".join(done.line() for done in played.rounds)
    write_whole(trial_file(job.work, job.number, "jsonl"), lines.encode(), private=True)
    values = played.vector.numpy().astype("<f4").tobytes()
    write_whole(trial_file(job.work, job.number, "vector"), values, private=True)


def read_trial(work: Path, number: int) -> Trial | None:
    """A trial that was finished; its last file is written when all others are there."""
    path = trial_file(work, number, "json")
    return Trial.read(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
