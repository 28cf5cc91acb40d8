"""Files of sections, as specs, charters and rosters are: how one is read and changed, and how a fault is explained."""

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError

from wholegrain import _check
from wholegrain._strict_numbers import StrictNumbers
from wholegrain.data.text_feature import BUILT_IN
from wholegrain.errors import SpecError

BLANK = "FILL IN"
"""What stands in an unfinished spec where somebody's knowledge is needed."""


class Section(StrictNumbers):
    """A frozen part of a spec that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_tree(path: Path, what: str = "spec") -> dict[str, Any]:
    """The sections of a TOML file, or of a JSON file; errors say `what` it should have been."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError as error:
        raise SpecError(f"There is no {what} '{path}'.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"The {what} '{path}' cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:  # ValueError: no TOML or JSON, or a number with thousands of digits
        raise SpecError(f"The {what} '{path}' is not valid: {_check.reason(error)}.") from error
    if not isinstance(tree, dict):
        raise SpecError(f"The {what} '{path}' holds no sections.")
    return tree


def refuse_blanks(tree: Mapping[str, Any], path: Path, what: str = "spec") -> None:
    """Refuse a file in which somebody's knowledge is still missing."""
    blanks = list(_blanks(tree))
    if blanks:
        others = f" (and {len(blanks) - 1} more)" if len(blanks) > 1 else ""
        raise SpecError(
            f"The {what} '{path}' is unfinished: {blanks[0]} still says '{BLANK}'{others}; fill it in from knowledge,"
            " not from the data."
        )


def _blanks(value: Any, place: str = "") -> Iterator[str]:
    """Where blanks are left, in the order of the file."""
    if value == BLANK:
        yield place
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _blanks(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _blanks(inner, place)


def resolve(section: Any, key: str, folder: Path) -> None:
    """Take a relative path in a section from this folder. A blank is no path yet: somebody is to fill it in."""
    if isinstance(section, dict) and isinstance(section.get(key), str) and section[key] != BLANK:
        section[key] = os.path.abspath(folder / section[key])


def resolve_tokenizers(table: Any, folder: Path) -> None:
    """Take the files of tokenizers that a table names from this folder."""
    features = table.get("features") if isinstance(table, dict) else None
    for feature in features.values() if isinstance(features, dict) else ():
        if isinstance(feature, dict) and feature.get("tokenizer") not in BUILT_IN:
            resolve(feature, "tokenizer", folder)


def change_tree(
    tree: dict[str, Any], changes: Iterable[str], path: Path, resolve_paths: Callable[[dict[str, Any], Path], None]
) -> None:
    """Make `a.b=value` changes to the tree of the file at `path`, and its relative paths absolute.

    A path in the file counts from the file's folder, and one in a change from the working directory, where it is typed.
    """
    resolve_paths(tree, path.parent)
    for change in changes:
        apply_change(tree, change)
    resolve_paths(tree, Path.cwd())  # what the file says is absolute by now, and stays


def apply_change(tree: dict[str, Any], change: str) -> None:
    """Make one `a.b=value` change to a tree of sections."""
    key, equals, text = change.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not last:
        raise SpecError(f"A change is written section.key=value, not '{change}'.")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise SpecError(f"'{section}' in the change '{change}' is a value, not a section.")
    tree[last] = _literal(text.strip())


def _literal(text: str) -> Any:
    """A TOML value where it is one, otherwise the text itself, so that names need no quotes.

    TOML has no value for what is not set; `null` stands for it. Nor has it numbers such as .5 and 4., which are typed.

    >>> _literal("4.0"), _literal(".5"), _literal("subject_dp"), _literal("null")
    (4.0, 0.5, 'subject_dp', None)
    """
    if text == "null":
        return None
    if re.fullmatch(r"[+-]?([0-9]+\.|\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        return float(text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def explain_fault(error: ValidationError, root: type[Section], what: str = "the spec") -> str:
    """The first fault of a tree, with the key at fault and what is known there."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"].startswith("missing"):  # its input is the whole section, which does not say more
        return f"In {what}, {place} is missing."
    if first["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"In {what}, {place}: {_check.plain_words(first['msg'])} (it is {first['input']!r})."
    options = _keys(_type_at(first["loc"][:-1], root))
    near = _check.suggestion(str(first["loc"][-1]), options)
    return f"In {what}, unknown key '{place}'{near}; known here: {', '.join(options)}."


def _type_at(place: tuple[int | str, ...], root: type[Section]) -> Any:
    """What the tree has at this place: the type of a section, or an annotation that names one."""
    found: Any = root
    for part in place:
        section = _section_in(found)
        if get_origin(found) in (dict, tuple):  # the part is a key or a number, of a value that has this type
            found = section
        else:
            found = get_type_hints(section).get(str(part)) if section else None
    return found


def _section_in(annotation: Any) -> Any:
    """The section inside an annotation such as `TableSpec | None` or `tuple[SiloFacts, ...]`."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    return next((found for each in get_args(annotation) if (found := _section_in(each))), None)


def _keys(annotation: Any) -> list[str]:
    """The keys of the section in an annotation, those that a file does not hold left out."""
    section = _section_in(annotation)
    if section is None or is_dataclass(section):
        return [field.name for field in fields(section) if field.name != "declared"] if section else []
    return list(section.model_fields)
