"""Tables into items, scaled with declared bounds only: no statistic of private rows enters a model.

A column is declared with what is publicly known of it. A value beyond its bounds is moved to the bound; a category that
was not declared, or a missing value where none was allowed, is refused with the row named.
"""

import unicodedata
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data.column_values import (
    RowError,
    as_codes,
    as_dates,
    as_numbers,
    as_text,
    refuse_missing,
    refuse_rounded,
)
from wholegrain.data.dataset import Dataset
from wholegrain.data.flags import share_length
from wholegrain.data.labels import NOBODY
from wholegrain.data.schema import Category, Date, Number, TableLayout, Target
from wholegrain.data.subjects import SubjectData, subject_codes
from wholegrain.data.tasks import MultiLabel, Regression, Targets
from wholegrain.data.text_feature import Text
from wholegrain.data.tokenization import encode_ends, encode_texts, encode_windows
from wholegrain.errors import DataError

# Where rows were left out, the numbers that the others have in the file stand in a column of this name.
ROW = "\0row"
READABLE = (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Date, pl.Datetime, pl.Time)
"""Kinds of columns beside numbers."""
LARGEST_SPAN = 10**6
"""Larger spans count as this: more silos than there can be."""


def encode_features(frame: pl.DataFrame, layout: TableLayout) -> NDArray[Any]:
    """[row, value] the features side by side, in the layout's order; or [row, position] the tokens of a text."""
    if layout.text is not None:
        encode_rows = encode_ends if layout.target.next_token else encode_texts
        return encode_rows(layout.text, _texts(frame, layout, layout.text))
    encoded = {
        name: encode_feature(feature, _read_column(frame, name, layout))
        for name, feature in layout.features.items()
        if not isinstance(feature, Text)
    }
    return np.concatenate(list(share_length(encoded, layout).values()), axis=1)


def feature_count(layout: TableLayout) -> int:
    """How many values the features of one row become."""
    if layout.text is not None:
        return layout.text.length
    nobody = pl.DataFrame({name: pl.Series([], dtype=pl.String) for name in layout.features})
    return int(encode_features(nobody, layout).shape[1])


def value_names(layout: TableLayout) -> list[str]:
    """What each value of an encoded row stands for: a column, or a column and one of its categories.

    >>> from wholegrain.data.schema import Number
    >>> features = {"age": Number(0, 110), "sex": Category(["f", "m"])}
    >>> value_names(TableLayout(subject="id", target=Target("ill", ["no", "yes"]), features=features))
    ['age', 'sex = f', 'sex = m']
    """
    names = list[str]()
    for name, feature in layout.features.items():
        if isinstance(feature, Text):
            names += [f"{name}: token {place}" for place in range(feature.length)]
        elif isinstance(feature, Category):
            names += [f"{name} = {each}" for each in feature.categories]
        else:
            names.append(name)
    return names


def encode_feature(feature: Number | Date | Category, column: pl.Series) -> NDArray[np.float32]:
    """[row, value] one column as the model sees it: a number, or one value for each category."""
    if isinstance(feature, Category):
        return _encode_category(feature, column)
    if isinstance(feature, Date):
        days = as_dates(column, feature.format).cast(pl.Int32) + date(1970, 1, 1).toordinal()
        return _encode_number(feature.days, days)
    return _encode_number(feature, column)


def _encode_number(number: Number, column: pl.Series) -> NDArray[np.float32]:
    """[row, 1] values in [−1, 1]."""
    values, low, high = as_numbers(column), float(number.low), float(number.high)
    if number.missing is None:
        refuse_missing(values, "declare `missing` with a value from knowledge, or remove the rows")
    else:
        values = values.fill_null(float(number.missing))
    bounded = values.clip(low, high).to_numpy()
    scaled = 2 * (bounded - low) / (high - low) - 1
    return scaled.astype(np.float32)[:, None]


def _encode_category(category: Category, column: pl.Series) -> NDArray[np.float32]:
    """[row, category] zeros and ones, less their mean over categories where they are centred."""
    refuse_rounded(column)
    values = as_text(column)
    if not category.missing:
        refuse_missing(values, "declare `missing = true`, or remove the rows")
    codes = as_codes(values, category.categories)
    columns = np.arange(len(category.categories))
    one_hot: NDArray[np.float32] = (codes[:, None] == columns).astype(np.float32)
    return one_hot - np.float32(1 / len(columns)) if category.centred else one_hot


def encode_target(target: Target, columns: Sequence[pl.Series]) -> Targets:
    """The target's columns as its task stores them: class numbers, labels, or a scaled number."""
    task, (first, *_) = target.task, columns
    if isinstance(task, MultiLabel):
        names = target.classes or ("0", "1")
        found = [as_codes(_present(as_text(column)), names) for column in columns]
        return np.stack(found, axis=1).astype(np.float32)
    if isinstance(task, Regression):
        return task.scale(_present(as_numbers(first)).to_numpy())
    if target.cut is None:
        return as_codes(_present(as_text(first)), target.classes)
    values, (cut, upper) = _present(as_numbers(first)).to_numpy(), target.cut
    return ((values >= cut) if upper else (values > cut)).astype(np.int64)


def _present(values: pl.Series) -> pl.Series:
    refuse_missing(values, "an item without a target cannot be trained on; remove the rows")
    return values


def encode(frame: pl.DataFrame, layout: TableLayout, name: str) -> Dataset:
    """The table as a data set; refused whole where any row breaks a declaration."""
    if frame.is_empty():
        raise DataError(f"The table '{name}' has no rows.")
    try:
        return _encode(frame, layout, name)
    except RowError as error:
        raise error if ROW not in frame.columns else error.at(frame[ROW][error.row]) from None


def take_silos(frame: pl.DataFrame, layout: TableLayout) -> pl.DataFrame:
    """The rows of the silos that the layout names; all of them where it names none.

    Guarantee: whether a row stays depends on its own silo alone.
    """
    if layout.silo is None or not layout.silos:
        return frame
    stays = as_text(_read_column(frame, layout.silo, layout)).is_in(layout.silos).fill_null(False)
    kept = frame.with_row_index(ROW).filter(stays)
    if kept.is_empty():
        raise DataError(f"No row has one of the declared silos ({', '.join(layout.silos)}) in '{layout.silo}'.")
    return kept


def _encode(frame: pl.DataFrame, layout: TableLayout, name: str) -> Dataset:
    ids = subject_ids(frame, layout)
    labels = None
    if layout.silo is not None:
        silos = as_text(_read_column(frame, layout.silo, layout))
        refuse_missing(silos, "every row belongs to a silo; complete or remove the rows")
        labels = silos.to_numpy().astype(np.str_)
    spans = None if layout.span is None else _spans(_read_column(frame, layout.span, layout))
    codes = subject_codes(ids.to_list())
    if layout.target.next_token and layout.text is not None:
        inputs, targets, rows = encode_windows(layout.text, _texts(frame, layout, layout.text))
        if not len(rows):
            raise DataError(f"No text of the table '{name}' has a second token to predict.")
        labels = None if labels is None else labels[rows]
        spans = None if spans is None else spans[rows]
        data = SubjectData(inputs, targets, codes[rows])
    else:
        targets = encode_target(layout.target, [_read_column(frame, column, layout) for column in layout.target.names])
        data = SubjectData(encode_features(frame, layout), targets, codes)
    return Dataset(name=name, data=data, silos=labels, task=layout.task, layout=layout, spans=spans)


def _texts(frame: pl.DataFrame, layout: TableLayout, text: Text) -> list[str | None]:
    (name,) = layout.features
    values = as_text(_read_column(frame, name, layout))
    if not text.missing:
        refuse_missing(values, "declare `missing = true`, which reads them as empty, or remove the rows")
    return values.to_list()


def subject_ids(frame: pl.DataFrame, layout: TableLayout) -> pl.Series:
    """Whose each row is, as text; a row that is nobody's is refused.

    Unicode has several ways to write é; they are one, or a person from two systems would be two people.
    """
    column = _read_column(frame, layout.subject, layout)
    refuse_rounded(column)
    ids = as_text(column)
    ids = ids.replace({id: unicodedata.normalize("NFC", id) for id in ids.drop_nulls().unique() if not id.isascii()})
    ids = ids.set(ids.str.to_lowercase().is_in(sorted(NOBODY)).fill_null(False), None)
    refuse_missing(ids, "a row without a subject cannot be protected; complete or remove the rows")
    return ids


def _spans(column: pl.Series) -> NDArray[np.int64]:
    """Whole numbers from 1 on."""
    values = as_numbers(column)
    refuse_missing(values, "say in how many silos the row's subject is, or leave out `span`")
    wrong = (values < 1) | (values != values.round())
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise RowError(f"Column '{column.name}' holds {values[row]:g} in row {{row}}; a span is 1, 2, 3 or more.", row)
    return values.clip(1, LARGEST_SPAN).cast(pl.Int64).to_numpy()


def _column(frame: pl.DataFrame, name: str) -> pl.Series:
    if name not in frame.columns:
        near = _check.suggestion(name, frame.columns)
        raise DataError(f"The table has no column '{name}'{near}; it has {', '.join(frame.columns)}.")
    kind = frame.schema[name]
    if not (kind.is_numeric() or kind in READABLE):
        raise DataError(
            f"Column '{name}' holds {kind}, which is neither a number, a date nor a name; write it as numbers or text"
            " first, or leave it out."
        )
    return frame[name]


def _read_column(frame: pl.DataFrame, name: str, layout: TableLayout) -> pl.Series:
    """A column, with nothing where a declared spelling of a missing value stands, and other values as recoded."""
    column = _column(frame, name)
    if layout.missing_values:
        column = column.set(as_text(column).is_in(layout.missing_values).fill_null(False), None)
    return as_text(column).replace(dict(layout.recode[name])) if name in layout.recode else column
