"""Which settings are tried: a public law over specs, from which every trial is drawn by itself.

A space names keys of a spec, each with a list of choices or, where it has no part in the price, a range:

    rounds.learning_rate = { low = 0.01, high = 10.0, scale = "log" }
    policy.clip_norm = [0.3, 1.0, 3.0]
    rounds.count = [20, 60]

Choices that change what a trial reveals (rates, rounds, policies) are finitely many, so that the worst of them can be
priced. What the guarantee is about (data, silos, privacy, who is held out) is not for a search to choose.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from wholegrain.errors import SpecError
from wholegrain.runs.section_files import read_tree
from wholegrain.runs.spec import RunSpec

SECTIONS = ("model", "policy", "rounds", "server")
"""Sections that a space may draw from."""

UNPRICED = frozenset(
    {
        "rounds.learning_rate",
        "policy.clip_norm",
        "server.learning_rate",
        "server.momentum",
        "server.tail",
        "server.decay",
    }
)
"""Keys that no price depends on: noise is measured in clip norms, and the rest is done to what was released."""

MOST_COMBINATIONS = 64
"""Of choices that change the price."""

Settings = Mapping[str, Any]
"""Values by place, `rounds.learning_rate`."""


@dataclass(frozen=True)
class Range:
    """A number between bounds, uniform in itself or in its logarithm."""

    low: float
    high: float
    log: bool = False

    def draw(self, draws: np.random.Generator) -> float:
        """One of them, with four digits, so that what is shown gives the very same run."""
        if self.log:
            return float(f"{math.exp(draws.uniform(math.log(self.low), math.log(self.high))):.4g}")
        return float(f"{draws.uniform(self.low, self.high):.4g}")


@dataclass(frozen=True)
class SearchSpace:
    """Choices and ranges by place."""

    choices: Mapping[str, tuple[Any, ...]]
    ranges: Mapping[str, Range]

    @staticmethod
    def load(path: Path) -> "SearchSpace":
        """Read a space.toml."""
        return SearchSpace.of(read_tree(path, "space"), f"the space '{path}'")

    @staticmethod
    def of(tree: Mapping[str, Any], what: str = "the space") -> "SearchSpace":
        """A space from nested mappings, or from values by place."""
        choices: dict[str, tuple[Any, ...]] = {}
        ranges: dict[str, Range] = {}
        for place, value in _leaves(tree):
            _require_place(place, what)
            if isinstance(value, list | tuple):
                if not value:
                    raise SpecError(f"In {what}, {place} has no choice.")
                choices[place] = tuple(value)
            else:
                ranges[place] = _read_range(place, value, what)
        if not choices and not ranges:
            raise SpecError(f"In {what} there is nothing to choose from; write rounds.learning_rate = [0.1, 1.0].")
        space = SearchSpace(choices, ranges)
        if len(list(space.priced_combinations())) > MOST_COMBINATIONS:
            raise SpecError(
                f"{what} has more than {MOST_COMBINATIONS} combinations of settings that change the price; leave out"
                " some of policy and rounds."
            )
        return space

    @property
    def places(self) -> tuple[str, ...]:
        """What is chosen."""
        return (*self.choices, *self.ranges)

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that are chosen, by section and key: of an option, all options."""
        return tuple(dict.fromkeys(".".join(place.split(".")[:2]) for place in self.places))

    def draw(self, draws: np.random.Generator) -> Settings:
        """One trial's settings."""
        chosen = {place: values[int(draws.integers(len(values)))] for place, values in self.choices.items()}
        return chosen | {place: each.draw(draws) for place, each in self.ranges.items()}

    def priced_combinations(self) -> Iterator[Settings]:
        """Every combination of choices that may change the price."""
        places = [place for place in self.choices if _is_priced(place)]
        for values in product(*(self.choices[place] for place in places)):
            yield dict(zip(places, values, strict=True))

    def single_settings(self) -> Iterator[Settings]:
        """Every choice, and both ends of every range, each by itself."""
        yield from ({place: value} for place, values in self.choices.items() for value in values)
        yield from ({place: end} for place, each in self.ranges.items() for end in (each.low, each.high))

    def combination_of(self, settings: Settings) -> Settings:
        """The part of some settings that may change the price."""
        return {place: settings[place] for place in self.choices if _is_priced(place)}

    def facts(self) -> dict[str, Any]:
        """The space as JSON has it."""
        ranges = {place: vars(each) for place, each in self.ranges.items()}
        return {**{place: list(values) for place, values in self.choices.items()}, **ranges}


def apply_settings(spec: RunSpec, settings: Settings) -> RunSpec:
    """The spec with these values; one that cannot be is refused."""
    tree = spec.model_dump()
    for place, value in settings.items():
        *sections, last = place.split(".")
        inner = tree
        for section in sections:
            inner = inner[section]
        inner[last] = value
    if "policy.rate" in settings:
        tree["policy"]["batch_size"] = None
    return RunSpec.of(tree)


def _is_priced(place: str) -> bool:
    """Whether a plan may depend on it; models and what the server does have no part in one."""
    return place.partition(".")[0] in ("policy", "rounds") and place not in UNPRICED


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        place = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and not {"low", "high"} <= set(value):
            yield from _leaves(value, place)
        else:
            yield place, value


def _require_place(place: str, what: str) -> None:
    section = place.partition(".")[0]
    if section not in SECTIONS or "." not in place:
        raise SpecError(
            f"In {what}, '{place}' is not for a search to choose: it draws from the sections {', '.join(SECTIONS)}."
        )


def _read_range(place: str, value: Any, what: str) -> Range:
    if not isinstance(value, Mapping):
        raise SpecError(f"In {what}, {place} is neither a list of choices nor {{ low = …, high = … }}.")
    scale = value.get("scale", "linear")
    if set(value) - {"low", "high", "scale"} or scale not in ("linear", "log"):
        raise SpecError(f"In {what}, a range has low, high and scale = 'linear' or 'log'; see {place}.")
    if place not in UNPRICED:
        raise SpecError(
            f"In {what}, {place} changes what a trial reveals, so that it needs a list of choices; ranges are for"
            f" {', '.join(sorted(UNPRICED))}."
        )
    low, high = value["low"], value["high"]
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (low, high))
    if not numbers or not (low < high and math.isfinite(high - low)) or (scale == "log" and low <= 0):
        raise SpecError(f"In {what}, the range of {place} needs numbers with low < high (above 0, if scale = 'log').")
    return Range(float(low), float(high), scale == "log")
