"""The runs of a recipe: one spec each, under a key of its own."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from wholegrain import _check
from wholegrain.policies.as_printed import CLAIMED_UNIT
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.spec import RunSpec
from wholegrain_reproduction.data_choice import DataSource
from wholegrain_reproduction.recipes import Kind, Recipe, TrialSettings, VariantSpec, merge
from wholegrain_reproduction.scales import Scale

ALGORITHM_NAMES = {
    "fedavg": "FedAvg",
    "local_item_dp": "LocalItemDP",
    "user_ldp": "UserLDP",
    "local_group_dp": "LocalGroupDP",
    "higradavg_dp": "HiGradAvgDP",
    "subject_dp": "SubjectDP",
}
"""The algorithms as the paper calls them, and ours."""

PAPER_ALGORITHMS = ("fedavg", "local_item_dp", "user_ldp", "local_group_dp", "higradavg_dp")
PRIVATE_ALGORITHMS = PAPER_ALGORITHMS[1:]
SUBJECT_ALGORITHMS = tuple(name for name in PRIVATE_ALGORITHMS if CLAIMED_UNIT[name] is Unit.SUBJECT)

REPEAT_SEEDS = (1, 2)
"""Seeds, besides the recipe's own, of runs whose verdict may depend on the seed."""

PAPER_KINDS = (Kind.PRINTED, Kind.EXACT, Kind.MORE_LOTS)
JUDGED_KINDS = (Kind.PRINTED, Kind.MORE_LOTS)
"""The kinds of runs from which claims are judged."""


@dataclass(frozen=True)
class PaperTrial:
    """One run of an experiment.

    The spec of a `TRUE` trial has no ε yet: it is the true ε of the trial under the key `counterpart`.
    """

    recipe: str
    variant: str
    algorithm: str
    kind: Kind
    spec: RunSpec
    bound: int
    """K, with which a printed run is priced; the paper's algorithms themselves declare none."""
    counterpart: str | None = None
    seed: int = 0

    @property
    def key(self) -> str:
        """Its unique name, a relative path."""
        return trial_key(self.recipe, self.variant, self.algorithm, self.kind, self.seed)

    @property
    def label(self) -> str:
        """Its name in messages."""
        variant = f", {self.variant}" if self.variant else ""
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.recipe}{variant}: {ALGORITHM_NAMES[self.algorithm]}, {self.kind.replace('_', ' ')}{seed}"


def trial_key(recipe: str, variant: str, algorithm: str, kind: Kind, seed: int = 0) -> str:
    """The run's folder, relative to the experiment's."""
    run = f"{algorithm}-{kind}" + (f"-seed-{seed}" if seed else "")
    return "/".join(part for part in (recipe, variant, run) if part)


def make_trials(recipe: Recipe, scale: Scale, data: DataSource) -> Iterator[PaperTrial]:
    """All runs of a recipe on this data."""
    for variant in recipe.variants:
        settings = recipe.settings(scale, data.name, variant)
        if data.path is not None:
            options = {"data": {"options": {"path": str(data.path)}}}
            settings = replace(settings, spec=merge(settings.spec, options))
        for kind, algorithms in settings.runs.items():
            for algorithm in algorithms:
                _check.one_of("algorithm", algorithm, ALGORITHM_NAMES)
                yield _make_trial(recipe, variant, algorithm, kind, settings)
        for kind, algorithms in settings.again.items():
            for algorithm, seed in itertools.product(algorithms, REPEAT_SEEDS):
                yield _make_trial(recipe, variant, algorithm, kind, settings, seed)


def _make_trial(
    recipe: Recipe, variant: VariantSpec, algorithm: str, kind: Kind, settings: TrialSettings, seed: int = 0
) -> PaperTrial:
    make_sections = _printed_sections if kind in PAPER_KINDS else _sound_sections
    counterpart = trial_key(recipe.name, variant.name, algorithm, _composition(settings), seed)
    return PaperTrial(
        recipe=recipe.name,
        variant=variant.name,
        algorithm=algorithm,
        kind=kind,
        spec=RunSpec.of({**make_sections(settings, algorithm, kind), "seed": seed}),
        bound=settings.spec["silos"]["items_per_subject"],
        counterpart=counterpart if kind is Kind.TRUE else None,
        seed=seed,
    )


def _printed_sections(settings: TrialSettings, algorithm: str, kind: Kind) -> dict[str, Any]:
    rates = settings.learning_rate.printed if kind is Kind.EXACT else settings.learning_rate.used
    way = "more_lots" if kind is Kind.MORE_LOTS else "fewer_rounds"
    changes = {
        "policy": {"name": algorithm, "as_printed": True, "composition": way, "group_cap": None},
        "silos": {"items_per_subject": None, "surplus": "refuse"},
        "rounds": {"learning_rate": rates.fedavg if algorithm == "fedavg" else rates.private},
    }
    return merge(settings.spec, changes)


def _sound_sections(settings: TrialSettings, algorithm: str, kind: Kind) -> dict[str, Any]:
    policy: dict[str, Any] = {"name": algorithm, "batch_size": None, "rate": settings.sound.rate}
    if algorithm == "subject_dp":  # about as many items in a step as the others have
        policy |= {"rate": settings.sound.subject_rate, "items_per_step": 1}
    changes = {"policy": policy, "rounds": {"learning_rate": settings.learning_rate.used.private}}
    if kind is Kind.TRUE and algorithm not in SUBJECT_ALGORITHMS:
        return merge(settings.spec, merge(changes, {"privacy": {"unit": "item"}}))
    if kind is Kind.TRUE and _composition(settings) is Kind.MORE_LOTS:
        return merge(settings.spec, changes)
    return merge(settings.spec, merge(changes, {"rounds": {"count": _fewer_rounds(settings.spec)}}))


def _composition(settings: TrialSettings) -> Kind:
    """Which of the paper's ways of horizontal composition sound runs are put beside."""
    return Kind.PRINTED if Kind.PRINTED in settings.runs else Kind.MORE_LOTS


def _fewer_rounds(spec: dict[str, Any]) -> int:
    """R/√s, as many rounds as the paper's algorithms for subjects train."""
    return max(1, int(spec["rounds"]["count"] / math.sqrt(spec["silos"]["count"])))
