"""Tables in memory: pandas, polars or pyarrow, as a data set.

None of the three is asked for by name: what a table is made of is told by its own type, so that pandas and pyarrow need
not be installed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from wholegrain import _check
from wholegrain.data.dataset import Dataset
from wholegrain.data.declarations import read_features, read_value
from wholegrain.data.labels import write_label
from wholegrain.data.schema import Feature, TableLayout, Target
from wholegrain.data.table import encode, take_silos
from wholegrain.errors import DataError

FRAME = "frame"
"""What data is called to which nobody gave a name."""


def from_frame(
    frame: Any,
    *,
    subject: str,
    target: Target,
    features: Mapping[str, Feature],
    silo: str | None = None,
    silos: Sequence[str] = (),
    missing_values: Sequence[str] = (),
    recode: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    items_per_subject: int | None = None,
    name: str = FRAME,
) -> Dataset:
    """A table of pandas, polars or pyarrow as data to train on.

    `subject` is the column that says whom a row is about and `silo` the one that says who holds it; `silos` names the
    only silos whose rows are taken. Bounds, categories and classes must be known without looking at the rows; a value
    beyond its bounds counts as the bound. Ids may be text or numbers. `missing_values` are spellings of what is not
    known ("?"), and `recode` gives, by column, values that stand for others. `items_per_subject` is a public bound K on
    the rows of one person in one silo, where the table keeps it by its design. `name` is what the data's account is
    called in a release.

    >>> import polars as pl, wholegrain as wg
    >>> visits = pl.DataFrame({
    ...     "patient": ["ann", "ann", "bob"],
    ...     "clinic": ["n", "s", "s"],
    ...     "age": [30, 31, 64],
    ...     "sex": ["f", "f", "m"],
    ...     "ill": ["no", "yes", "no"],
    ... })
    >>> wg.from_frame(
    ...     visits,
    ...     subject="patient",
    ...     silo="clinic",
    ...     target=wg.Target("ill", ["no", "yes"]),
    ...     features={"age": wg.Number(0, 110), "sex": wg.Category(["f", "m"])},
    ... )
    Dataset 'frame': 3 items of 2 subjects in 2 silos; 3 features, 2 classes

    Private: the data set, and what its repr counts.
    """
    layout = TableLayout(
        subject=subject,
        silo=silo,
        target=read_value(Target, "target", target),
        features=read_features(features),
        silos=_names("silos", silos),
        missing_values=_names("missing_values", missing_values),
        recode={column: {str(old): str(new) for old, new in pairs.items()} for column, pairs in recode.items()},
    )
    found = encode(take_silos(to_polars(frame, layout.columns), layout), layout, name)
    return found if items_per_subject is None else _with_bound(found, items_per_subject)


def _names(what: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise DataError(f"{what} takes several names, as in {what}=['{given}'], not '{given}' alone.")
    return tuple(str(each) for each in given)


def to_polars(frame: Any, columns: tuple[str, ...]) -> pl.DataFrame:
    """The columns of a table that are asked for, whichever library it comes from; other columns are left out."""
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, pl.DataFrame):
        return _select(frame, columns, frame.columns)
    if _library(frame) == "pandas":
        return _from_pandas(frame, columns)
    if hasattr(frame, "__arrow_c_stream__") and hasattr(frame, "column_names"):
        return _select(_from_arrow(frame), columns, frame.column_names)
    raise DataError(f"A table of pandas, polars or pyarrow is expected, not {type(frame).__name__}.")


def _from_pandas(frame: Any, columns: tuple[str, ...]) -> pl.DataFrame:
    if not hasattr(frame, "columns"):
        raise DataError(f"A table is expected, and this is a pandas {type(frame).__name__}; take a DataFrame.")
    names = [str(name) for name in frame.columns]
    for name in frame.index.names:
        if name in columns and name not in names:
            raise DataError(f"'{name}' is the table's index and no column; make it one with df.reset_index().")
    _require_columns(columns, names)
    return pl.DataFrame([_read_column(frame.iloc[:, names.index(name)], name) for name in columns])


def _from_arrow(table: Any) -> pl.DataFrame:
    try:
        return pl.DataFrame(table)
    except (Exception, pl.exceptions.PanicException) as error:  # a kind of numbers that polars does not know
        raise DataError(
            f"The pyarrow table cannot be read ({type(error).__name__}): one of its columns is of a kind that has no"
            " counterpart in polars; write it as numbers or text first, or leave it out."
        ) from error


def _read_column(column: Any, name: str) -> pl.Series:
    """A pandas column, or one sentence: what libraries raise at a value is of no use to who holds the table."""
    try:
        return _pandas_column(column, name)
    except Exception as error:
        raise DataError(
            f"Column '{name}' holds {column.dtype} with a value that cannot be read ({type(error).__name__}); write the"
            " column as numbers or text first, or leave it out."
        ) from error


def _pandas_column(column: Any, name: str) -> pl.Series:
    """A pandas column by its declared kind; absent values are null, however pandas spells them."""
    kind = getattr(column.dtype, "kind", "O")
    if kind == "M":
        zone = getattr(getattr(column.dtype, "pyarrow_dtype", column.dtype), "tz", None)
        column = column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
        values = column.to_numpy()
        return pl.Series(name, values.astype("datetime64[ms]") if values.dtype == "datetime64[s]" else values)
    if kind in "biuf" and isinstance(column.dtype, np.dtype):  # others know absent values, which turn whole numbers
        return pl.Series(name, column.to_numpy())  # of the whole column into rounded ones
    absent = column.isna().to_numpy(dtype=bool)
    # Each as text, by itself: a kind for the whole column would depend on every row.
    values = [None if gone else write_label(value) for value, gone in zip(column.astype(object), absent, strict=True)]
    return pl.Series(name, values, dtype=pl.String)


def _select(frame: pl.DataFrame, columns: tuple[str, ...], names: list[str]) -> pl.DataFrame:
    _require_columns(columns, names)
    return frame.select(columns).with_columns(pl.col(pl.Null).cast(pl.String))  # a column in which nothing is known


def _require_columns(columns: tuple[str, ...], names: list[str]) -> None:
    for name in columns:
        if name not in names:
            near = _check.suggestion(name, names)
            raise DataError(f"The table has no column '{name}'{near}; it has {', '.join(names)}.")
        if names.count(name) > 1:
            raise DataError(f"Two columns of the table are called '{name}'; rename one of them.")


def _library(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _with_bound(data: Dataset, most: int) -> Dataset:
    return replace(data, items_per_subject=_check.count("items_per_subject", most))


def is_table(value: object) -> bool:
    """Whether this is a table of one of the libraries, and not yet data to train on."""
    return isinstance(value, pl.DataFrame | pl.LazyFrame) or _library(value) in ("pandas", "pyarrow")
