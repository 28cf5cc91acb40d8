"""What was measured: one result for each run that came to its end, and group sizes. The claims read nothing else."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from wholegrain.report.run_reader import Facts, RunRecord, read_run
from wholegrain_reproduction.group_sizes import GroupSizes, of_run
from wholegrain_reproduction.recipes import Kind
from wholegrain_reproduction.run_trials import read_seconds, read_worth
from wholegrain_reproduction.subject_epsilon import Worth
from wholegrain_reproduction.trials import Trial, key


@dataclass(frozen=True)
class Round:
    """Accuracy and loss on the test part after a round. Not private."""

    accuracy: float
    loss: float
    moved: float = 0.0
    noise: float | None = None


@dataclass(frozen=True)
class Result:
    """A finished run: what it scored, and what it is worth to a subject."""

    algorithm: str
    kind: Kind
    rounds: tuple[Round, ...]
    epsilon: float | None = None
    """The budget: what the paper claims, or what a sound policy keeps to."""
    unit: str = "subject"
    worth: Worth | None = None
    noise: float = math.nan
    seconds: float = 0.0
    """How long a processor was at it."""

    @property
    def accuracy(self) -> float:
        """After the last round."""
        return self.rounds[-1].accuracy

    @property
    def loss(self) -> float:
        """After the last round."""
        return self.rounds[-1].loss


@dataclass(frozen=True)
class Evidence:
    """Results by the key of their trial; group sizes on the paper's geometry, and in the batches of printed runs."""

    results: Mapping[str, Result] = field(default_factory=dict)
    geometry: tuple[GroupSizes, ...] = ()
    groups: Mapping[str, GroupSizes] = field(default_factory=dict)
    again: Mapping[int, Mapping[str, Result]] = field(default_factory=dict)
    """By seed: what came of runs that were made again, under the keys of those they repeat."""

    def seeds(self) -> "tuple[Evidence, ...]":
        """What was measured, and what it would be with another seed for the runs that were made again."""
        others = (replace(self, results={**self.results, **found}, again={}) for found in self.again.values())
        return (self, *others)

    def of(self, trial: Trial) -> Result | None:
        """The result of this trial, whatever its seed."""
        return (self.again.get(trial.seed, {}) if trial.seed else self.results).get(_repeated(trial))

    def result(self, recipe: str, algorithm: str, kind: Kind = Kind.PRINTED, variant: str = "") -> Result | None:
        """The result of this trial, if there is one."""
        return self.results.get(key(recipe, variant, algorithm, kind))

    def accuracy(self, recipe: str, algorithm: str, kind: Kind = Kind.PRINTED, variant: str = "") -> float | None:
        """Its accuracy after the last round."""
        found = self.result(recipe, algorithm, kind, variant)
        return None if found is None else found.accuracy


def gather(trials: Iterable[Trial], out: Path, geometry: Iterable[GroupSizes] = ()) -> Evidence:
    """The evidence of all trials whose runs have come to their end."""
    results: dict[str, Result] = {}
    groups: dict[str, GroupSizes] = {}
    again: dict[int, dict[str, Result]] = {}
    for trial in trials:
        folder = out / trial.key
        if (folder / "summary.json").exists():
            found = _result(trial, read_run(folder, trial.key))
            if trial.seed:
                again.setdefault(trial.seed, {})[_repeated(trial)] = found
                continue
            results[trial.key] = found
            if trial.algorithm == "local_group_dp" and trial.kind is Kind.PRINTED:
                groups[f"{trial.recipe}/{trial.variant}".rstrip("/")] = of_run(folder)
    return Evidence(results, tuple(geometry), groups, again)


def _repeated(trial: Trial) -> str:
    return key(trial.recipe, trial.variant, trial.algorithm, trial.kind)


def _result(trial: Trial, run: RunRecord) -> Result:
    worth = read_worth(run.path)
    return Result(
        algorithm=trial.algorithm,
        kind=trial.kind,
        rounds=tuple(_round(facts) for facts in run.rounds),
        epsilon=run.spec.privacy.epsilon if trial.algorithm != "fedavg" else None,
        unit=run.spec.privacy.unit,
        worth=worth,
        noise=worth.noise if worth else float(run.plan["silos"][0]["noise_multiplier"] or 0.0),
        seconds=read_seconds(run.path),
    )


def _round(facts: Facts) -> Round:
    test = facts["scores (not private)"]["test"]
    loss = math.inf if test["loss"] is None else test["loss"]
    return Round(test["accuracy"], loss, facts["moved"], facts["noise"])
