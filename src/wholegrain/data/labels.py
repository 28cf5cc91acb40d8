"""Labels of classes and categories as text, the same however a table or a spec writes them."""

import math
import re
from collections.abc import Iterable
from numbers import Integral, Real

from wholegrain.errors import SpecError

NOBODY = frozenset({"", "nan", "null", "none", "na", "n/a", "<na>"})
"""How unknown ids are spelled. Taken for a subject, one of them would stand for many people at once."""
WHOLE = re.compile(r"(0|-?[1-9][0-9]*)\.0+")
"""A whole number as floating-point numbers are written."""
EXACT = {2: 2**11, 4: 2**24, 8: 2**53}
"""From where on floating-point numbers of so many bytes leave whole numbers out, so that two ids become one."""


def labels(what: str, values: Iterable[object]) -> tuple[str, ...]:
    """Distinct labels as text, written as a table's values are: 1 and 1.0 as '1', truth values as '1' and '0'.

    >>> labels("classes", [0, 1.0, "2.5", True])
    Traceback (most recent call last):
    wholegrain.errors.SpecError: The declared classes are not distinct: 0, 1, 2.5, 1.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SpecError(f"The {what} are a list of values, as in ['no', 'yes'], not {values!r}.")
    found = tuple(_label(what, value) for value in values)
    if len(set(found)) < len(found):
        raise SpecError(f"The declared {what} are not distinct: {', '.join(found)}.")
    return found


def _label(what: str, value: object) -> str:
    if value is None or (isinstance(value, Real) and not (isinstance(value, Integral) or math.isfinite(value))):
        raise SpecError(f"{value} cannot be one of the {what}; absent values are allowed by `missing`.")
    return write_label(value)


def plain_id(id: str) -> str:
    """A subject's id without what a library adds to whole numbers, where another person's id made it read them as text.

    >>> [plain_id(each) for each in ("7", "7.0", "007", "7.10", "x7.0")]
    ['7', '7', '007', '7.10', 'x7.0']
    """
    return id.partition(".")[0] if WHOLE.fullmatch(id) else id


def write_label(value: object) -> str:
    """A value as text: whole numbers without a decimal point, truth values as '1' and '0', anything else as it is.

    >>> [write_label(value) for value in (7, 7.0, True, "007", 2.5)]
    ['7', '7', '1', '007', '2.5']
    """
    if isinstance(value, Integral):
        return str(int(value))
    return str(int(float(value))) if isinstance(value, Real) and float(value).is_integer() else str(value)
