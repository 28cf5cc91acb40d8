"""A table is the same table in every file it can come in; what is none is refused with what to do."""

import gzip
import io
import zipfile
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from wholegrain.data.schema import Category, Number, TableLayout, Target
from wholegrain.data.table import encode, encode_feature
from wholegrain.data.table_files import TextFormat, read, read_head, table_name
from wholegrain.errors import DataError, SpecError

FRAME = pl.DataFrame(
    {
        "patient": ["007", "7", "Ünal, A."],
        "age": ["30.5", "41", ""],
        "sex": ["f", "m", "f"],
        "ill": ["yes", "no", "no"],
    }
)
CSV = 'patient,age,sex,ill\n007,30.5,f,yes\n7,41,m,no\n"Ünal, A.",,f,no\n'
LAYOUT = TableLayout(
    subject="patient",
    target=Target("ill", ("no", "yes")),
    features={"age": Number(0, 100, missing=50), "sex": Category(("f", "m"))},
)


def zipped(text: bytes, name: str = "visits.csv") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


FILES = {
    "visits.csv": CSV.encode(),
    "bom.csv": CSV.encode("utf-8-sig"),
    "windows.csv": CSV.replace("\n", "\r\n").encode(),
    "utf16.csv": CSV.encode("utf-16"),
    "visits.csv.gz": gzip.compress(CSV.encode(), mtime=0),
    "gzipped by mistake.csv": gzip.compress(CSV.encode(), mtime=0),
    "not gzipped.csv.gz": CSV.encode(),
    "visits.zip": zipped(CSV.encode()),
    "zipped by mistake.csv": zipped(CSV.encode()),
    "visits.tsv": CSV.replace('"Ünal, A."', "Ünal; A.").replace(",", "\t").replace(";", ",").encode(),
    "tabs.csv": CSV.replace('"Ünal, A."', "Ünal; A.").replace(",", "\t").replace(";", ",").encode(),
    "bars.txt": CSV.replace('"Ünal, A."', "Ünal; A.").replace(",", "|").replace(";", ",").encode(),
    "semicolons.csv": "patient;age;sex;ill\n007;30,5;f;yes\n7;41;m;no\nÜnal, A.;;f;no\n".encode(),
}
FILES["points.csv"] = FILES["semicolons.csv"].replace(b"30,5", b"30.5")


@pytest.mark.parametrize("name", FILES)
def test_the_same_table_in_every_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    found = encode(read(tmp_path / name, LAYOUT.names), LAYOUT, "visits")
    expected = encode(FRAME, LAYOUT, "visits")
    assert (found.data.inputs == expected.data.inputs).all()
    assert (found.data.subjects == expected.data.subjects).all()
    assert read_head(tmp_path / name, 2).columns == FRAME.columns
    assert read_head(tmp_path / name, 2).height == 2


def test_parquet_under_the_name_of_a_csv(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "visits.csv")
    assert_frame_equal(read(tmp_path / "visits.csv", ()), FRAME)


def test_a_workbook(tmp_path: Path) -> None:
    pytest.importorskip("fastexcel")
    xlsxwriter = pytest.importorskip("xlsxwriter")
    path = tmp_path / "visits.xlsx"
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        for number, row in enumerate([FRAME.columns, ["007", 30.5, "f", "yes"], [7, 41, "m", "no"]]):
            sheet.write_row(number, 0, row)
        sheet.write_row(3, 0, ["Ünal, A.", None, "f", "no"])
    found = encode(read(path, LAYOUT.names), LAYOUT, "visits")
    expected = encode(FRAME, LAYOUT, "visits")
    assert (found.data.inputs == expected.data.inputs).all()
    assert (found.data.subjects == expected.data.subjects).all()
    assert read_head(path, 1).height == 1
    (tmp_path / "visits.csv").write_bytes(path.read_bytes())
    assert read(tmp_path / "visits.csv", ()).height == 3


def test_a_workbook_without_the_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "visits.xlsx").write_bytes(zipped(b"", "[Content_Types].xml"))
    with pytest.raises(DataError, match=r"wholegrain\[excel\]"):
        read(tmp_path / "visits.xlsx", ())


def test_a_decimal_comma_is_one_where_it_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "visits.tsv"
    path.write_text("patient\tage\tsex\till\na\t30,5\tf\tno\n")
    with pytest.raises(DataError, match="'30,5' in row 1"):
        encode(read(path, LAYOUT.names), LAYOUT, "visits")
    found = encode(read(path, LAYOUT.names, TextFormat(decimal=",")), LAYOUT, "visits")
    assert found.data.inputs[0, 0] == pytest.approx(-0.39)


def test_a_comma_in_a_name_is_a_comma(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("patient;age;sex\n1,5;3,5;f\n")
    assert read(path, ("patient",)).rows() == [("1,5", "3.5", "f")]
    assert read(path, ("patient",), TextFormat(decimal=".")).rows() == [("1,5", "3,5", "f")]


def test_how_a_number_is_read_depends_on_no_other_row(tmp_path: Path) -> None:
    """In a column that looks like whole numbers, like text or like truth values, a row is what it is alone."""
    number, path = Number(0, 10, missing=0), tmp_path / "t.csv"
    for others in ("3\n4", "true\nfalse", "1e0\nNaN", "\n"):
        path.write_text(f"x,y\n{others.replace(chr(10), ',a' + chr(10))},a\n5,a\n")
        assert encode_feature(number, read(path, ())["x"])[-1].tolist() == [0]


def test_latin_1_gets_a_hint_and_is_read_where_it_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_bytes(CSV.encode("latin-1"))
    for reading in (lambda: read(path, ()), lambda: read_head(path, 5)):
        with pytest.raises(DataError, match=r'visits\.csv.*not UTF-8.*encoding = "latin-1"'):
            reading()
    assert read(path, (), TextFormat("latin-1"))["patient"][2] == "Ünal, A."
    with pytest.raises(SpecError, match="Unknown encoding 'latin-99'"):
        TextFormat("latin-99")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.xls", b"\xd0\xcf\x11\xe0....", "save it as .xlsx or .csv"),
        ("t.csv", b"\xd0\xcf\x11\xe0....", "save it as .xlsx or .csv"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n \n", "is empty"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("t.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-9], "cannot be read"),
        ("t.zip", b"PK\x03\x04 damaged", "damaged"),
        ("t.csv", b"a,b,a\n1,2,3\n", "Two columns .* called 'a'"),
        ("t.csv", b"a,b\n1,2\n1,2,3\n", "more values than there are columns"),
        ("t.parquet", b"PAR1....", "cannot be read"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        read(tmp_path / name, ())


def test_an_archive_of_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a.csv", CSV)
        archive.writestr("b.csv", CSV)
    with pytest.raises(DataError, match="2 files; unpack"):
        read(tmp_path / "t.zip", ())


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it is a folder"):
        read(tmp_path, ())


@pytest.mark.parametrize("name", ["visits.csv", "visits.csv.gz", "visits.tsv.zip", "visits.zip", "visits.xlsx"])
def test_a_tables_name_has_no_ending(name: str) -> None:
    assert table_name(Path("folder") / name) == "visits"
