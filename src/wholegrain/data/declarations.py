"""Declared columns as a spec holds them: read from mappings and written back, with errors that name the column."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from datetime import date
from typing import Any, TypeVar

from wholegrain import _check
from wholegrain.data.schema import Category, Date, Feature, Number, Target
from wholegrain.data.text_feature import Text, write_text
from wholegrain.errors import SpecError

Kind = TypeVar("Kind")
EXAMPLES = {"Target": "Target('ill', ['no', 'yes'])", "Number": "Number(0, 110)", "Category": "Category(['f', 'm'])"}
"""For whoever gives something else."""


def write_target(target: Target) -> dict[str, Any]:
    """A target as a spec keeps it: keys that earlier versions did not have only where they are set, so digests stay."""
    always = {"column": target.column, "classes": target.classes, "threshold": target.threshold}
    return always | {
        key: value
        for key, value in asdict(target).items()
        if key not in always and value not in (None, ()) and value is not False
    }


def read_features(features: object) -> dict[str, Feature]:
    """Features by column, each declared as a value or, in a spec, as the fields of one."""
    if not isinstance(features, Mapping):
        raise SpecError(
            "Features are declared by column with what is publicly known of each, as in {'age': Number(0, 110), 'sex':"
            f" Category(['f', 'm'])}}, not as {type(features).__name__}."
        )
    return {str(name): read_feature(str(name), feature) for name, feature in features.items()}


def read_feature(name: str, feature: object) -> Feature:
    """What is declared of one column, or an error that names it."""
    if isinstance(feature, Number | Date | Category | Text):
        return feature
    if not isinstance(feature, Mapping):
        raise SpecError(
            f"The feature '{name}' needs its bounds, Number(low, high), or its categories, Category([…]), from public"
            f" knowledge and not from the data; it is {feature!r}."
        )
    given = {key: value for key, value in feature.items() if value is not None}
    if "length" in given or "tokenizer" in given:
        return read_value(Text, f"the feature '{name}'", given)
    if ("categories" in given) == bool({"low", "high"} & set(given)) or ("low" in given) != ("high" in given):
        _check.known_keys(f"the feature '{name}'", given, {"low", "high", "categories", "missing", "centred", "format"})
        raise SpecError(
            f"The feature '{name}' needs either low and high or categories; they must come from"
            " public knowledge, not from the data."
        )
    if "categories" not in given and not given.pop("centred", False):
        dated = "format" in given or any(isinstance(given[bound], str | date) for bound in ("low", "high"))
        what = f"the feature '{name}'"
        return read_value(Date, what, given) if dated else read_value(Number, what, given)
    if "categories" not in given:
        raise SpecError(f"The feature '{name}' is a number, which its bounds centre already; leave out `centred`.")
    return read_value(Category, f"the feature '{name}'", given)


def write_feature(feature: Feature) -> dict[str, Any]:
    """A feature as a spec keeps it, in the order and with the blanks of earlier versions, so that digests stay."""
    if isinstance(feature, Text):
        return write_text(feature)
    blank = {"low": None, "high": None, "categories": None, "centred": False, "missing": None}
    given = {key: str(value) if isinstance(value, date) else value for key, value in asdict(feature).items()}
    return blank | {
        key: value for key, value in given.items() if value is not False and (key != "format" or value is not None)
    }


def read_value(kind: type[Kind], what: str, given: object) -> Kind:
    """A declared value, given as itself or as a mapping of its fields; errors say `what` it is of."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        example = f", as in {EXAMPLES[kind.__name__]}" if kind.__name__ in EXAMPLES else ""
        raise SpecError(f"In {what}: a {kind.__name__} is expected{example}, not {given!r}.")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    _check.known_keys(what, given, known)
    for name, each in known.items():
        if each.default is MISSING and name not in given:
            raise SpecError(f"In {what}: '{name}' is missing.")
    try:
        return kind(**given)
    except SpecError as error:
        raise SpecError(f"In {what}: {error}") from error
