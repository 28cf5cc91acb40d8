"""From a recipe to the runs that it takes: one spec each, under a key of its own."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from wholegrain import _check
from wholegrain.policies.as_printed import CLAIMED_UNIT
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.spec import RunSpec
from wholegrain_reproduction.data_choice import Source
from wholegrain_reproduction.recipes import Kind, Recipe, Scale, Settings, VariantSpec, merged

NAMES = {
    "fedavg": "FedAvg",
    "local_item_dp": "LocalItemDP",
    "user_ldp": "UserLDP",
    "local_group_dp": "LocalGroupDP",
    "higradavg_dp": "HiGradAvgDP",
    "subject_dp": "SubjectDP",
}
"""The algorithms as the paper calls them, and ours."""

PRINTED = ("fedavg", "local_item_dp", "user_ldp", "local_group_dp", "higradavg_dp")
PRIVATE = PRINTED[1:]
FOR_SUBJECTS = tuple(name for name in PRIVATE if CLAIMED_UNIT[name] is Unit.SUBJECT)

AGAIN = (1, 2)
"""Seeds, besides the recipe's own, of runs on whose chance a verdict may hang."""

OF_PAPER = (Kind.PRINTED, Kind.EXACT, Kind.MORE_LOTS)


@dataclass(frozen=True)
class Trial:
    """One run of an experiment.

    The spec of a `TRUE` trial has no ε yet: it follows from what the trial under the key `beside` is worth.
    """

    recipe: str
    variant: str
    algorithm: str
    kind: Kind
    spec: RunSpec
    bound: int
    """K, with which a printed run is priced; the paper's algorithms themselves declare none."""
    beside: str | None = None
    seed: int = 0

    @property
    def key(self) -> str:
        """What tells it from all others; a relative path."""
        return key(self.recipe, self.variant, self.algorithm, self.kind, self.seed)

    @property
    def label(self) -> str:
        """What a person calls it."""
        variant = f", {self.variant}" if self.variant else ""
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.recipe}{variant}: {NAMES[self.algorithm]}, {self.kind.replace('_', ' ')}{seed}"


def key(recipe: str, variant: str, algorithm: str, kind: Kind, seed: int = 0) -> str:
    """Where the run's folder is within the experiments' own."""
    run = f"{algorithm}-{kind}" + (f"-seed-{seed}" if seed else "")
    return "/".join(part for part in (recipe, variant, run) if part)


def trials(recipe: Recipe, scale: Scale, data: Source) -> Iterator[Trial]:
    """All runs of a recipe on this data."""
    for variant in recipe.variants:
        settings = recipe.settings(scale, data.name, variant)
        if data.path is not None:
            options = {"data": {"options": {"path": str(data.path)}}}
            settings = replace(settings, spec=merged(settings.spec, options))
        for kind, algorithms in settings.runs.items():
            for algorithm in algorithms:
                _check.known("algorithm", algorithm, NAMES)
                yield _trial(recipe, variant, algorithm, kind, settings)
        for kind, algorithms in settings.again.items():
            for algorithm, seed in itertools.product(algorithms, AGAIN):
                yield _trial(recipe, variant, algorithm, kind, settings, seed)


def _trial(
    recipe: Recipe, variant: VariantSpec, algorithm: str, kind: Kind, settings: Settings, seed: int = 0
) -> Trial:
    sections = _printed(settings, algorithm, kind) if kind in OF_PAPER else _sound(settings, algorithm, kind)
    return Trial(
        recipe=recipe.name,
        variant=variant.name,
        algorithm=algorithm,
        kind=kind,
        spec=RunSpec.of({**sections, "seed": seed}),
        bound=settings.spec["silos"]["items_per_subject"],
        beside=key(recipe.name, variant.name, algorithm, _way(settings), seed) if kind is Kind.TRUE else None,
        seed=seed,
    )


def _printed(settings: Settings, algorithm: str, kind: Kind) -> dict[str, Any]:
    rates = settings.learning_rate.printed if kind is Kind.EXACT else settings.learning_rate.used
    way = "more_lots" if kind is Kind.MORE_LOTS else "fewer_rounds"
    changes = {
        "policy": {"name": algorithm, "as_printed": True, "composition": way, "group_cap": None},
        "silos": {"items_per_subject": None, "surplus": "refuse"},
        "rounds": {"learning_rate": rates.fedavg if algorithm == "fedavg" else rates.private},
    }
    return merged(settings.spec, changes)


def _sound(settings: Settings, algorithm: str, kind: Kind) -> dict[str, Any]:
    policy: dict[str, Any] = {"name": algorithm, "batch_size": None, "rate": settings.sound.rate}
    if algorithm == "subject_dp":  # about as many items in a step as the others have
        policy |= {"rate": settings.sound.subject_rate, "items_per_step": 1}
    changes = {"policy": policy, "rounds": {"learning_rate": settings.learning_rate.used.private}}
    if kind is Kind.TRUE and algorithm not in FOR_SUBJECTS:
        return merged(settings.spec, merged(changes, {"privacy": {"unit": "item"}}))
    if kind is Kind.TRUE and _way(settings) is Kind.MORE_LOTS:
        return merged(settings.spec, changes)
    return merged(settings.spec, merged(changes, {"rounds": {"count": _fewer(settings.spec)}}))


def _way(settings: Settings) -> Kind:
    """Which of the paper's ways of horizontal composition sound runs are put beside."""
    return Kind.PRINTED if Kind.PRINTED in settings.runs else Kind.MORE_LOTS


def _fewer(spec: dict[str, Any]) -> int:
    """R/√s, as many rounds as the paper's algorithms for subjects train."""
    return max(1, int(spec["rounds"]["count"] / math.sqrt(spec["silos"]["count"])))
