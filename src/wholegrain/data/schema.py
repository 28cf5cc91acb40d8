"""What is publicly known of a table's columns, as plain values: bounds, categories, classes, and which column is what.

A spec and the Python calls declare columns with these types. Nothing here reads data or imports a library that does.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from numbers import Real
from typing import TYPE_CHECKING, Any

from wholegrain import _check
from wholegrain.data.labels import labels
from wholegrain.data.text_feature import Text
from wholegrain.errors import SpecError

if TYPE_CHECKING:
    from wholegrain.data.tasks import Task


@dataclass(frozen=True)
class Number:
    """A numeric column with public bounds, scaled to [−1, 1]; `missing` stands in for absent values, if given.

    >>> Number(0, 110)
    Number(low=0, high=110, missing=None)
    """

    low: float
    high: float
    missing: float | None = None

    def __post_init__(self) -> None:
        for value in (self.low, self.high, 0 if self.missing is None else self.missing):
            _require_real(value)
        known = self.low, self.high, self.missing or 0
        if not (all(map(_is_finite, known)) and self.low < self.high and _is_finite(self.high - self.low)):
            raise SpecError(
                f"The bounds of a number must be finite with low < high, not {self.low} and {self.high}, and so must"
                " `missing`, if it is given."
            )


@dataclass(frozen=True)
class Category:
    """A column with publicly known categories, one-hot; absent values are all zeros where `missing` allows them.

    `centred` (unless you say otherwise) takes 1/k off each of the k columns. They then share no constant part, which
    would fill most of a clipped gradient and which the model's own constant can express.

    >>> Category(["f", "m"]).categories
    ('f', 'm')
    """

    categories: tuple[str, ...]
    missing: bool = False
    centred: bool = True

    def __init__(self, categories: Iterable[object], missing: bool = False, centred: bool = True) -> None:
        object.__setattr__(self, "categories", labels("categories", categories))
        object.__setattr__(self, "missing", bool(missing))
        object.__setattr__(self, "centred", bool(centred))
        if not self.categories:
            raise SpecError("A category needs at least one value, as in Category(['f', 'm']).")


@dataclass(frozen=True)
class Date:
    """A column of dates with public bounds, as days between them, scaled to [−1, 1].

    Without a `format` (as in "%d.%m.%Y") dates are written 2020-12-31; a time behind the date is ignored. Bounds are
    dates, or text that is written so.

    >>> Date("2020-01-01", "2020-01-31").days
    Number(low=737425, high=737455, missing=None)
    """

    low: date
    high: date
    missing: date | None = None
    format: str | None = None

    def __init__(
        self, low: date | str, high: date | str, missing: date | str | None = None, format: str | None = None
    ) -> None:
        object.__setattr__(self, "low", _date(low))
        object.__setattr__(self, "high", _date(high))
        object.__setattr__(self, "missing", None if missing is None else _date(missing))
        object.__setattr__(self, "format", format)
        if not (format is None or (isinstance(format, str) and "%" in format)):
            raise SpecError(f'A format of dates is written as in "%d.%m.%Y", not {format!r}.')
        if not self.low < self.high:
            raise SpecError(f"The bounds of a date must have low < high, not {self.low} and {self.high}.")

    @property
    def days(self) -> Number:
        """The same with days counted from the first one of the calendar."""
        missing = None if self.missing is None else self.missing.toordinal()
        return Number(self.low.toordinal(), self.high.toordinal(), missing)


Feature = Number | Date | Category | Text


@dataclass(frozen=True)
class Target:
    """What to predict: one of the `classes` of a column; whether a number is `at_least`, or `above`, a public
    threshold; a number between public bounds `low` and `high`; several yes/no `columns` at once; or the `next_token` of
    a text.

    `threshold` is what specs of earlier versions say for `above`.

    >>> str(Target("ill", ["no", "yes"]).task), str(Target("stay", low=0, high=30).task)
    ('2 classes', 'a number from 0 to 30')
    >>> Target("stars", at_least=4).task.classes
    ('below 4', 'at least 4')
    """

    column: str = ""
    classes: tuple[str, ...] = ()
    threshold: float | None = None
    columns: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    at_least: float | None = None
    above: float | None = None
    next_token: bool = False

    def __init__(self, column: str = "", classes: Iterable[object] = (), **declared: Any) -> None:
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "classes", labels("classes", classes))
        object.__setattr__(self, "columns", labels("columns", declared.pop("columns", None) or ()))
        object.__setattr__(self, "next_token", declared.pop("next_token", None) or False)
        known = ("threshold", "low", "high", "at_least", "above")
        _check.known_keys("the target", declared, ("column", "classes", "columns", *known, "next_token"))
        for name in known:
            object.__setattr__(self, name, declared.get(name))
        self._require_numbers(known)
        self._require_one_kind()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that hold it."""
        return self.columns or (self.column,)

    @property
    def cut(self) -> tuple[float, bool] | None:
        """The threshold, if it has one, and whether a number on it belongs to the upper class."""
        if self.at_least is not None:
            return self.at_least, True
        above = self.threshold if self.above is None else self.above
        return None if above is None else (above, False)

    @property
    def task(self) -> "Task":
        """The task that this declares; that of a next token is the layout's, which has the tokenizer."""
        from wholegrain.data.tasks import Classification, MultiLabel, Regression  # not for whoever only reads a spec

        if self.columns:
            return MultiLabel(self.columns)
        if self.low is not None and self.high is not None:
            return Regression(float(self.low), float(self.high))
        if self.cut is None:
            return Classification(self.classes)
        value, upper = self.cut
        return Classification(
            (f"below {value:g}", f"at least {value:g}") if upper else (f"at most {value:g}", f"above {value:g}")
        )

    def _require_numbers(self, names: Iterable[str]) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not _is_finite(value):
                raise SpecError(f"{name} of the target '{self.column}' must be a finite number, not {value!r}.")

    def _require_one_kind(self) -> None:
        if type(self.column) is not str:
            raise SpecError(f"The target's column is named by text, not {self.column!r}.")
        if bool(self.column) == bool(self.columns):
            raise SpecError("A target is one column, or several yes/no `columns`: name either.")
        if (self.low is None) != (self.high is None):
            raise SpecError(f"The target '{self.column}' is a number with two public bounds, low and high; give both.")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise SpecError(
                f"The bounds of the target '{self.column}' need low < high, not {self.low} and {self.high}."
            )
        kinds = [len(self.classes) > 1, self.low is not None]
        kinds += [value is not None for value in (self.threshold, self.at_least, self.above)]
        kinds += [self.next_token is True]
        if self.columns:
            if any(kinds[1:]) or (self.classes and len(self.classes) != 2):
                raise SpecError("Several `columns` are predicted as no or yes: at most name two `classes`, no first.")
        elif kinds.count(True) != 1:
            raise SpecError(
                f"The target '{self.column}' needs one of these: two or more classes; a threshold, at_least or above;"
                " the bounds of a number, low and high; or, of a text, next_token = true."
            )


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """Which column is what.

    `silos` are the only ones whose rows are taken, where it names any. `missing_values` are what the table writes where
    it knows nothing ("?"). `recode` says, by column, which values stand for others: {"readmitted": {"<30": "yes"}}.
    `span` is the column that says in how many silos a row's subject is.
    """

    subject: str
    target: Target
    features: Mapping[str, Feature]
    silo: str | None = None
    silos: tuple[str, ...] = ()
    missing_values: tuple[str, ...] = ()
    recode: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    span: str | None = None

    def __post_init__(self) -> None:
        known = {self.subject, self.target.column, *self.features} | ({self.silo} if self.silo else set())
        for name in self.recode:
            _check.one_of("column in `recode`", name, sorted(known - {self.subject}))
        if self.silos and self.silo is None:
            raise SpecError("The table names the silos to take and no column `silo` that says who holds a row.")
        if not self.features:
            raise SpecError("The table declares no features; name at least one with its bounds.")
        columns = [self.subject, *self.target.names, *(name for name in (self.silo, self.span) if name)]
        if len(set(columns)) < len(columns):
            raise SpecError("Subject, silo, span and target are different columns of a table.")
        if self.span in self.features:
            raise SpecError(f"'{self.span}' cannot be a feature and the span.")
        taken = (self.subject, *(() if self.target.next_token else self.target.names))
        for name in self.features:
            if name in taken:
                raise SpecError(f"'{name}' cannot be a feature and the subject or target.")
        self._require_text()

    def _require_text(self) -> None:
        text = [name for name, feature in self.features.items() if isinstance(feature, Text)]
        if text and len(self.features) > 1:
            raise SpecError(f"The feature '{text[0]}' is text, and the only one then: leave out the others.")
        if self.target.next_token and text != [self.target.column]:
            raise SpecError(
                f"The next token of '{self.target.column}' is predicted from that text: declare it, and it alone, as a"
                " feature with its length."
            )

    @property
    def text(self) -> Text | None:
        """The text that is the only feature; None where features are numbers and names."""
        first = next(iter(self.features.values()))
        return first if isinstance(first, Text) else None

    @property
    def task(self) -> "Task":
        """What is predicted."""
        if not self.target.next_token or self.text is None:
            return self.target.task
        from wholegrain.data.tasks import NextToken  # not for whoever only reads a spec
        from wholegrain.data.tokenization import find_tokenizer

        return NextToken(find_tokenizer(self.text).tokens)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        given = [name for name in (self.silo, self.span) if name]
        return tuple(dict.fromkeys((self.subject, *given, *self.target.names, *self.features)))

    @property
    def names(self) -> frozenset[str]:
        """Columns that hold names, not quantities."""
        names = {name for name, feature in self.features.items() if isinstance(feature, Category | Text)}
        names |= set(self.target.names) if self.target.classes or self.target.columns else set()
        return frozenset(names | {self.subject} | ({self.silo} if self.silo else set()))


def _is_finite(value: object) -> bool:
    """Whether it is a number that floating point holds."""
    if type(value) is bool or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _require_real(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpecError(f"A number is declared with numbers, as in Number(0, 110), not with {value!r}.")


def _date(value: object) -> date:
    if isinstance(value, datetime):
        return value.date()
    try:
        return value if isinstance(value, date) else date.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise SpecError(f"A date is declared with dates, as in 2020-12-31, not with {value!r}.") from error
