"""Tables are scaled by what was declared, never by their rows; a row that breaks a declaration is refused by name."""

import json
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from wholegrain.data import schema
from wholegrain.data.declarations import read_feature, write_feature
from wholegrain.data.schema import Date, Number, TableLayout, Target
from wholegrain.data.table import encode, encode_feature, take_silos
from wholegrain.data.table_files import read
from wholegrain.errors import DataError, SpecError

Category = partial(schema.Category, centred=False)
"""Ones and zeros, which are easier to read here than what is usual."""

LAYOUT = TableLayout(
    subject="patient",
    silo="clinic",
    target=Target("ill", ("no", "yes")),
    features={"age": Number(0, 100), "sex": Category(("f", "m"))},
)
GOOD = {
    "patient": ["a", "b", "a"],
    "clinic": ["x", "x", "y"],
    "age": [0.0, 25.0, 100.0],
    "sex": ["f", "m", "f"],
    "ill": ["yes", "no", "no"],
}


def table(**changes: list | None) -> pl.DataFrame:
    """The good table with some columns changed, or left out where None."""
    columns = GOOD | changes
    return pl.DataFrame({name: values for name, values in columns.items() if values is not None})


def test_a_good_table_becomes_items_with_subjects() -> None:
    encoded = encode(table(), LAYOUT, "visits")
    assert encoded.data.inputs.tolist() == [[-1, 1, 0], [-0.5, 0, 1], [1, 1, 0]]
    assert encoded.data.targets.tolist() == [1, 0, 0]
    assert encoded.data.subjects[0] == encoded.data.subjects[2] != encoded.data.subjects[1]
    assert encoded.silos is not None
    assert encoded.silos.tolist() == ["x", "x", "y"]
    assert (encoded.name, encoded.classes, encoded.features, encoded.items_per_subject) == ("visits", 2, 3, None)


REFUSED = {
    "no subject column": ({"patient": None, "patients": ["a", "b", "c"]}, "'patient'", "did you mean 'patients'"),
    "null subject": ({"patient": ["a", None, None]}, "'patient' has 2 missing", "row 2"),
    "blank subject": ({"patient": ["a", "  ", "b"]}, "'patient'", "row 2"),
    "NaN subject": ({"patient": [1.0, 2.0, np.nan]}, "'patient'", "row 3"),
    "infinite subject": ({"patient": [1.0, 2.0, np.inf]}, "'patient'", "row 3"),
    "no silo column": ({"clinic": None}, "'clinic'", "it has"),
    "null silo": ({"clinic": ["x", "y", None]}, "'clinic'", "row 3"),
    "blank silo": ({"clinic": ["", "y", "y"]}, "'clinic'", "row 1"),
    "no feature column": ({"age": None}, "'age'", "it has"),
    "NaN feature": ({"age": [1.0, np.nan, 2.0]}, "'age'", "row 2"),
    "null feature": ({"age": [1.0, 2.0, None]}, "'age'", "row 3"),
    "text in a number": ({"age": ["1", "n/a", "2"]}, "'age'", "row 2"),
    "undeclared category": ({"sex": ["f", "m", "d"]}, "'sex' holds 'd'", "row 3"),
    "null category": ({"sex": ["f", None, "m"]}, "'sex'", "row 2"),
    "blank category": ({"sex": ["f", "", "m"]}, "'sex'", "row 2"),
    "no target column": ({"ill": None}, "'ill'", "it has"),
    "null target": ({"ill": [None, "no", "no"]}, "'ill'", "row 1"),
    "blank target": ({"ill": ["no", "no", " "]}, "'ill'", "row 3"),
    "undeclared class": ({"ill": ["no", "maybe", "no"]}, "'ill' holds 'maybe'", "row 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_table_is_refused_with_column_and_row(case: str) -> None:
    changes, *expected = REFUSED[case]
    with pytest.raises(DataError) as refusal:
        encode(table(**changes), LAYOUT, "visits")
    for part in expected:
        assert part in str(refusal.value)


@pytest.mark.parametrize("bad", [None, np.nan])
def test_a_missing_number_has_no_side_of_a_threshold(bad: float | None) -> None:
    layout = TableLayout(subject="patient", target=Target("ill", threshold=0.5), features=LAYOUT.features)
    with pytest.raises(DataError, match=r"'ill'.*row 2"):
        encode(table(ill=[0.0, bad, 1.0]), layout, "visits")


def test_a_threshold_needs_numbers() -> None:
    layout = TableLayout(subject="patient", target=Target("ill", threshold=0.5), features=LAYOUT.features)
    with pytest.raises(DataError, match="'ill'"):
        encode(table(), layout, "visits")


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(DataError, match="'visits' has no rows"):
        encode(table().head(0), LAYOUT, "visits")


@pytest.mark.parametrize(
    "make",
    [
        lambda: read_feature("age", {"low": 5, "high": 5}),
        lambda: read_feature("age", {"low": 9, "high": 5}),
        lambda: read_feature("age", {"low": float("nan"), "high": 5}),
        lambda: read_feature("age", {"low": float("-inf"), "high": 5}),
        lambda: read_feature("age", {"low": 0, "high": float("inf")}),
        lambda: read_feature("age", {"low": "zero", "high": 1}),
        lambda: read_feature("age", {"low": 0, "hihg": 1}),
        lambda: read_feature("age", {"low": 0, "high": 1, "centred": True}),
        lambda: read_feature("age", {"categories": []}),
        lambda: read_feature("age", {"categories": "fm"}),
        lambda: read_feature("age", (0, 1)),
        lambda: Target("age"),
        lambda: Target("age", ("one",)),
        lambda: Target("age", ("one", "two"), threshold=1.0),
        lambda: TableLayout(subject="age", target=Target("ill", ("a", "b")), features={"age": Number(0, 1)}),
        lambda: TableLayout(subject="id", target=Target("age", ("a", "b")), features={"age": Number(0, 1)}),
    ],
    ids=[
        "no width",
        "the wrong way round",
        "not a number",
        "no lower bound",
        "no upper bound",
        "a bound in words",
        "a slip in a key",
        "a number that is to be centred",
        "no categories",
        "categories in one word",
        "bounds alone",
        "a target of nothing",
        "a target of one class",
        "classes and a threshold",
        "a feature that is the subject",
        "a feature that is the target",
    ],
)
def test_an_impossible_declaration_is_refused_by_name(make) -> None:
    with pytest.raises(SpecError, match="'age'"):
        make()


def test_a_table_without_features_is_refused() -> None:
    with pytest.raises(SpecError, match="no features"):
        TableLayout(subject="id", target=Target("ill", ("a", "b")), features={})


# Scaling.


@pytest.mark.parametrize(("low", "high"), [(0, 100), (-3.7, 0.1), (1e-9, 3e-9), (1e6, 1e6 + 1)])
def test_bounds_become_minus_one_and_one_exactly(low: float, high: float) -> None:
    values = [float(low), high, low - 1, high + 1, -np.inf, np.inf, (low + high) / 2]
    scaled = encode_feature(Number(low, high), pl.Series("age", values))[:, 0]
    assert scaled[:6].tolist() == [-1, 1, -1, 1, -1, 1]
    assert scaled[6] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("values", [[0, 50, 100], [False, True, None]], ids=["whole numbers", "truth values"])
def test_numbers_of_every_kind_are_scaled(values: list) -> None:
    scaled = encode_feature(Number(0, 100, missing=0), pl.Series("age", values))[:, 0]
    assert scaled.tolist() == pytest.approx([2 * float(value or 0) / 100 - 1 for value in values])


@pytest.mark.parametrize("absent", [None, np.nan])
def test_absent_values_are_what_was_declared(absent: float | None) -> None:
    frame = pl.DataFrame({"age": [10.0, absent], "sex": ["m", None]})
    assert encode_feature(Number(0, 100, missing=75), frame["age"])[:, 0].tolist() == pytest.approx([-0.8, 0.5])
    assert encode_feature(Category(("f", "m"), missing=True), frame["sex"]).tolist() == [[0, 1], [0, 0]]


def test_centred_categories_have_no_constant_part() -> None:
    frame = pl.DataFrame({"sex": ["m", "f", None]})
    found = encode_feature(Category(("f", "m"), missing=True, centred=True), frame["sex"])
    assert found.tolist() == [[-0.5, 0.5], [0.5, -0.5], [-0.5, -0.5]]


def test_categories_may_be_numbers_in_the_file() -> None:
    frame = pl.DataFrame({"code": [1.0, 2.0, None]})
    assert encode_feature(Category(("1", "2"), missing=True), frame["code"]).tolist() == [[1, 0], [0, 1], [0, 0]]


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "patient": st.sampled_from(["a", "b", "c", "007", "7"]),
            "clinic": st.sampled_from(["x", "y"]),
            "age": st.floats(-50, 200),
            "sex": st.sampled_from(["f", "m"]),
            "ill": st.sampled_from(["no", "yes"]),
        }
    ),
    min_size=2,
    max_size=12,
)


@examples(60)
@given(rows=ROWS, data=st.data())
def test_a_rows_code_depends_on_no_other_row(rows: list[dict], data: st.DataObject) -> None:
    """Encoding some of the rows gives what some of the encoded rows are: no statistic of rows is in them."""
    kept = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True))
    frame = pl.DataFrame(rows)
    whole, part = encode(frame, LAYOUT, "all"), encode(frame[kept], LAYOUT, "some")
    assert (part.data.inputs == whole.data.inputs[kept]).all()
    assert (part.data.targets == whole.data.targets[kept]).all()
    assert part.silos is not None
    assert whole.silos is not None
    assert (part.silos == whole.silos[kept]).all()
    same = part.data.subjects[:, None] == part.data.subjects
    assert (same == (whole.data.subjects[kept][:, None] == whole.data.subjects[kept])).all()


def test_how_a_category_is_written_depends_on_no_other_row() -> None:
    """A 2.0 is the category '2' whether or not another row holds 2.5."""
    category = Category(("1", "2", "2.5"))
    whole = encode_feature(category, pl.Series([1.0, 2.0, 2.5]))
    assert whole.tolist() == np.eye(3).tolist()
    assert encode_feature(category, pl.Series([1.0, 2.0])).tolist() == whole[:2].tolist()


def test_how_a_silo_is_called_depends_on_no_other_row() -> None:
    named = [encode(table(clinic=clinics), LAYOUT, "visits").silos for clinics in ([1.0, 2.0, 3.0], [1.0, 2.0, 2.5])]
    assert named[0] is not None
    assert named[1] is not None
    assert named[0][:2].tolist() == named[1][:2].tolist() == ["1", "2"]


# Dates, spellings of what is missing, and rows of other silos.


@pytest.mark.parametrize(
    ("values", "format"),
    [
        (["2020-01-01", " 2020-01-31", "2019-05-05", "2020-01-16"], None),
        (["2020-01-01T23:59:59", "2020-01-31 00:00:00", "1999-12-31", "2020-01-16 12:00"], None),
        (["1.1.2020", "31.01.2020", "01.01.1970", "16.01.2020"], "%d.%m.%Y"),
        ([date(2020, 1, 1), date(2020, 1, 31), date(1950, 1, 1), date(2020, 1, 16)], None),
        ([datetime(2020, 1, 1, 5), datetime(2020, 2, 1), datetime(2019, 1, 1), datetime(2020, 1, 16)], None),
    ],
)
def test_a_date_counts_days_between_its_bounds(values: list, format: str | None) -> None:
    feature = Date(date(2020, 1, 1), date(2020, 1, 31), format=format)
    assert encode_feature(feature, pl.Series(values))[:, 0].tolist() == [-1, 1, -1, 0]


def test_an_absent_date_is_what_was_declared() -> None:
    column = pl.Series("when", ["2020-01-16", None, ""])
    bounds = (date(2020, 1, 1), date(2020, 1, 31))
    assert encode_feature(Date(*bounds, missing=bounds[1]), column)[:, 0].tolist() == [0, 1, 1]
    with pytest.raises(DataError, match=r"'when' has 2 missing values .the first in row 2"):
        encode_feature(Date(*bounds), column)


@pytest.mark.parametrize("value", ["31.12.2020", "2020-13-01", "yesterday", "20200101"])
def test_what_is_no_date_is_refused_with_its_row(value: str) -> None:
    feature = Date("2020-01-01", "2020-01-31")
    with pytest.raises(DataError, match=f"'when'.*'{value}' in row 2.*format"):
        encode_feature(feature, pl.Series("when", ["2020-01-01", value]))


@pytest.mark.parametrize(
    "declared",
    [
        {"low": "2020-01-31", "high": "2020-01-01"},
        {"low": "2020-01-31", "high": 5},
        {"low": 5, "high": 9, "format": "%d.%m.%Y"},
        {"low": "2020-01-01", "high": "2020-02-01", "missing": 40},
        {"low": "01.02.2020", "high": "2020-02-01"},
        {"low": "2020-01-01", "high": "2020-02-01", "format": "DD.MM.YYYY"},
    ],
)
def test_an_impossible_date_is_refused_by_name(declared: dict) -> None:
    with pytest.raises(SpecError, match="'when'"):
        read_feature("when", declared)


@pytest.mark.parametrize("format", [None, "%d.%m.%Y"])
def test_a_date_is_kept_as_it_was_declared(format: str | None) -> None:
    declared = Date("2020-01-01", "2020-01-31", missing=date(2020, 1, 2), format=format)
    assert read_feature("when", json.loads(json.dumps(write_feature(declared)))) == declared


def test_declared_spellings_are_missing_values_in_every_column() -> None:
    layout = TableLayout(
        subject="patient",
        target=Target("ill", ("no", "yes")),
        features={"age": Number(0, 100, missing=50), "sex": Category(("f", "m"), missing=True)},
        missing_values=("?", "-9"),
    )
    found = encode(table(age=["?", " -9 ", "100"], sex=["f", "?", "m"]), layout, "visits")
    assert found.data.inputs.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert encode(table(age=[-9, 0, 100]), layout, "visits").data.inputs[:, 0].tolist() == [0, -1, 1]
    for column in ("patient", "ill"):
        with pytest.raises(DataError, match=f"'{column}' has 1 missing"):
            encode(table(**{column: [GOOD[column][0], "?", GOOD[column][2]]}), layout, "visits")


def test_values_stand_for_others_where_they_are_recoded() -> None:
    layout = TableLayout(
        subject="patient",
        silo="clinic",
        silos=("x",),
        target=LAYOUT.target,
        features=LAYOUT.features,
        missing_values=("?",),
        recode={"ill": {"<30": "yes", ">30": "yes"}, "clinic": {"z": "x"}, "age": {"old": "75"}},
    )
    frame = table(ill=["<30", "no", ">30"], clinic=["x", "z", "y"], age=["old", "25", "?"])
    found = encode(take_silos(frame, layout), layout, "visits")
    assert found.data.targets.tolist() == [1, 0]
    assert found.data.inputs[:, 0].tolist() == [0.5, -0.5]
    assert found.silos is not None
    assert found.silos.tolist() == ["x", "x"]


@pytest.mark.parametrize("column", ["patient", "il"])
def test_only_columns_that_are_declared_can_be_recoded_and_no_ids(column: str) -> None:
    with pytest.raises(SpecError, match="recode"):
        TableLayout(subject="patient", target=LAYOUT.target, features=LAYOUT.features, recode={column: {"a": "b"}})


def test_a_spelling_that_is_not_declared_is_no_missing_value() -> None:
    with pytest.raises(DataError, match=r"'age'.*'\?' in row 1.*missing_values"):
        encode(table(age=["?", "1", "2"]), LAYOUT, "visits")


SOME = TableLayout(subject="patient", silo="clinic", silos=("x", "z"), target=LAYOUT.target, features=LAYOUT.features)


def test_rows_of_other_silos_are_left_out_and_may_hold_anything() -> None:
    frame = table(clinic=["y", "x", None], age=["old", "25", "?"], patient=[None, "b", None])
    found = encode(take_silos(frame, SOME), SOME, "visits")
    assert found.silos is not None
    assert found.silos.tolist() == ["x"]
    assert found.data.inputs.tolist() == [[-0.5, 0, 1]]


def test_a_row_keeps_its_number_when_others_are_left_out() -> None:
    frame = table(clinic=["y", "x", "x"], age=["1", "2", "old"])
    with pytest.raises(DataError, match="'old' in row 3"):
        encode(take_silos(frame, SOME), SOME, "visits")


def test_silos_that_nobody_is_in_are_refused() -> None:
    with pytest.raises(DataError, match=r"No row .*x, z"):
        take_silos(table(clinic=["a", "b", "c"]), SOME)
    with pytest.raises(SpecError, match="no column `silo`"):
        TableLayout(subject="patient", silos=("x",), target=LAYOUT.target, features=LAYOUT.features)


@examples(60)
@given(rows=ROWS, leaver=st.sampled_from(["a", "b", "c", "007", "7"]))
def test_who_leaves_changes_nothing_for_the_rows_of_others(rows: list[dict], leaver: str) -> None:
    """Rows are taken by their own silo: with a subject gone, everybody else's rows are the same."""
    layout = TableLayout(subject="patient", silo="clinic", silos=("x",), target=LAYOUT.target, features=LAYOUT.features)
    frame = pl.DataFrame(rows)
    rest = frame.filter(pl.col("patient") != leaver)
    if not (rest["clinic"] == "x").any():
        return
    whole = encode(take_silos(frame, layout), layout, "all")
    others = np.array([row["patient"] != leaver for row in take_silos(frame, layout).to_dicts()])
    without = encode(take_silos(rest, layout), layout, "rest")
    assert (without.data.inputs == whole.data.inputs[others]).all()
    assert (without.data.subjects == whole.data.subjects[others]).all()


# Files.


def test_identifiers_are_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("patient,clinic,age,sex,ill\n007,01,1,f,yes\n7,1,2,m,no\n007,01,3,f,no\n")
    encoded = encode(read(path, LAYOUT.names), LAYOUT, "visits")
    assert encoded.data.subject_count == 2
    assert encoded.data.subjects[0] == encoded.data.subjects[2]
    assert encoded.silos is not None
    assert encoded.silos.tolist() == ["01", "1", "01"]


def test_a_space_beside_an_id_makes_no_other_person_of_it(tmp_path: Path) -> None:
    """From the file on: "p3", "p3 " and " p3" are one, whoever writes them; "P3" is somebody else."""
    path = tmp_path / "visits.csv"
    rows = "".join(f"{id},x,1,f,no\n" for id in ("p3", "p3 ", " p3", '"p3\t"', "p3\u00a0", "P3"))
    path.write_text("patient,clinic,age,sex,ill\n" + rows, encoding="utf-8")
    codes = encode(read(path, LAYOUT.names), LAYOUT, "visits").data.subjects
    assert len(set(codes[:5].tolist())) == 1
    assert codes[5] != codes[0]


def test_an_accent_that_is_stored_otherwise_makes_no_other_person(tmp_path: Path) -> None:
    """Unicode writes é as one character or as two."""
    path = tmp_path / "visits.csv"
    rows = "".join(f"{id},x,1,f,no\n" for id in ("Ren\u00e9", "Rene\u0301", "Rene"))
    path.write_text("patient,clinic,age,sex,ill\n" + rows, encoding="utf-8")
    codes = encode(read(path, LAYOUT.names), LAYOUT, "visits").data.subjects.tolist()
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_a_file_gives_what_the_table_gave(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"visits{suffix}"
    (table().write_parquet if suffix == ".parquet" else table().write_csv)(path)
    from_file, direct = encode(read(path, LAYOUT.names), LAYOUT, "visits"), encode(table(), LAYOUT, "visits")
    assert (from_file.data.inputs == direct.data.inputs).all()
    assert (from_file.data.subjects == direct.data.subjects).all()


@pytest.mark.parametrize("blank", ["", " ", '""'])
def test_a_blank_subject_in_a_file_is_refused(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(f"patient,clinic,age,sex,ill\na,x,1,f,yes\n{blank},x,2,m,no\n")
    with pytest.raises(DataError, match=r"'patient'.*row 2"):
        encode(read(path, LAYOUT.names), LAYOUT, "visits")


def test_a_category_in_a_file_is_written_as_it_is_declared(tmp_path: Path) -> None:
    """What looks like a number or a truth value in a CSV file is still the text that the layout declares."""
    path = tmp_path / "visits.csv"
    path.write_text("patient,age,sex,ill\na,1,01,true\nb,2,02,false\n")
    layout = TableLayout(
        subject="patient",
        target=Target("ill", ("false", "true")),
        features={"age": Number(0, 100), "sex": Category(("01", "02"))},
    )
    encoded = encode(read(path, layout.names), layout, "visits")
    assert encoded.data.targets.tolist() == [1, 0]
    assert encoded.data.inputs[:, 1:].tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("declared", [[False, True], ["false", "true"], ["False", "True"], [0, 1]], ids=str)
@pytest.mark.parametrize("held", [["false", "TRUE"], ["False", "True"], ["0", "1"], [0, 1], [False, True]], ids=str)
def test_truth_values_may_be_spelled_otherwise_than_declared(declared: list, held: list) -> None:
    found = encode_feature(Category(declared, centred=False), pl.Series("smoker", held))
    assert found.tolist() == [[1, 0], [0, 1]]
    assert encode_feature(Number(0, 1), pl.Series("smoker", held))[:, 0].tolist() == [-1, 1]


def test_codes_that_are_no_truth_values_are_taken_as_they_are() -> None:
    with pytest.raises(DataError, match=r"'true'.*0, 1, 2"):
        encode_feature(Category([0, 1, 2]), pl.Series("code", ["1", "true"]))


def test_text_late_in_a_numeric_column_is_found(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    rows = "".join(f"p{number},x,{number % 90},f,no\n" for number in range(500))
    path.write_text(f"patient,clinic,age,sex,ill\n{rows}p500,x,old,f,no\n")
    with pytest.raises(DataError, match=r"'age'.*row 501"):
        encode(read(path, LAYOUT.names), LAYOUT, "visits")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("visits.csv", b""),
        ("visits.csv", b"patient,age\na,1,2,3\n"),
        ("visits.csv", b"patient,age\n\xff\xfe\xfa,1\n"),
        ("visits.parquet", b"not a parquet file"),
        ("visits.parquet", b""),
    ],
    ids=["empty csv", "ragged csv", "csv in no encoding", "parquet that is not", "empty parquet"],
)
def test_an_unreadable_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        read(path, ("patient",))


def test_a_file_with_a_header_only_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("patient,clinic,age,sex,ill\n")
    with pytest.raises(DataError, match="no rows"):
        encode(read(path, LAYOUT.names), LAYOUT, "visits")


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(DataError, match="There is no file"):
            read(path, ())


def test_a_wrong_suffix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "visits.sav"
    path.write_bytes(b"")
    with pytest.raises(SpecError, match=r"\.sav.*known: \.csv, \.tsv"):
        read(path, ())


@pytest.mark.parametrize(
    "declare", [lambda: Category(("f", "f")), lambda: Target("ill", ("0", "1", "0"))], ids=["category", "target"]
)
def test_values_declared_twice_are_refused(declare: Callable[[], object]) -> None:
    with pytest.raises(SpecError, match="not distinct"):
        declare()
