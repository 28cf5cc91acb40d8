"""The server's roster: who may take part, under which name, with which key, and about how much data each declares.

A silo is one line of `roster.toml`, which the server's spec names (`[federation] roster = "roster.toml"`). Sizes go
into the plan and so into the spec's digest; keys do not, so that a new key does not begin a new run.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wholegrain._files import write_whole
from wholegrain.errors import RunError, SpecError
from wholegrain.runs.section_files import read_tree

HEADER = """# Who may take part: a silo's name, public key, and the sizes that its charter declares, in one line each.
# `wholegrain federation add-silo` adds lines, `revoke` takes them away.
"""
SIZES = ("items", "subjects", "items_per_subject")
BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Roster:
    """Lines by silo, as they stand in the file, and the keys that were revoked, with a note on each."""

    silos: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    revoked: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        """The public key of every silo, in OpenSSH's form."""
        return {name: str(line.get("key", "")) for name, line in self.silos.items()}

    def is_revoked(self, key: str) -> bool:
        """Whether a key was revoked, whatever is written beside it."""
        return key_body(key) in set(map(key_body, self.revoked))

    def facts(self) -> list[dict[str, Any]]:
        """What a plan needs to know of the silos: all but their keys."""
        return [
            {"name": name, **{key: value for key, value in line.items() if key != "key"}}
            for name, line in self.silos.items()
        ]

    def with_silo(self, name: str, line: Mapping[str, Any]) -> "Roster":
        """The roster with this line for this silo; sizes that the line leaves open stay as they were."""
        return Roster({**self.silos, name: {**self.silos.get(name, {}), **line}}, self.revoked)

    def without(self, name: str, note: str) -> "Roster":
        """The roster without a silo; its key is remembered as revoked."""
        kept = {silo: line for silo, line in self.silos.items() if silo != name}
        return Roster(kept, {**self.revoked, self.keys[name]: note})

    def as_toml(self) -> str:
        """The file's text."""
        lines = [f"{_name(name)} = {{ {_pairs(line)} }}" for name, line in self.silos.items()]
        revoked = [f"{_quote(key)} = {_quote(note)}" for key, note in self.revoked.items()]
        return "\n".join([HEADER + "[silos]", *lines, "", "[revoked]", *revoked]) + "\n"


def key_body(key: str) -> bytes:
    """What makes a public key this one: its line without the comment, decoded. Two spellings of one key are one key."""
    kind, _, rest = key.strip().partition(" ")
    try:
        return base64.b64decode(rest.split()[0])
    except (IndexError, ValueError):
        return kind.encode()


def read_roster(path: Path) -> Roster:
    """Read a roster.toml."""
    return parse_roster(read_tree(path, "roster"), path)


def parse_roster(tree: Mapping[str, Any], path: Path) -> Roster:
    """The roster of a file's sections, or what is wrong with it."""
    silos, revoked = tree.get("silos", {}), tree.get("revoked", {})
    if not isinstance(silos, dict) or not all(isinstance(line, dict) for line in silos.values()):
        raise SpecError(f"The roster '{path}' needs the section [silos], with a line such as north = {{ key = ... }}.")
    if not isinstance(revoked, dict) or set(tree) - {"silos", "revoked"}:
        raise SpecError(f"The roster '{path}' has sections other than [silos] and [revoked].")
    for name, line in silos.items():
        if not isinstance(line.get("key"), str):
            raise SpecError(f"In the roster '{path}', '{name}' has no key.")
    found = Roster(silos, {str(key): str(note) for key, note in revoked.items()})
    for name, key in found.keys.items():
        if found.is_revoked(key):
            raise SpecError(f"In the roster '{path}', the key of '{name}' is revoked.")
    if len(set(map(key_body, found.keys.values()))) != len(silos):
        raise SpecError(f"In the roster '{path}', two silos have the same key.")
    return found


def write_roster(roster: Roster, path: Path) -> None:
    """Put the roster in place, whole."""
    try:
        write_whole(path, roster.as_toml().encode())
    except OSError as error:
        raise RunError(f"The roster '{path}' cannot be written: {error.strerror}.") from error


def _pairs(line: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_quote(value)}" for key, value in line.items())


def _name(name: str) -> str:
    """A silo's name as a key of TOML, which reads a dot in a bare one as a section within a section."""
    return name if BARE.fullmatch(name) else _quote(name)


def _quote(value: Any) -> str:
    """A value as TOML writes it, which for text, numbers and truths is how JSON does but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
