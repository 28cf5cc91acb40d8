"""A spec as TOML, with comments that say why a setting is what it is."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wholegrain._files import write_whole
from wholegrain.errors import SpecError
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_template import key, quote

Reasons = Mapping[str, str]
"""Why a setting was chosen, by its place in the spec (`rounds.count`)."""


def write_spec(path: Path, spec: RunSpec, head: str, reasons: Reasons) -> None:
    """Write the spec as TOML, unless something is there; paths are written as this file's folder sees them."""
    require_new_spec(path)
    tree = spec.model_dump(exclude_unset=True)
    _make_relative(tree, path.parent.absolute())
    _drop_blanks(tree)
    text = spec_text(tree, head, reasons)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise SpecError(f"The spec '{path}' cannot be written: {error.strerror}.") from error


def require_new_spec(path: Path) -> None:
    """Refuse a file that is there, or that is not named as a spec."""
    if path.suffix != ".toml":
        raise SpecError(f"A spec is a .toml file, and '{path}' is not named so.")
    if path.exists():
        raise SpecError(f"'{path}' already exists; remove it, or name another file.")


def spec_text(tree: Mapping[str, Any], head: str, reasons: Reasons) -> str:
    """The tree as TOML, after a comment.

    >>> print(spec_text({"seed": 1, "rounds": {"count": 20, "cohort": None}}, "Better.", {"rounds.count": "enough"}))
    # Better.
    seed = 1
    <BLANKLINE>
    [rounds]
    count = 20  # enough
    <BLANKLINE>
    """
    return "\n".join([*(f"# {line}" for line in head.splitlines()), *_section(tree, (), reasons), ""])


def _section(tree: Mapping[str, Any], place: tuple[str, ...], reasons: Reasons) -> Iterator[str]:
    """A section's own keys, then the sections in it; what is not set cannot be said in TOML, and is left out."""
    inner = {name: value for name, value in tree.items() if _is_section(value, place)}
    for name, value in tree.items():
        if value is not None and name not in inner:
            why = reasons.get(".".join((*place, name)))
            yield f"{key(name)} = {_value(value)}" + (f"  # {why}" if why else "")
    for name, value in inner.items():
        where = (*place, name)
        lines = list(_section(value, where, reasons))
        if lines and lines[0] and not lines[0].startswith("["):
            yield from ("", f"[{'.'.join(map(key, where))}]")
        yield from lines


def _is_section(value: Any, place: tuple[str, ...]) -> bool:
    """Whether a mapping has a header of its own: those that describe one column or one silo stand on one line."""
    return isinstance(value, Mapping) and (len(place) < 2 or any(isinstance(each, Mapping) for each in value.values()))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key(str(k))} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    return str(value)  # a number or a date


def _make_relative(tree: dict[str, Any], folder: Path) -> None:
    """Take paths of data, ledger and backbone from the folder that the spec is written to."""
    data = tree.get("data", {})
    inside = ((data.get("table"), "path"), (data.get("options"), "path"), (tree.get("ledger"), "path"))
    for section, name in (*inside, (tree.get("model"), "start")):
        if isinstance(section, dict) and isinstance(section.get(name), str):
            section[name] = Path(os.path.relpath(section[name], folder)).as_posix()


def _drop_blanks(tree: dict[str, Any]) -> None:
    """Leave out what only a category has from columns that are none."""
    for feature in ((tree.get("data") or {}).get("table") or {}).get("features", {}).values():
        if feature.get("categories") is None:
            feature.pop("centred", None)
