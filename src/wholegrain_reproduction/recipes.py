"""The experiments as files: the paper's settings, and what is changed for other data and for smaller scales.

A recipe's `spec` holds the paper's own settings. Each `change` names the scale and the data that it is for (or neither)
and its reason, so that the page can list everything that differs from the paper.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainValidator, ValidationError

from wholegrain import _check
from wholegrain.errors import SpecError
from wholegrain.runs.section_files import Section, explain_fault
from wholegrain_reproduction.scales import Scale

INSTALLED = Path(__file__).parent / "recipes"
IN_SOURCE_TREE = Path(__file__).parents[2] / "recipes"

SpecType = TypeVar("SpecType", bound=Section)


class Kind(StrEnum):
    """What a run is for."""

    PRINTED = "printed"
    """The algorithm as printed, with a learning rate at which it can learn."""
    EXACT = "exact"
    """The same with the printed learning rate."""
    TRUE = "true"
    """The sound policy at the true ε of the printed run."""
    CLAIMED = "claimed"
    """A sound policy at the ε that the paper claims, for a subject and over all silos."""
    MORE_LOTS = "more_lots"
    """The algorithm as printed with the paper's second way of horizontal composition."""


class RatesSpec(Section):
    """A learning rate for FedAvg, and one for all private algorithms."""

    fedavg: float
    private: float


class LearningSpec(Section):
    """The printed learning rates, and those that are used."""

    printed: RatesSpec
    used: RatesSpec


class SoundSpec(Section):
    """Sampling rates of the sound policies: of items, and of subjects for `subject_dp`.

    One rate in all silos, whose sizes differ a little: then one step is priced instead of one for each silo.
    """

    rate: float
    subject_rate: float


@dataclass(frozen=True)
class TrialSettings:
    """Which runs a variant has, and what they share: sections of a spec, learning rates, rates of sound policies."""

    runs: Mapping[Kind, tuple[str, ...]]
    spec: dict[str, Any]
    learning_rate: LearningSpec
    sound: SoundSpec
    again: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    """Which of them are repeated with other seeds."""


def _read_scales(given: object) -> tuple[Scale, ...]:
    """A scale or a list of them; the error says which word is none."""
    names = given if isinstance(given, list | tuple) else [given]
    for name in names:
        if name not in list(Scale):
            near = _check.suggestion(str(name), Scale)
            raise SpecError(f"unknown scale '{name}'{near}; known: {', '.join(Scale)}.")
    return tuple(Scale(str(name)) for name in names)


class ChangeSpec(Section):
    """What is changed for a scale (or some), a source of data or a variant; without one it is for all of them."""

    scale: Annotated[tuple[Scale, ...], PlainValidator(_read_scales)] = tuple(Scale)
    data: str | None = None
    vary: str | None = None
    because: str = ""
    runs: dict[Kind, tuple[str, ...]] = Field(default_factory=dict)
    again: dict[Kind, tuple[str, ...]] = Field(default_factory=dict)
    spec: dict[str, Any] = Field(default_factory=dict)
    learning_rate: dict[str, dict[str, float]] = Field(default_factory=dict)
    sound: dict[str, float] = Field(default_factory=dict)


class VariantSpec(Section):
    """One of several settings that an experiment compares."""

    name: str
    spec: dict[str, Any] = Field(default_factory=dict)


class RecipeSpec(Section):
    """A recipe as its file has it."""

    title: str
    place: str
    runs: dict[Kind, tuple[str, ...]]
    base: str | None = None
    spec: dict[str, Any] = Field(default_factory=dict)
    learning_rate: LearningSpec | None = None
    sound: SoundSpec | None = None
    vary: tuple[VariantSpec, ...] = (VariantSpec(name=""),)
    change: tuple[ChangeSpec, ...] = ()


class GroupSizesSpec(Section):
    """How items are spread over subjects and silos, and how batches are drawn: all that group sizes depend on."""

    title: str
    place: str
    subjects: int
    items: int
    held_out: float
    silos: int
    batch_size: int
    batches: int
    alphas: tuple[float, ...]


@dataclass(frozen=True)
class Recipe:
    """An experiment: its file, merged over the file that it is based on."""

    name: str
    title: str
    place: str
    runs: Mapping[Kind, tuple[str, ...]]
    """Which algorithms are run, by kind."""
    spec: Mapping[str, Any]
    learning_rate: LearningSpec
    sound: SoundSpec
    variants: tuple[VariantSpec, ...]
    changes: tuple[ChangeSpec, ...]

    def settings(self, scale: Scale, data: str, variant: VariantSpec) -> TrialSettings:
        """What all runs of this variant share at this scale and on this data."""
        runs, spec = dict(self.runs), merge(self.spec, variant.spec)
        rates, sound = self.learning_rate.model_dump(), self.sound.model_dump()
        again: dict[Kind, tuple[str, ...]] = {}
        for change in self.changes_for(scale, data, variant.name):
            spec, rates = merge(spec, change.spec), merge(rates, change.learning_rate)
            sound |= change.sound
            runs |= change.runs
            again |= change.again
        return TrialSettings(runs, spec, LearningSpec.model_validate(rates), SoundSpec.model_validate(sound), again)

    def changes_for(self, scale: Scale, data: str, variant: str = "") -> list[ChangeSpec]:
        """The changes for this scale, data and variant, in the order of the file."""
        return [
            change
            for change in self.changes
            if scale in change.scale and change.data in (None, data) and change.vary in (None, variant)
        ]


def recipes_folder() -> Path:
    """Where the recipes are: inside an installed package, or beside its sources."""
    return INSTALLED if INSTALLED.is_dir() else IN_SOURCE_TREE


def load_recipe(name: str, where: Path | None = None) -> Recipe:
    """Read the recipe of this name and its base."""
    found = _read(name, where or recipes_folder(), RecipeSpec)
    base = load_recipe(found.base, where) if found.base else None
    rates = found.learning_rate or (base.learning_rate if base else None)
    sound = found.sound or (base.sound if base else None)
    if rates is None or sound is None:
        raise SpecError(f"The recipe '{name}' lacks learning_rate or sound; give it both, or a base that has them.")
    return Recipe(
        name=name,
        title=found.title,
        place=found.place,
        runs=found.runs,
        spec=merge(base.spec if base else {}, found.spec),
        learning_rate=rates,
        sound=sound,
        variants=found.vary,
        changes=(*(base.changes if base else ()), *found.change),
    )


def load_group_sizes(where: Path | None = None) -> GroupSizesSpec:
    """The geometry whose group sizes are counted."""
    return _read("group_sizes", where or recipes_folder(), GroupSizesSpec)


def merge(tree: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A tree with the values of `over` in place of its own.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    result = dict(tree)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = merge(below, value)
        result[key] = value
    return result


def _read(name: str, where: Path, kind: type[SpecType]) -> SpecType:
    path = where / f"{name}.toml"
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(f"There is no recipe '{path}'.") from error
    except (OSError, ValueError) as error:
        raise SpecError(f"The recipe '{path}' cannot be read: {_check.reason(error)}.") from error
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise SpecError(explain_fault(error, kind, f"the recipe '{path}'")) from error
    except SpecError as error:
        raise SpecError(f"In the recipe '{path}', {error}") from error
