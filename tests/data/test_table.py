"""Tables are scaled by what was declared, never by their rows; a row that breaks a declaration is refused by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wholegrain.data.table import Category, Number, TableLayout, Target, encode, read
from wholegrain.errors import DataError, SpecError

LAYOUT = TableLayout(
    subject="patient",
    silo="clinic",
    target=Target("ill", ("no", "yes")),
    features=(Number("age", 0, 100), Category("sex", ("f", "m"))),
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
        lambda: Number("age", 5, 5),
        lambda: Number("age", 9, 5),
        lambda: Number("age", float("nan"), 5),
        lambda: Number("age", float("-inf"), 5),
        lambda: Number("age", 0, float("inf")),
        lambda: Target("age"),
        lambda: Target("age", ("one",)),
        lambda: Target("age", ("one", "two"), threshold=1.0),
        lambda: TableLayout(subject="age", target=Target("ill", ("a", "b")), features=(Number("age", 0, 1),)),
        lambda: TableLayout(subject="id", target=Target("age", ("a", "b")), features=(Number("age", 0, 1),)),
    ],
    ids=[
        "no width",
        "the wrong way round",
        "not a number",
        "no lower bound",
        "no upper bound",
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
        TableLayout(subject="id", target=Target("ill", ("a", "b")), features=())


# Scaling.


@pytest.mark.parametrize(("low", "high"), [(0, 100), (-3.7, 0.1), (1e-9, 3e-9), (1e6, 1e6 + 1)])
def test_bounds_become_minus_one_and_one_exactly(low: float, high: float) -> None:
    values = [float(low), high, low - 1, high + 1, -np.inf, np.inf, (low + high) / 2]
    scaled = Number("age", low, high).encode(pl.DataFrame({"age": values}))[:, 0]
    assert scaled[:6].tolist() == [-1, 1, -1, 1, -1, 1]
    assert scaled[6] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("values", [[0, 50, 100], [False, True, None]], ids=["whole numbers", "truth values"])
def test_numbers_of_every_kind_are_scaled(values: list) -> None:
    scaled = Number("age", 0, 100, missing=0).encode(pl.DataFrame({"age": values}))[:, 0]
    assert scaled.tolist() == pytest.approx([2 * float(value or 0) / 100 - 1 for value in values])


@pytest.mark.parametrize("absent", [None, np.nan])
def test_absent_values_are_what_was_declared(absent: float | None) -> None:
    frame = pl.DataFrame({"age": [10.0, absent], "sex": ["m", None]})
    assert Number("age", 0, 100, missing=75).encode(frame)[:, 0].tolist() == pytest.approx([-0.8, 0.5])
    assert Category("sex", ("f", "m"), missing=True).encode(frame).tolist() == [[0, 1], [0, 0]]


def test_centred_categories_have_no_constant_part() -> None:
    frame = pl.DataFrame({"sex": ["m", "f", None]})
    found = Category("sex", ("f", "m"), missing=True, centred=True).encode(frame)
    assert found.tolist() == [[-0.5, 0.5], [0.5, -0.5], [-0.5, -0.5]]


def test_categories_may_be_numbers_in_the_file() -> None:
    frame = pl.DataFrame({"code": [1.0, 2.0, None]})
    assert Category("code", ("1", "2"), missing=True).encode(frame).tolist() == [[1, 0], [0, 1], [0, 0]]


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


@settings(deadline=None, max_examples=60)
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
    category = Category("dose", ("1", "2", "2.5"))
    whole = category.encode(pl.DataFrame({"dose": [1.0, 2.0, 2.5]}))
    assert whole.tolist() == np.eye(3).tolist()
    assert category.encode(pl.DataFrame({"dose": [1.0, 2.0]})).tolist() == whole[:2].tolist()


def test_how_a_silo_is_called_depends_on_no_other_row() -> None:
    named = [encode(table(clinic=clinics), LAYOUT, "visits").silos for clinics in ([1.0, 2.0, 3.0], [1.0, 2.0, 2.5])]
    assert named[0] is not None
    assert named[1] is not None
    assert named[0][:2].tolist() == named[1][:2].tolist() == ["1", "2"]


# Files.


def test_identifiers_are_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("patient,clinic,age,sex,ill\n007,01,1,f,yes\n7,1,2,m,no\n007,01,3,f,no\n")
    encoded = encode(read(path, LAYOUT.names), LAYOUT, "visits")
    assert encoded.data.subject_count == 2
    assert encoded.data.subjects[0] == encoded.data.subjects[2]
    assert encoded.silos is not None
    assert encoded.silos.tolist() == ["01", "1", "01"]


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
        features=(Number("age", 0, 100), Category("sex", ("01", "02"))),
    )
    encoded = encode(read(path, layout.names), layout, "visits")
    assert encoded.data.targets.tolist() == [1, 0]
    assert encoded.data.inputs[:, 1:].tolist() == [[1, 0], [0, 1]]


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
    path = tmp_path / "visits.xlsx"
    path.write_bytes(b"")
    with pytest.raises(SpecError, match=r"\.xlsx.*known: \.csv, \.parquet"):
        read(path, ())


@pytest.mark.parametrize(
    "declare", [lambda: Category("sex", ("f", "f")), lambda: Target("ill", ("0", "1", "0"))], ids=["category", "target"]
)
def test_values_declared_twice_are_refused(declare: Callable[[], object]) -> None:
    with pytest.raises(SpecError, match="not distinct"):
        declare()
