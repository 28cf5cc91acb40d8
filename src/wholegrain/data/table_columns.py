"""What a table's columns are called and what kind of value they hold: its head only, never a bound or a category.

Kinds come from the schema of a Parquet file, and from the first rows of a CSV or a workbook, which have none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import polars as pl

from wholegrain.data.table_files import TextFormat, read_head
from wholegrain.errors import DataError

FIRST_ROWS = 100
ISO_DATE = r"\d{4}-\d{2}-\d{2}([T ].*)?"
WRITTEN_DATES = {r"\d{1,2}\.\d{1,2}\.\d{4}": "%d.%m.%Y", r"\d{1,2}/\d{1,2}/\d{4}": "", r"\d{1,2}-\d{1,2}-\d{4}": ""}
"""How dates are written elsewhere; where day and month may be either way round, only the owner knows."""


class ColumnKind(StrEnum):
    """What a column can be declared as."""

    WHOLE = "whole number"
    NUMBER = "number"
    DATE = "date"
    NAME = "name"
    OTHER = "neither number, date nor name"


@dataclass(frozen=True)
class Column:
    """One column's name and kind; of dates, how they are written (None: as 2020-12-31; empty: it cannot be told)."""

    name: str
    kind: ColumnKind
    format: str | None = None


def columns(path: Path, text: TextFormat = TextFormat()) -> tuple[Column, ...]:  # noqa: B008 (frozen)
    """The columns of a file, or an error that says why it is no table."""
    head = read_head(path, FIRST_ROWS, text)
    _require_names(path, head.columns)
    _require_header(path, head.columns)
    if head.is_empty():
        raise DataError(f"The file '{path}' has column names and no rows.")
    return tuple(_column(column) for column in head)


def _require_names(path: Path, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if not name.strip():
            raise DataError(
                f"Column {number + 1} of '{path}' has no name; give it one, or write the table without it (pandas:"
                " to_csv(…, index=False))."
            )
    if len(names) < 3:
        count = "1 column" if len(names) == 1 else f"{len(names)} columns"
        raise DataError(
            f"The file '{path}' has {count} ({', '.join(names)}); a table needs a subject, a target and a feature, and"
            " the columns of a CSV are separated by commas, semicolons, tabs or bars."
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


def _column(column: pl.Series) -> Column:
    if column.dtype != pl.String:
        return Column(column.name, _kind(column.dtype))
    values = [value.strip() for value in column.to_list() if value is not None and value.strip()]
    if values and all(re.fullmatch(ISO_DATE, value) for value in values):
        return Column(column.name, ColumnKind.DATE)
    for pattern, written in WRITTEN_DATES.items():
        if values and all(re.fullmatch(pattern, value) for value in values):
            return Column(column.name, ColumnKind.DATE, written)
    return Column(column.name, _kind_of_text(values))


def _kind_of_text(values: Sequence[str]) -> ColumnKind:
    if values and all(re.fullmatch(r"[+-]?\d+", value) for value in values):
        return ColumnKind.WHOLE
    # A decimal comma is one only between semicolons; a number it is in any case.
    if values and all(
        re.fullmatch(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?|(?i:nan|inf)", value) for value in values
    ):
        return ColumnKind.NUMBER
    return ColumnKind.NAME


def _kind(dtype: pl.DataType) -> ColumnKind:
    if dtype.is_integer():
        return ColumnKind.WHOLE
    if dtype.is_numeric():
        return ColumnKind.NUMBER
    if dtype in (pl.Date, pl.Datetime):
        return ColumnKind.DATE
    if dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum):
        return ColumnKind.NAME
    return ColumnKind.OTHER
