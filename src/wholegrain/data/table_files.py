"""Files that hold a table: CSV with commas, semicolons, tabs or bars, also compressed; Parquet; Excel workbooks.

What is decided about a file is decided by its name, its first bytes and its line of column names, which are public. A
CSV and a workbook are read as text, every value by itself: what a row becomes depends on no other row.
"""

import csv
import gzip
import importlib.util
import io
import os
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl

from wholegrain import _check
from wholegrain.errors import DataError, SpecError

TEXT = (".csv", ".tsv", ".tab", ".txt")
KNOWN = (".csv", ".tsv", ".csv.gz", ".zip", ".parquet", ".xlsx")
SEPARATORS = (",", ";", "\t", "|")
PARQUET, GZIP, ZIP, OLD_EXCEL = b"PAR1", b"\x1f\x8b", b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
DECIMAL_COMMA = r"^\s*([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)\s*$"
UNREADABLE = (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, csv.Error, EOFError, zlib.error)


@dataclass(frozen=True)
class TextFormat:
    """What a CSV cannot say of itself: how its characters are stored, and whether 3,5 is a number.

    Without `decimal`, a comma is a decimal one where semicolons separate the columns.
    """

    encoding: str = "utf-8"
    decimal: str | None = None

    def __post_init__(self) -> None:
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError) as error:
            raise SpecError(
                f"Unknown encoding '{self.encoding[:40]}'; latin-1, cp1252 and utf-8 are common ones."
            ) from error
        if self.decimal not in (None, ".", ","):
            raise SpecError(f"The decimal sign of a CSV is a point or a comma, not '{self.decimal}'.")


def read(path: Path, names: Collection[str], text: TextFormat = TextFormat()) -> pl.DataFrame:  # noqa: B008 (frozen)
    """The table in a file; columns of `names` are kept as they are written, so that '007' and '7' stay two people."""
    try:
        match _kind(path):
            case "parquet":
                return pl.read_parquet(path)
            case "excel":
                return _read_excel(path)
            case _:
                return _read_text(path, names, text)
    except UNREADABLE as error:
        raise _unreadable(path, text, error) from error


def read_head(path: Path, rows: int, text: TextFormat = TextFormat()) -> pl.DataFrame:  # noqa: B008
    """The first rows, with the kinds of the file's schema where it has one and as text where it has none."""
    try:
        match _kind(path):
            case "parquet":
                return pl.scan_parquet(path).head(rows).collect()
            case "excel":
                return _read_excel(path, rows)
            case _:
                return _text_head(path, rows, text)
    except UNREADABLE as error:
        raise _unreadable(path, text, error) from error


def table_name(path: Path) -> str:
    """A file's name without what tells its format.

    >>> table_name(Path("visits.csv.gz")), table_name(Path("visits.2020.parquet"))
    ('visits', 'visits.2020')
    """
    inner = Path(path.stem)
    return inner.stem if path.suffix.lower() in (".gz", ".zip") and inner.suffix.lower() in TEXT else path.stem


def _kind(path: Path) -> str:
    """What the file is: by its name, or where that is wrong by its first bytes; what is no table is refused."""
    if os.path.isdir(path):
        raise DataError(f"There is no file '{path}': it is a folder; name a file in it.")
    if not os.path.isfile(path):  # which, unlike the path's own method, takes any name
        raise DataError(f"There is no file '{path}'.")
    suffix = path.suffix.lower()
    if suffix == ".xls":
        raise DataError(f"'{path}' is a workbook of an old Excel; save it as .xlsx or .csv.")
    if suffix not in (*TEXT, ".gz", ".zip", ".parquet", ".xlsx"):
        _check.one_of("table format", suffix, KNOWN)
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise DataError(f"The file '{path}' is empty; a table begins with a line of column names.")
    if start == OLD_EXCEL:
        raise DataError(f"'{path}' is a workbook of an old Excel; save it as .xlsx or .csv.")
    if start == PARQUET or suffix == ".parquet":
        return "parquet"
    if suffix == ".xlsx" or (start == ZIP and _is_workbook(path)):
        return "excel"
    return "text"


def _is_workbook(path: Path) -> bool:
    return "[Content_Types].xml" in _members(path)


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    except zipfile.BadZipFile as error:
        raise DataError(f"The archive '{path}' is damaged: {_check.reason(error)}.") from error


def _read_excel(path: Path, rows: int | None = None) -> pl.DataFrame:
    """The first sheet, every cell as text."""
    if importlib.util.find_spec("fastexcel") is None:
        raise DataError(
            f"To read the workbook '{path}', install the extra: pip install 'wholegrain[excel]'; or save it as .csv."
        )
    import fastexcel

    try:
        frame = pl.read_excel(
            path, engine="calamine", infer_schema_length=0, read_options={"n_rows": rows} if rows else {}
        )
    except (fastexcel.FastExcelError, pl.exceptions.NoDataError) as error:
        raise DataError(f"The workbook '{path}' cannot be read as a table: {_check.reason(error)}.") from error
    _require_distinct(path, frame.columns)
    return frame


def _read_text(path: Path, names: Collection[str], text: TextFormat) -> pl.DataFrame:
    content = _content(path, text)
    header, separator = _header(path, content)
    frame = pl.read_csv(content, separator=separator, infer_schema=False, new_columns=header)
    if text.decimal == "," or (text.decimal is None and separator == ";"):
        numbers = [name for name in frame.columns if name not in names]
        frame = frame.with_columns(pl.col(numbers).str.replace(DECIMAL_COMMA, "$1.$2"))
    return frame


def _text_head(path: Path, rows: int, text: TextFormat) -> pl.DataFrame:
    content = _content(path, text)
    header, separator = _header(path, content)
    lines = list(islice(_lines(content, separator), 1, 1 + rows))
    if any(len(line) > len(header) for line in lines):
        number = next(number for number, line in enumerate(lines, 1) if len(line) > len(header))
        raise DataError(
            f"The file '{path}' cannot be read as a table: row {number} has {len(lines[number - 1])} values for"
            f" {len(header)} columns."
        )
    columns = {
        name: [line[number] if number < len(line) else None for line in lines] for number, name in enumerate(header)
    }
    return pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))


def _content(path: Path, text: TextFormat) -> bytes:
    """The bytes of a CSV in UTF-8, out of the archive where it is in one."""
    content = path.read_bytes()
    if content.startswith(ZIP):
        members = _members(path)
        if len(members) != 1:
            raise DataError(f"The archive '{path}' holds {len(members)} files; unpack it, and name one of them.")
        with zipfile.ZipFile(path) as archive:
            content = archive.read(members[0])
    if content.startswith(GZIP):
        content = gzip.decompress(content)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = content.decode("utf-16").encode()
    if text.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        content = content.decode(text.encoding).encode()
    content = content.removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise DataError(f"The file '{path}' is empty; a table begins with a line of column names.")
    return content


def _header(path: Path, content: bytes) -> tuple[list[str], str]:
    """The names of the columns, and what separates them: whatever makes the most names of the first line."""
    found: dict[str, list[str]] = {separator: next(_lines(content, separator), []) for separator in SEPARATORS}
    separator = max(SEPARATORS, key=lambda each: len(found[each]))  # of equals, the first
    _require_distinct(path, found[separator])
    return found[separator], separator


def _lines(content: bytes, separator: str) -> Iterator[list[str]]:
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    return csv.reader(text, delimiter=separator)


def _require_distinct(path: Path, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if name.strip() and name in names[:number]:
            raise DataError(f"Two columns of '{path}' are called '{name}'; rename one of them.")


def _unreadable(path: Path, text: TextFormat, error: Exception) -> DataError:
    if isinstance(error, UnicodeDecodeError) or "utf-8" in str(error):
        return DataError(
            f"The file '{path}' cannot be read as a table: it is not {text.encoding.upper()}; save it as UTF-8, or say"
            ' how it is stored, e.g. encoding = "latin-1" under [data.table], or --encoding (`data init`, `predict`).'
        )
    why = "a row has more values than there are columns" if "more fields" in str(error) else _check.reason(error)
    return DataError(f"The file '{path}' cannot be read as a table: {why}.")
