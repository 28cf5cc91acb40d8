"""Tables into items, scaled with declared bounds only: no statistic of private rows enters a model.

A column is declared with what is publicly known of it. A value beyond its bounds is moved to the bound; a category that
was not declared, or a missing value where none was allowed, is refused with the row named.
"""

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData, subject_codes
from wholegrain.errors import DataError, SpecError

# How tables spell "unknown". Taken for a subject, it would stand for many people at once.
NOBODY = ("nan", "null", "none", "na", "n/a", "<na>")


@dataclass(frozen=True)
class Number:
    """A numeric column with public bounds, scaled to [−1, 1]; `missing` stands in for absent values, if given."""

    name: str
    low: float
    high: float
    missing: float | None = None

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise SpecError(
                f"The bounds of '{self.name}' must be finite with low < high, not {self.low} and {self.high}."
            )

    def encode(self, frame: pl.DataFrame) -> NDArray[np.float32]:
        """[row, 1] values in [−1, 1]."""
        values = _numbers(_column(frame, self.name))
        if self.missing is None:
            _refuse_missing(values, "declare `missing` with a value from knowledge, or remove the rows")
        else:
            values = values.fill_null(self.missing)
        bounded = values.clip(self.low, self.high).to_numpy()
        scaled = 2 * (bounded - self.low) / (self.high - self.low) - 1
        return scaled.astype(np.float32)[:, None]


@dataclass(frozen=True)
class Category:
    """A column with publicly known categories, one-hot; absent values are all zeros where `missing` allows them.

    `centred` takes 1/k off each of the k columns. They then share no constant part, which would fill most of a clipped
    gradient and which the model's own constant can express.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool = False
    centred: bool = False

    def __post_init__(self) -> None:
        _require_distinct(self.name, self.categories)

    def encode(self, frame: pl.DataFrame) -> NDArray[np.float32]:
        """[row, category] zeros and ones, less their mean over categories where they are centred."""
        column = as_text(_column(frame, self.name))
        if not self.missing:
            _refuse_missing(column, "declare `missing = true`, or remove the rows")
        codes = _codes(column, self.categories)
        columns = np.arange(len(self.categories))
        one_hot: NDArray[np.float32] = (codes[:, None] == columns).astype(np.float32)
        return one_hot - np.float32(1 / len(columns)) if self.centred else one_hot


@dataclass(frozen=True)
class Target:
    """What is to be predicted: one of `classes`, or whether a number lies above a public `threshold`."""

    name: str
    classes: tuple[str, ...] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        _require_distinct(self.name, self.classes)
        if (len(self.classes) < 2) == (self.threshold is None):
            raise SpecError(f"The target '{self.name}' needs either two or more classes or one threshold.")

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.classes) or 2

    def encode(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """[row] class numbers."""
        column = _column(frame, self.name)
        values = as_text(column) if self.threshold is None else _numbers(column)
        _refuse_missing(values, "an item without a target cannot be trained on; remove the rows")
        if self.threshold is None:
            return _codes(values, self.classes)
        return (values.to_numpy() > self.threshold).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """Which column is what."""

    subject: str
    target: Target
    features: tuple[Number | Category, ...]
    silo: str | None = None

    def __post_init__(self) -> None:
        if not self.features:
            raise SpecError("The table declares no features; name at least one with its bounds.")
        columns = [self.subject, self.target.name] + ([self.silo] if self.silo else [])
        if len(set(columns)) < len(columns):
            raise SpecError("Subject, silo and target are three different columns of a table.")
        for feature in self.features:
            if feature.name in (self.subject, self.target.name):
                raise SpecError(f"'{feature.name}' cannot be a feature and the subject or target.")

    @property
    def names(self) -> frozenset[str]:
        """Columns that hold names, not quantities."""
        names = {feature.name for feature in self.features if isinstance(feature, Category)}
        names |= {self.target.name} if self.target.classes else set()
        return frozenset(names | {self.subject} | ({self.silo} if self.silo else set()))


def encode(frame: pl.DataFrame, layout: TableLayout, name: str) -> Dataset:
    """The table as a data set; refused whole where any row breaks a declaration."""
    if frame.is_empty():
        raise DataError(f"The table '{name}' has no rows.")
    ids = as_text(_column(frame, layout.subject))
    ids = ids.set(ids.str.to_lowercase().is_in(NOBODY).fill_null(False), None)
    _refuse_missing(ids, "a row without a subject cannot be protected; complete or remove the rows")
    labels = None
    if layout.silo is not None:
        silos = as_text(_column(frame, layout.silo))
        _refuse_missing(silos, "every row belongs to a silo; complete or remove the rows")
        labels = silos.to_numpy().astype(np.str_)
    inputs = np.concatenate([feature.encode(frame) for feature in layout.features], axis=1)
    data = SubjectData(inputs, layout.target.encode(frame), subject_codes(ids.to_list()))
    return Dataset(name=name, data=data, silos=labels, classes=layout.target.count)


def read(path: Path, names: Collection[str]) -> pl.DataFrame:
    """A CSV or Parquet file; columns of names are read as text, so that '007' and '7' stay two people."""
    if not os.path.isfile(path):  # which, unlike the path's own method, takes any name
        raise DataError(f"There is no file '{path}'.")
    _check.one_of("table format", path.suffix.lower(), [".csv", ".parquet"])
    try:
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(path)
        columns = pl.read_csv(path, n_rows=0).columns
        as_string = {name: pl.String for name in names if name in columns}
        return pl.read_csv(path, schema_overrides=as_string, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"The file '{path}' cannot be read as a table: {_check.reason(error)}.") from error


def as_text(column: pl.Series) -> pl.Series:
    """Values as text: whole numbers without a decimal point, blanks and what is not finite as missing.

    How a value is written depends on no other row.

    >>> as_text(pl.Series([1.0, 2.5, float("nan")])).to_list()
    ['1', '2.5', None]
    """
    if column.dtype == pl.Boolean:
        column = column.cast(pl.Int64)
    if column.dtype.is_float():
        text = [_written(value) for value in column.to_list()]
        return pl.Series(column.name, text, dtype=pl.String)
    stripped = column.cast(pl.String).str.strip_chars()
    return stripped.set(stripped == "", None)


def _written(value: float | None) -> str | None:
    if value is None or not math.isfinite(value):
        return None
    return str(int(value)) if value == int(value) else repr(value)


def _numbers(column: pl.Series) -> pl.Series:
    """Values as numbers, NaN as missing; text that is no number is refused with its row."""
    if column.dtype == pl.String:
        column = column.set(column.str.strip_chars() == "", None)
    elif not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise DataError(f"Column '{column.name}' is declared as a number and holds {column.dtype}.")
    values = column.cast(pl.Float64, strict=False)
    wrong = values.is_null() & column.is_not_null()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise DataError(
            f"Column '{column.name}' is declared as a number and holds '{column[row]}' in row {row + 1};"
            " declare it with categories, or mend the row."
        )
    return values.fill_nan(None)


def _require_distinct(name: str, values: Sequence[str]) -> None:
    if len(set(values)) < len(values):
        raise SpecError(f"The values declared for '{name}' are not distinct: {', '.join(values)}.")


def _column(frame: pl.DataFrame, name: str) -> pl.Series:
    if name not in frame.columns:
        near = _check.suggestion(name, frame.columns)
        raise DataError(f"The table has no column '{name}'{near}; it has {', '.join(frame.columns)}.")
    return frame[name]


def _refuse_missing(column: pl.Series, remedy: str) -> None:
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise DataError(
            f"Column '{column.name}' has {column.null_count()} missing values (the first in row {row + 1}); {remedy}."
        )


def _codes(column: pl.Series, categories: Sequence[str]) -> NDArray[np.int64]:
    """Position of each value among the categories; −1 where missing."""
    positions = {category: number for number, category in enumerate(categories)}
    values = column.to_list()
    codes = np.array([-1 if v is None else positions.get(v, -2) for v in values], np.int64)
    if (codes == -2).any():
        row = int(np.flatnonzero(codes == -2)[0])
        raise DataError(
            f"Column '{column.name}' holds '{values[row]}' in row {row + 1}, which is not among its"
            f" declared categories ({', '.join(categories)})."
        )
    return codes
