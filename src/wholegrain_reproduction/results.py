"""What was measured: a result for each finished run, and group sizes. Claims are judged from this alone."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from wholegrain.federation.round_record import RoundRecord, Score
from wholegrain.report.run_reader import RunRecord, read_run
from wholegrain.runs.run_folder import RunFolder
from wholegrain_reproduction.group_sizes import GroupSizes, read_group_sizes
from wholegrain_reproduction.recipes import Kind
from wholegrain_reproduction.run_trials import read_seconds, read_true_epsilon
from wholegrain_reproduction.subject_epsilon import TrueEpsilon
from wholegrain_reproduction.trials import PaperTrial, trial_key


@dataclass(frozen=True)
class Result:
    """A finished run: its scores and its true ε."""

    algorithm: str
    kind: Kind
    rounds: tuple[RoundRecord, ...]
    epsilon: float | None = None
    """The budget: what the paper claims, or what a sound policy keeps to."""
    unit: str = "subject"
    true_epsilon: TrueEpsilon | None = None
    noise: float = math.nan
    seconds: float = 0.0
    """Processor time."""

    @property
    def accuracy(self) -> float:
        """After the last round."""
        return self.scores[-1].accuracy

    @property
    def loss(self) -> float:
        """After the last round."""
        return self.scores[-1].loss

    @property
    def scores(self) -> tuple[Score, ...]:
        """On the test part after each round. Not private."""
        return tuple(record.scores["test"] for record in self.rounds)


@dataclass(frozen=True)
class Results:
    """Results by the key of their trial; group sizes on the paper's geometry, and in the batches of printed runs."""

    by_key: Mapping[str, Result] = field(default_factory=dict)
    geometry: tuple[GroupSizes, ...] = ()
    groups: Mapping[str, GroupSizes] = field(default_factory=dict)
    repeats: Mapping[int, Mapping[str, Result]] = field(default_factory=dict)
    """By seed: results of repeated runs, under the keys of the runs that they repeat."""

    def per_seed(self) -> "tuple[Results, ...]":
        """These results, and for each other seed the same with repeated runs in place of the first ones."""
        others = (replace(self, by_key={**self.by_key, **found}, repeats={}) for found in self.repeats.values())
        return (self, *others)

    def of_trial(self, trial: PaperTrial) -> Result | None:
        """The result of this trial, whatever its seed."""
        return (self.repeats.get(trial.seed, {}) if trial.seed else self.by_key).get(_original_key(trial))

    def result(self, recipe: str, algorithm: str, kind: Kind = Kind.PRINTED, variant: str = "") -> Result | None:
        """The result of this trial, if there is one."""
        return self.by_key.get(trial_key(recipe, variant, algorithm, kind))

    def accuracy(self, recipe: str, algorithm: str, kind: Kind = Kind.PRINTED, variant: str = "") -> float | None:
        """Its accuracy after the last round."""
        found = self.result(recipe, algorithm, kind, variant)
        return None if found is None else found.accuracy


def read_results(trials: Iterable[PaperTrial], out: Path, geometry: Iterable[GroupSizes] = ()) -> Results:
    """The results of all trials whose runs are finished."""
    results: dict[str, Result] = {}
    groups: dict[str, GroupSizes] = {}
    repeats: dict[int, dict[str, Result]] = {}
    for trial in trials:
        folder = out / trial.key
        if RunFolder.holds_run(folder) and RunFolder.open(folder).finished:
            found = _result(trial, read_run(folder, trial.key))
            if trial.seed:
                repeats.setdefault(trial.seed, {})[_original_key(trial)] = found
                continue
            results[trial.key] = found
            if trial.algorithm == "local_group_dp" and trial.kind is Kind.PRINTED:
                groups[f"{trial.recipe}/{trial.variant}".rstrip("/")] = read_group_sizes(folder)
    return Results(results, tuple(geometry), groups, repeats)


def _original_key(trial: PaperTrial) -> str:
    return trial_key(trial.recipe, trial.variant, trial.algorithm, trial.kind)


def _result(trial: PaperTrial, run: RunRecord) -> Result:
    true_epsilon = read_true_epsilon(run.path)
    return Result(
        algorithm=trial.algorithm,
        kind=trial.kind,
        rounds=run.rounds,
        epsilon=run.spec.privacy.epsilon if trial.algorithm != "fedavg" else None,
        unit=run.spec.privacy.unit,
        true_epsilon=true_epsilon,
        noise=true_epsilon.noise if true_epsilon else _noise(run),
        seconds=read_seconds(run.path),
    )


def _noise(run: RunRecord) -> float:
    """The noise multiplier of a sound run."""
    found = run.plan.silos[0].noise_multiplier
    return math.nan if isinstance(found, list) else found or 0.0
