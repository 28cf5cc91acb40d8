"""What was measured: one result for each run that came to its end, and group sizes. The claims read nothing else."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wholegrain.report.reading import Facts, RunRecord, read_run
from wholegrain.reproduce.groups import GroupSizes, of_run
from wholegrain.reproduce.recipes import Kind
from wholegrain.reproduce.running import read_worth
from wholegrain.reproduce.trials import Trial, key
from wholegrain.reproduce.worth import Worth


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

    def result(self, recipe: str, algorithm: str, kind: Kind = Kind.PRINTED, variant: str = "") -> Result | None:
        """The result of this trial, if there is one."""
        return self.results.get(key(recipe, variant, algorithm, kind))

    def accuracy(self, recipe: str, algorithm: str, kind: Kind = Kind.PRINTED, variant: str = "") -> float | None:
        """Its accuracy after the last round."""
        found = self.result(recipe, algorithm, kind, variant)
        return None if found is None else found.accuracy


def gather(trials: Iterable[Trial], out: Path, geometry: Iterable[GroupSizes] = ()) -> Evidence:
    """The evidence of all trials whose runs have come to their end."""
    results, groups = {}, {}
    for trial in trials:
        folder = out / trial.key
        if (folder / "summary.json").exists():
            results[trial.key] = _result(trial, read_run(folder, trial.key))
            if trial.algorithm == "local_group_dp" and trial.kind is Kind.PRINTED:
                groups[f"{trial.recipe}/{trial.variant}".rstrip("/")] = of_run(folder)
    return Evidence(results, tuple(geometry), groups)


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
    )


def _round(facts: Facts) -> Round:
    test = facts["scores (not private)"]["test"]
    loss = math.inf if test["loss"] is None else test["loss"]
    return Round(test["accuracy"], loss, facts["moved"], facts["noise"])
