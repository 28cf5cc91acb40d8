"""What a table's columns are called and what kind of value they hold: its head only, never a bound or a category.

Kinds come from the schema of a Parquet file, and from the first rows of a CSV, which has none.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

import polars as pl

from wholegrain import _check
from wholegrain.errors import DataError

FIRST_ROWS = 100


class ColumnKind(StrEnum):
    """What a column can be declared as."""

    WHOLE = "whole number"
    NUMBER = "number"
    NAME = "name"
    OTHER = "neither number nor name"


@dataclass(frozen=True)
class Column:
    """One column's name and kind."""

    name: str
    kind: ColumnKind


def columns(path: Path) -> tuple[Column, ...]:
    """The columns of a CSV or Parquet file, or an error that says why it is no table."""
    if not path.is_file():
        raise DataError(f"There is no file '{path}'.")
    _check.one_of("table format", path.suffix.lower(), [".csv", ".parquet"])
    try:
        schema = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"The file '{path}' cannot be read as a table: {_check.reason(error)}.") from error
    return tuple(Column(name, _kind(dtype)) for name, dtype in schema.items())


def _parquet(path: Path) -> Mapping[str, pl.DataType]:
    if not path.stat().st_size:
        raise DataError(f"The file '{path}' is empty.")
    schema = pl.scan_parquet(path).collect_schema()
    _require_names(path, schema.names())
    return schema


def _csv(path: Path) -> Mapping[str, pl.DataType]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = list(islice(csv.reader(file), 1 + FIRST_ROWS))
    if not lines or not lines[0]:
        raise DataError(f"The file '{path}' is empty; a table begins with a line of column names.")
    _require_names(path, lines[0])
    _require_header(path, lines[0])
    if len(lines) == 1:
        raise DataError(f"The file '{path}' has column names and no rows.")
    head = io.StringIO()
    csv.writer(head).writerows(lines)
    # Names as the table is read later; of the rest of the file, not even the kinds.
    names = pl.read_csv(path, n_rows=0).columns
    return dict(zip(names, pl.read_csv(head.getvalue().encode()).dtypes, strict=True))


def _require_names(path: Path, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if not name.strip():
            raise DataError(f"Column {number + 1} of '{path}' has no name; give it one.")
        if name in names[:number]:
            raise DataError(f"Two columns of '{path}' are called '{name}'; rename one of them.")
    if len(names) < 3:
        raise DataError(
            f"The file '{path}' has {len(names)} columns ({', '.join(names)}); a table needs a subject, a target and"
            " a feature, and a CSV is separated by commas."
        )


def _require_header(path: Path, names: Sequence[str]) -> None:
    """Without a line of names, the first row would be taken for it: a private record in a public file."""
    for name in names:
        try:
            float(name)
        except ValueError:
            continue
        raise DataError(
            f"The first line of '{path}' should name the columns and holds the number {name}; add a line of names."
        )


def _kind(dtype: pl.DataType) -> ColumnKind:
    if dtype.is_integer():
        return ColumnKind.WHOLE
    if dtype.is_numeric():
        return ColumnKind.NUMBER
    if dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum):
        return ColumnKind.NAME
    return ColumnKind.OTHER
