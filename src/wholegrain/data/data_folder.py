"""Where the files of a source are: a path that is given, or the folder of `WHOLEGRAIN_DATA`."""

import os
from pathlib import Path

from wholegrain import _check
from wholegrain.errors import DataError, SpecError

VARIABLE = "WHOLEGRAIN_DATA"


def find_data(path: str | Path | None, source: str, usual: str = "") -> Path:
    """`path`, or where none is given `usual` within `WHOLEGRAIN_DATA`; what is not there is refused."""
    if path is None:
        path = _usual(source, usual)
    if not isinstance(path, str | Path):
        raise SpecError(f"data.options.path of '{source}' is the name of a file or folder, not {path!r}.")
    try:
        there = Path(path).exists()
    except OSError as error:
        raise DataError(f"The path {str(path)!r} cannot be looked at: {_check.reason(error)}.") from error
    if not there:
        raise DataError(f"There is no {str(path)!r} for the data source '{source}' to read; set data.options.path.")
    return Path(path)


def _usual(source: str, usual: str) -> Path:
    base = os.environ.get(VARIABLE)
    if not base:
        raise DataError(
            f"The data source '{source}' reads files that do not come with wholegrain; set data.options.path to where"
            f" they are, or {VARIABLE} to the folder that holds {repr(usual) if usual else 'them'}."
        )
    return Path(base) / usual
