"""A spec for a table of one's own, with blanks where knowledge is needed.

Nothing here looks at rows beyond the kinds of values in the first ones: a bound or a category that was read off the
data would enter the model without noise.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wholegrain import _check
from wholegrain.data.table_columns import Column, ColumnKind, columns
from wholegrain.data.table_files import TextFormat
from wholegrain.errors import SpecError
from wholegrain.runs.section_files import BLANK

PEOPLE = (
    "subject", "patient", "person", "people", "participant", "respondent", "individual", "customer", "client", "user",
    "member", "employee", "worker", "student", "pupil", "author", "writer", "speaker", "household",
)  # fmt: skip
OUTCOMES = ("target", "label", "class", "outcome", "response", "y")
PLACES = (
    "silo", "site", "clinic", "hospital", "centre", "center", "bank", "branch", "school", "company", "institution",
    "organisation", "organization", "industry", "department", "specialty", "ward",
)  # fmt: skip
RECORDS = (
    "record", "row", "item", "visit", "event", "index", "line", "order", "transaction", "encounter", "admission",
    "stay", "case", "claim", "episode",
)  # fmt: skip
IDS = ("id", "nbr", "number", "no", "key", "uuid", "guid")
CODES = ("id", "code", "type", "category", "zip", "postcode")
QUANTITIES = ("time", "days", "day", "number", "num", "count", "length", "total", "age")


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which column is the subject, which the target and which the silo; `guessed` are those nobody named."""

    subject: str | None = None
    target: str | None = None
    silo: str | None = None
    guessed: frozenset[str] = frozenset()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have a role."""
        return tuple(name for name in (self.subject, self.target, self.silo) if name is not None)


def write_skeleton(table: Path, out: Path, asked: Roles, format: TextFormat = TextFormat()) -> Roles:  # noqa: B008
    """Write an unfinished spec for this table, unless something is there; returns the roles, guesses included."""
    found = columns(table, format)
    roles = assign(found, asked)
    text = skeleton(_relative(table, out.parent), found, roles, format)
    if out.suffix != ".toml":
        raise SpecError(f"A spec is a .toml file, and '{out}' is not named so.")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise SpecError(f"'{out}' already exists; remove it, or name another file with --out.") from error
    except OSError as error:
        raise SpecError(f"The spec '{out}' cannot be written: {_check.reason(error)}.") from error
    return roles


def assign(found: Sequence[Column], asked: Roles) -> Roles:
    """The roles that were asked for, checked, and guesses by name alone for the others.

    >>> assign([Column("patient_id", ColumnKind.NAME), Column("label", ColumnKind.WHOLE)], Roles()).subject
    'patient_id'
    """
    names = [column.name for column in found]
    for name in asked.columns:
        _check.one_of("column", name, names)
    if len(set(asked.columns)) < len(asked.columns):
        raise SpecError("Subject, silo and target are three different columns of a table.")
    free = [name for name in names if name not in asked.columns]
    subject = asked.subject or _guess_subject(free)
    target = asked.target or _guess([name for name in free if name != subject], OUTCOMES)
    places = [name for name in free if name not in (subject, target) and not _words(name) & set(QUANTITIES)]
    silo = asked.silo or _guess(places, PLACES)
    guessed = frozenset({subject, target, silo} - {None, *asked.columns})
    return Roles(subject=subject, target=target, silo=silo, guessed=frozenset(name for name in guessed if name))


def skeleton(path: str, found: Sequence[Column], roles: Roles, format: TextFormat = TextFormat()) -> str:  # noqa: B008
    """The text of the spec; `path` is the table as the spec's folder sees it."""
    target = next((column for column in found if column.name == roles.target), None)
    features = [_feature(column) for column in found if column.name not in roles.columns]
    return HEAD.format(blank=quote(BLANK)) + "\n".join(
        [
            "[data.table]",
            f"path = {quote(path)}  # from this file's folder",
            *_text_format(format),
            _role("subject", roles.subject, roles, "whom a row is about: the one who is protected"),
            *_silo_line(roles),
            _target(target, roles),
            '# missing_values = ["?"]  # how the table writes what is not known, beside an empty field',
            "",
            "[data.table.features]",
            *features,
            *_silos(roles),
            REST,
        ]
    )


def _text_format(format: TextFormat) -> list[str]:
    encoding = [] if format.encoding == TextFormat.encoding else [f"encoding = {quote(format.encoding)}"]
    return encoding + ([] if format.decimal is None else [f"decimal = {quote(format.decimal)}"])


def _guess_subject(names: Sequence[str]) -> str | None:
    """A word for a person; else a name that ends in id and is not one of a record."""
    ids = [name for name in names if re.search(r"(^|[_\W])id(code)?$|[a-z]I[dD]$", name)]
    people = [name for name in names if _words(name) & set(PEOPLE)]
    both = [name for name in people if name in ids]
    others = [name for name in ids if not _words(name) & {*RECORDS, *PLACES}]
    return next(iter([*both, *people, *others]), None)


def _guess(names: Sequence[str], words: Sequence[str]) -> str | None:
    return next((name for word in words for name in names if word in _words(name)), None)


def _words(name: str) -> set[str]:
    """Lower-case words of a column's name, however they are joined.

    >>> sorted(_words("PatientID")), sorted(_words("clinic code"))
    (['id', 'patient'], ['clinic', 'code'])
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return {word.lower() for word in re.split(r"[_\W]+", parted) if word}


def _role(key: str, name: str | None, roles: Roles, meaning: str) -> str:
    if name is None:
        return f"{key} = {quote(BLANK)}  # {meaning}; remove that column from the features below"
    return f"{key} = {quote(name)}  # {_guess_role(name, roles)}{meaning}"


def _silo_line(roles: Roles) -> list[str]:
    if roles.silo is None:
        return ['# silo = "…"  # the column that says who holds a row, if there is one; then leave out the partition']
    return [
        _role("silo", roles.silo, roles, "who holds a row"),
        '# silos = ["…", "…"]  # to take rows of these silos alone, and leave out those of others',
    ]


def _target(column: Column | None, roles: Roles) -> str:
    if column is None:
        declared = f"column = {quote(BLANK)}, classes = [{quote(BLANK)}]"
        return f"target = {{ {declared} }}  # what to predict; remove that column from the features below"
    if column.kind is ColumnKind.NUMBER:
        declared, meaning = (
            f"above = {quote(BLANK)}",
            "predict whether it is above (or at_least) a threshold; or low = …, high = … for itself",
        )
    else:
        declared, meaning = (
            f"classes = [{quote(BLANK)}]",
            "all classes there can be; for a number, at_least or above = …, or low and high",
        )
    return f"target = {{ column = {quote(column.name)}, {declared} }}  # {_guess_role(column.name, roles)}{meaning}"


def _feature(column: Column) -> str:
    """A line to complete; what has the name of a record's id is no feature, and a number with that of a code a name."""
    name, words = key(column.name), _words(column.name)
    if column.kind is ColumnKind.OTHER:
        return f"# {name} is {column.kind}: make it one of them, or leave it out"
    if words & set(IDS) and words <= {*IDS, *RECORDS}:
        return f"# {name} is an id by its name, and no feature"
    if column.kind is ColumnKind.DATE:
        return f"{name} = {{ low = {quote(BLANK)}, high = {quote(BLANK)}{_date_format(column)} }}  # dates: 2020-12-31"
    if column.kind is ColumnKind.NAME:
        return f"{name} = {{ categories = [{quote(BLANK)}] }}"
    if column.kind is ColumnKind.WHOLE and words & set(CODES):
        return f"{name} = {{ categories = [{quote(BLANK)}] }}  # codes, by its name; for a quantity, low and high"
    return f"{name} = {{ low = {quote(BLANK)}, high = {quote(BLANK)} }}"


def _date_format(column: Column) -> str:
    return "" if column.format is None else f", format = {quote(column.format or BLANK)}"


def _silos(roles: Roles) -> list[str]:
    lines = ["", "[silos]"]
    if roles.silo is None:
        lines += ['partition = "uniform"  # rows are spread over silos at random', f"count = {quote(BLANK)}"]
    silo = '"*"  ' if roles.silo is None else "north"
    return [*lines, *SILOS, f"# {silo} = {{ items = 4000, subjects = 900 }}{'' if roles.silo is None else EACH}"]


def _guess_role(name: str, roles: Roles) -> str:
    return "guess, by the column's name; " if name in roles.guessed else ""


def key(name: str) -> str:
    """A TOML key, quoted where it must be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quote(name)


def quote(value: str) -> str:
    """A TOML string: JSON's escapes are all known to TOML, which forbids one more character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _relative(table: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(table, folder)).as_posix()
    except ValueError:  # another drive
        return table.absolute().as_posix()


HEAD = """\
# A spec to complete: replace every {blank}. Until then, it is refused.
#
# Bounds, categories and classes must come from what is known without this table: from units, a code book, a form.
# Whatever is read off the rows would enter the model without noise, and no ε pays for it.
#
#   a number:    age = {{ low = 0, high = 110 }}               beyond its bounds, a value counts as the bound
#   a date:      born = {{ low = 1900-01-01, high = 2020-12-31 }}; otherwise written, e.g. format = "%d.%m.%Y"
#   a name:      sex = {{ categories = ["f", "m"] }}           any other value is refused
#   may be absent: add missing = 40 (number or date: what stands in for it) or missing = true (name)
#   not wanted:  delete the line. Numbers that are codes take categories: {{ categories = [1, 2, 3] }}

"""
SILOS = (
    "# items_per_subject = 10  # K: the most rows of one subject in one silo; every policy but subject_dp needs it",
    "# span = 2                # M: the most silos that hold one subject; all of them if left out",
    "",
    '# A release (privacy.noise = "secure") needs a name for its data ([ledger] data = "visits") and public sizes,',
    "# declared by the owner of the data instead of counted: about what a silo trains on, in round numbers.",
    "# `wholegrain data describe` proposes some.",
    "# [silos.sizes]",
)
EACH = "  # a line for each silo"
REST = """
[privacy]
epsilon = 4.0  # yours to choose; for all silos and rounds together
delta = 1e-5   # well below one in the number of subjects

[evaluation]
test = 0.2  # share of subjects that are only scored

# Model, policy, rounds and learning rate are chosen from the sizes and bounds above. To see them with their reasons, or
# to have them in a file: wholegrain plan THIS_FILE --optimise --write better.toml
"""
