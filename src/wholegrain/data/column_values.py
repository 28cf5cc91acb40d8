"""Values of one column as text, numbers, dates or codes; what cannot be read as declared is refused with its row."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wholegrain.data.flags import TRUTH_VALUES
from wholegrain.data.labels import EXACT
from wholegrain.errors import DataError


class RowError(DataError):
    """A row that breaks a declaration; `{row}` in the sentence is its number, from 1."""

    def __init__(self, sentence: str, row: int) -> None:
        super().__init__(sentence.replace("{row}", str(row + 1)))
        self.sentence, self.row = sentence, row

    def at(self, row: int) -> "RowError":
        """The same of another row."""
        return RowError(self.sentence, row)


def as_text(column: pl.Series) -> pl.Series:
    """Values as text: whole numbers without a decimal point, blanks and what is not finite as missing.

    How a value is written depends on no other row.

    >>> as_text(pl.Series([1.0, 2.5, float("nan")])).to_list()
    ['1', '2.5', None]
    """
    if column.dtype == pl.Boolean:
        column = column.cast(pl.Int64)
    if column.dtype.is_float():
        text = [_number_text(value) for value in column.to_list()]
        return pl.Series(column.name, text, dtype=pl.String)
    stripped = column.cast(pl.String).str.strip_chars()
    return stripped.set(stripped == "", None)


def _number_text(value: float | None) -> str | None:
    if value is None or not math.isfinite(value):
        return None
    return str(int(value)) if value == int(value) else repr(value)


def as_numbers(column: pl.Series) -> pl.Series:
    """Values as numbers, NaN as missing; text that is no number is refused with its row."""
    if column.dtype == pl.String:
        column = column.str.strip_chars()
        column = column.set(column == "", None)
        column = column.replace({each: spellings[0] for spellings in TRUTH_VALUES for each in spellings[1:]})
    elif not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        near = "; declare it with dates, Date(low, high)" if column.dtype.is_temporal() else ""
        raise DataError(f"Column '{column.name}' is declared as a number and holds {column.dtype}{near}.")
    values = column.cast(pl.Float64, strict=False)
    wrong = values.is_null() & column.is_not_null()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise RowError(
            f"Column '{column.name}' is declared as a number and holds '{column[row]}' in row {{row}};"
            " declare it with categories, or with missing_values if that is how the table writes what is missing, or"
            " mend the row.",
            row,
        )
    return values.fill_nan(None)


def as_dates(column: pl.Series, format: str | None) -> pl.Series:
    """Values as dates; text that is none is refused with its row."""
    if column.dtype in (pl.Date, pl.Datetime):
        return column.cast(pl.Date)
    if column.dtype != pl.String:
        raise DataError(f"Column '{column.name}' is declared with dates and holds {column.dtype}.")
    text = column.str.strip_chars()
    text = text.set(text == "", None)
    dates = (text.str.slice(0, 10) if format is None else text).str.to_date(format or "%Y-%m-%d", strict=False)
    wrong = dates.is_null() & text.is_not_null()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise RowError(
            f"Column '{column.name}' is declared with dates and holds '{text[row]}' in row {{row}}, which is not"
            f' written {format or "as 2020-12-31 is"}; declare how it is, e.g. format = "%d.%m.%Y", or mend the row.',
            row,
        )
    return dates


def refuse_rounded(column: pl.Series) -> None:
    """Refuse names that were rounded until several are one: libraries do that to all where one is missing."""
    if not column.dtype.is_float():
        return
    rounded = (column.fill_nan(None).cast(pl.Float64).abs() >= EXACT[column.to_numpy().itemsize]).fill_null(False)
    if rounded.any():
        row = int(rounded.arg_max() or 0)
        raise RowError(
            f"Column '{column.name}' holds names as floating-point numbers, too large to tell neighbours apart"
            f" ({column[row]:.0f} in row {{row}}); read them as text or as whole numbers.",
            row,
        )


def refuse_missing(column: pl.Series, remedy: str) -> None:
    """Refuse a column that has missing values, and say what to do about them."""
    if missing := column.null_count():
        row = int(column.is_null().arg_max() or 0)
        values = "1 missing value (in" if missing == 1 else f"{missing} missing values (the first in"
        raise RowError(f"Column '{column.name}' has {values} row {{row}}); {remedy}.", row)


def as_codes(column: pl.Series, categories: Sequence[str]) -> NDArray[np.int64]:
    """Position of each value among the categories; −1 where missing."""
    positions = _positions(categories)
    values = column.to_list()
    codes = np.array([-1 if v is None else positions.get(v, -2) for v in values], np.int64)
    if (codes == -2).any():
        row = int(np.flatnonzero(codes == -2)[0])
        raise RowError(
            f"Column '{column.name}' holds '{values[row]}' in row {{row}}, which is not among its"
            f" declared categories ({', '.join(categories)}).",
            row,
        )
    return codes


def _positions(categories: Sequence[str]) -> dict[str, int]:
    """Each category's position; where they are the two truth values, also that of their other spellings.

    >>> _positions(["no", "yes"])
    {'no': 0, 'yes': 1}
    >>> _positions(["0", "1"])["True"]
    1
    """
    positions = {category: number for number, category in enumerate(categories)}
    own = [[positions[each] for each in spellings if each in positions] for spellings in TRUTH_VALUES]
    if len(categories) != 2 or not all(own):
        return positions
    return {each: number for spellings, (number,) in zip(TRUTH_VALUES, own, strict=True) for each in spellings}
