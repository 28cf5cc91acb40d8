"""Names and kinds of columns from a table's head; what is no table is refused with a sentence."""

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from wholegrain.data.table_columns import Column, ColumnKind, columns
from wholegrain.data.table_files import read
from wholegrain.errors import DataError, SpecError

FRAME = pl.DataFrame(
    {"id": ["a", "b"], "age": [1, 2], "weight": [1.5, None], "ill": [True, False], "when": [date(2020, 1, 1)] * 2}
)
KINDS = [ColumnKind.NAME, ColumnKind.WHOLE, ColumnKind.NUMBER, ColumnKind.NAME, ColumnKind.DATE]


def test_a_parquet_files_columns(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "t.parquet")
    assert list(columns(tmp_path / "t.parquet")) == [Column(n, k) for n, k in zip(FRAME.columns, KINDS, strict=True)]


def test_a_csv_files_columns(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "t.csv")
    assert list(columns(tmp_path / "t.csv")) == [Column(n, k) for n, k in zip(FRAME.columns, KINDS, strict=True)]


@pytest.mark.parametrize(
    ("value", "format"),
    [
        ("2020-12-31", None),
        ("2020-12-31 10:00", None),
        ("31.12.2020", "%d.%m.%Y"),
        ("12/31/2020", ""),
        ("1-2-2020", ""),
    ],
)
def test_dates_are_told_by_how_they_are_written(tmp_path: Path, value: str, format: str | None) -> None:
    (tmp_path / "t.csv").write_text(f"id,when,y\na,{value},1\nb,,0\n")
    assert columns(tmp_path / "t.csv")[1] == Column("when", ColumnKind.DATE, format)


def test_what_is_neither_number_date_nor_name(tmp_path: Path) -> None:
    pl.DataFrame({"id": ["a"], "many": [[1, 2]], "y": [1]}).write_parquet(tmp_path / "t.parquet")
    assert columns(tmp_path / "t.parquet")[1].kind is ColumnKind.OTHER


def test_only_the_first_rows_of_a_csv_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,age,sex\n" + "a,1,f\n" * 150 + "a,old,f\n")
    assert columns(tmp_path / "t.csv")[1].kind is ColumnKind.WHOLE


@pytest.mark.parametrize("name", ['with "quotes"', "a.b", " led by a space", "größe", "new\nline", "[x]", "a=b", "#c"])
def test_any_name_is_a_name(tmp_path: Path, name: str) -> None:
    quoted = name.replace('"', '""')
    (tmp_path / "t.csv").write_text(f'id,"{quoted}",y\na,1,2\n', encoding="utf-8")
    found = [column.name for column in columns(tmp_path / "t.csv")]
    assert found == read(tmp_path / "t.csv", ()).columns
    assert found[1] == name


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a,b\nx,1,2\n", encoding="utf-8-sig")
    assert columns(tmp_path / "t.csv")[0].name == "id"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b"id,age,sex\n", "no rows"),
        (b"id,age,age\na,1,2\n", "Two columns .* called 'age'"),
        (b"id,,sex\na,1,2\n", "Column 2 .* has no name"),
        (b"P1,50,f\nP2,60,m\n", "holds the number 50"),
        (b"id:age:sex\na:1:f\n", "1 column .*separated by commas"),
        (b"id,age\na,1\n", "2 columns"),
        (b"id,gr\xf6\xdfe,sex\na,1,f\n", "cannot be read as a table"),
        (b"id,age,sex\na,1,f\nb,2,f,9,9\n", "row 2 has 5 values for 3 columns"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(DataError, match=words):
        columns(tmp_path / "t.csv")


@pytest.mark.parametrize(("text", "words"), [(b"", "is empty"), (b"not parquet at all", "cannot be read as a table")])
def test_what_is_no_parquet_file_is_refused(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "t.parquet").write_bytes(text)
    with pytest.raises(DataError, match=words):
        columns(tmp_path / "t.parquet")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file"):
        columns(tmp_path / "gone.csv")
    (tmp_path / "t.sav").write_text("x")
    with pytest.raises(SpecError, match="table format"):
        columns(tmp_path / "t.sav")
