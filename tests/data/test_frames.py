"""A table gives the same data whichever library holds it, and whatever types its columns have."""

import datetime
from collections.abc import Callable
from fractions import Fraction
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import wholegrain as wg
from wholegrain.data.subjects import subject_codes
from wholegrain.errors import DataError, SpecError
from wholegrain.runs.datasets import split_dataset
from wholegrain.runs.spec import RunSpec

COLUMNS: dict[str, list[Any]] = {
    "patient": ["ann", "ann", "bob", "cy"],
    "clinic": ["n", "s", "s", "n"],
    "age": [30.0, 31.0, 64.0, 120.0],
    "sex": ["f", "f", "m", None],
    "ill": ["no", "yes", "no", "yes"],
}
FEATURES = {"age": wg.Number(0, 110), "sex": wg.Category(["f", "m"], missing=True)}


def declared(frame: Any, **changes: Any) -> wg.Dataset:
    given = {"subject": "patient", "silo": "clinic", "target": wg.Target("ill", ["no", "yes"]), "features": FEATURES}
    return wg.from_frame(frame, **{**given, **changes})


def nullable() -> pd.DataFrame:
    return pd.DataFrame(COLUMNS).convert_dtypes()


def categorical() -> pd.DataFrame:
    return pd.DataFrame(COLUMNS).astype({"patient": "category", "clinic": "category", "sex": "category", "ill": object})


def dictionary() -> pa.Table:
    table = pa.table(COLUMNS)
    return table.set_column(3, "sex", table["sex"].dictionary_encode())


def categorical_polars() -> pl.DataFrame:
    return pl.DataFrame(COLUMNS).with_columns(pl.col("sex").cast(pl.Categorical), pl.col("age").cast(pl.Float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame(COLUMNS),
        lambda: pd.DataFrame(COLUMNS, index=[9, 9, 3, 1]),
        nullable,
        categorical,
        lambda: pa.table(COLUMNS),
        dictionary,
        lambda: pl.DataFrame(COLUMNS).lazy(),
        categorical_polars,
    ],
    ids=[
        "pandas",
        "pandas with an index",
        "pandas, nullable",
        "pandas, categorical",
        "pyarrow",
        "pyarrow, dictionary",
        "polars, lazy",
        "polars, categorical",
    ],
)
def test_every_library_gives_the_same_data(make: Callable[[], Any]) -> None:
    expected, found = declared(pl.DataFrame(COLUMNS)), declared(make())
    assert found.data.inputs.dtype == np.float32
    assert found.data.inputs.tolist() == expected.data.inputs.tolist()
    assert found.data.targets.tolist() == [0, 1, 0, 1]
    assert found.data.subjects.tolist() == expected.data.subjects.tolist()
    assert found.silos is not None
    assert found.silos.tolist() == COLUMNS["clinic"]


@pytest.mark.parametrize(
    "ids",
    [
        [7, 7, 8, 9],
        [7.0, 7.0, 8.0, 9.0],
        np.array([7, 7, 8, 9], np.uint8),
        pd.array([7, 7, 8, 9], "Int64"),
        list("7789"),
    ],
    ids=["whole numbers", "floats", "bytes", "nullable", "text"],
)
def test_ids_are_the_same_people_however_they_are_written(ids: Any) -> None:
    expected = declared(pl.DataFrame(COLUMNS | {"patient": ["7", "7", "8", "9"]})).data.subjects
    assert declared(pd.DataFrame(COLUMNS).assign(patient=ids)).data.subjects.tolist() == expected.tolist()


def test_ids_of_several_kinds_are_told_apart() -> None:
    mixed = pd.Series([("a", 1), ("a", 1), 7, "x"], dtype=object)
    assert declared(pd.DataFrame(COLUMNS).assign(patient=mixed)).data.subject_count == 3


def test_truth_values_are_classes() -> None:
    frame = pd.DataFrame(COLUMNS).assign(ill=[False, True, False, True])
    assert declared(frame, target=wg.Target("ill", [False, True])).data.targets.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("patient", ["ann", None, "bob", "cy"], ["'patient'", "row 2", "subject"]),
        ("clinic", ["n", "s", None, "n"], ["'clinic'", "row 3"]),
        ("age", [30.0, float("nan"), 1.0, 2.0], ["'age'", "row 2", "missing"]),
        ("ill", ["no", "yes", "maybe", "no"], ["'ill'", "'maybe'", "row 3"]),
        ("age", ["30", "old", "1", "2"], ["'age'", "'old'", "row 2"]),
    ],
    ids=["no subject", "no silo", "NaN", "an undeclared class", "text for a number"],
)
def test_a_row_that_breaks_a_declaration_is_named(
    library: Callable[[Any], Any], column: str, values: list[Any], words: list[str]
) -> None:
    with pytest.raises(DataError) as refused:
        declared(library(COLUMNS | {column: values}))
    assert all(word in str(refused.value) for word in words)


def test_dates_for_numbers_are_refused_by_name() -> None:
    days = [datetime.datetime(2020, 1, day) for day in (1, 2, 3, 4)]
    for frame in (pd.DataFrame(COLUMNS | {"age": days}), pl.DataFrame(COLUMNS | {"age": days})):
        with pytest.raises(DataError, match=r"'age'.*Datetime"):
            declared(frame)


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_column_that_is_not_there_is_suggested(library: Callable[[Any], Any]) -> None:
    with pytest.raises(DataError, match=r"no column 'clinics' \(did you mean 'clinic'\?\)"):
        declared(library(COLUMNS), silo="clinics")


def test_two_columns_of_one_name_are_refused() -> None:
    frame = pd.concat([pd.DataFrame(COLUMNS), pd.DataFrame({"age": [1, 2, 3, 4]})], axis=1)
    with pytest.raises(DataError, match=r"Two columns.*'age'"):
        declared(frame)


def test_other_columns_are_not_looked_at() -> None:
    frame = pl.DataFrame(COLUMNS | {"notes": [[1], [2], [3], [4]]})
    assert declared(frame).features == 3


@pytest.mark.parametrize("frame", [{"a": [1]}, [1, 2], "visits.csv", None, pd.Series([1])], ids=str)
def test_what_is_no_table_is_refused(frame: Any) -> None:
    with pytest.raises(DataError, match="expected"):
        declared(frame)


def test_features_without_bounds_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="not as list"):
        declared(pl.DataFrame(COLUMNS), features=["age", "sex"])
    with pytest.raises(SpecError, match="'age' needs its bounds"):
        declared(pl.DataFrame(COLUMNS), features={"age": None})
    with pytest.raises(SpecError, match=r"target.*'ill'"):
        declared(pl.DataFrame(COLUMNS), target="ill")


@pytest.mark.parametrize("place", COLUMNS)
@pytest.mark.parametrize(
    "values",
    [
        pl.Series([[1], [2], [3], [4]]),
        pl.Series([datetime.timedelta(days=1)] * 4),
        pl.Series([{"a": 1}] * 4),
        pl.Series([[1], [2], [3], [4]], dtype=pl.Array(pl.Int64, 1)),
    ],
    ids=lambda values: str(values.dtype),
)
def test_a_column_of_lists_or_the_like_is_refused_by_name(values: pl.Series, place: str) -> None:
    frame = pl.DataFrame(COLUMNS).with_columns(values.alias(place))
    for missing in ([], ["?"]):
        with pytest.raises(
            DataError, match=f"^Column '{place}' holds .*, which is neither a number, a date nor a name"
        ):
            declared(frame, missing_values=missing)


def test_a_person_who_leaves_the_table_changes_nothing_for_the_others() -> None:
    frame = pd.DataFrame(COLUMNS)
    whole, without = declared(frame), declared(frame[frame["patient"] != "ann"])
    assert without.data.inputs.tolist() == whole.data.inputs[2:].tolist()
    assert without.data.subjects.tolist() == whole.data.subjects[2:].tolist()


@pytest.mark.parametrize(
    ("ids", "sizes"),
    [
        (
            [12345678901234567, 12345678901234569, 0.5],
            [1, 2, 3],
        ),  # as numbers of one kind, the first two are one person
        ([2**63 + 1, 2**63 + 5, "x"], [1, 2, 3]),
        (["a", "b", "c"], [1, float("inf"), "2"]),
        (["a", "b", "c"], [True, 0.1, "2"]),
    ],
    ids=["long ids", "longer ids", "infinite", "truth value"],
)
def test_what_a_row_becomes_depends_on_no_other_row(ids: list[Any], sizes: list[Any]) -> None:
    frame = pd.DataFrame({"id": pd.Series(ids, dtype=object), "size": pd.Series(sizes, dtype=object), "y": ["no"] * 3})
    known = {"subject": "id", "target": wg.Target("y", ["no", "yes"]), "features": {"size": wg.Number(0, 9)}}
    whole, rest = wg.from_frame(frame, **known).data, wg.from_frame(frame[:2], **known).data
    assert whole.subject_count == 3
    assert whole.subjects[:2].tolist() == rest.subjects.tolist()
    assert whole.inputs[:2].tolist() == rest.inputs.tolist()


@pytest.mark.parametrize("kind", ["int64[pyarrow]", "Int64", object])
def test_long_codes_stay_as_they_are_when_somebody_elses_is_missing(kind: Any) -> None:
    """Double precision does not hold them: codes of SNOMED CT have up to 18 digits."""
    one, other = 900_000_000_000_207_009, 900_000_000_000_207_008

    def rows(code: int | None) -> Any:
        codes = pd.Series([one, other, code], dtype=kind)
        frame = pd.DataFrame({"id": ["a", "b", "c"], "code": codes, "y": ["no"] * 3})
        known = {"code": wg.Category([one, other], missing=True)}
        given = {"subject": "id", "target": wg.Target("y", ["no", "yes"]), "features": known}
        return wg.from_frame(frame, **given).data.inputs

    assert np.array_equal(rows(None)[:2], rows(one)[:2])


LONG = 900_000_000_000_207_008


@pytest.mark.parametrize(
    ("kind", "ids"),
    [("float64", [LONG, LONG + 1]), ("float64", [2**53, 2**53 + 1]), ("float32", [2**24, 2**24 + 1])],
)
@pytest.mark.parametrize("library", [pd.DataFrame, lambda rows: pl.DataFrame(rows), pa.table])
def test_people_whose_ids_were_rounded_to_one_are_not_taken_for_one(
    library: Callable[[Any], Any], kind: str, ids: list[int]
) -> None:
    """As pandas rounds whole numbers where one id is missing, also when that row is removed later."""
    rounded = np.array(ids, kind)
    assert rounded[0] == rounded[1]
    frame = library({"patient": rounded, "age": [30.0, 31.0], "ill": ["no", "yes"]})
    with pytest.raises(DataError, match=r"too large to tell neighbours apart .* in row 1"):
        declared(frame, silo=None, features={"age": wg.Number(0, 110)})


def test_codes_that_somebody_elses_missing_one_has_rounded_are_refused() -> None:
    codes = pd.Series([LONG, LONG + 1, None])
    frame = pd.DataFrame({"patient": ["a", "b", "c"], "code": codes, "ill": ["no"] * 3})
    with pytest.raises(DataError, match="too large to tell neighbours apart"):
        declared(frame, silo=None, features={"code": wg.Category([LONG, LONG + 1], missing=True)})


IDS: dict[str, Callable[[list[str]], Any]] = {
    "pandas from a file": lambda ids: pd.read_csv(StringIO("\n".join(["id", *ids])))["id"],
    "pandas with pyarrow's types": lambda ids: pd.read_csv(StringIO("\n".join(["id", *ids])), dtype_backend="pyarrow")[
        "id"
    ],
    "polars from a file": lambda ids: pl.read_csv(StringIO("\n".join(["id", *ids])))["id"].to_list(),
    "numpy": lambda ids: np.array([each if "x" in each else float(each) for each in ids]),
    "a list": lambda ids: [each if "x" in each else int(float(each)) for each in ids],
}


@pytest.mark.parametrize("odd", ["x7", "7.5"])
@pytest.mark.parametrize("written", ["{}", "{}.0"])
@pytest.mark.parametrize("way", IDS)
def test_an_odd_id_changes_no_part_of_anybody_else(way: str, written: str, odd: str) -> None:
    """It changes the type of the whole column, and how libraries write all the others."""
    if (way, odd) == ("a list", "7.5"):
        pytest.skip("whole numbers alone")
    people = [written.format(number) for number in range(1, 60)]

    def parts(ids: list[str]) -> list[Any]:
        frame = pd.DataFrame({"patient": IDS[way](ids), "age": range(len(ids))})
        data = declared(frame.assign(clinic="n", sex="f", ill="no"))
        spec = RunSpec.of({"seed": 3, "evaluation": {"test": 0.3}, "silos": {"partition": "uniform", "count": 3}})
        found = split_dataset(data, spec)
        kept = [found.held_out["test"], *(silo.data for silo in found.silos.values())]
        return [each.inputs[each.inputs[:, 0] < 2 * 59 / 110 - 1].tolist() for each in kept]

    assert parts([*people, odd]) == parts(people)


def arrow(kind: pa.DataType, values: list[Any]) -> pd.Series:
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, kind)))


UNREADABLE: dict[str, Any] = {
    "a fraction beyond floating point": pd.Series([Fraction(10**400, 3)] * 4, dtype=object),
    "256 bits": pa.array([1, 2, 3, 2**200], pa.decimal256(76, 0)),
}


@pytest.mark.parametrize("column", ["sex", "patient"])
def test_a_kind_of_column_that_is_neither_number_nor_name_is_refused(column: str) -> None:
    frame = pa.Table.from_pandas(pd.DataFrame(COLUMNS).assign(**{column: pd.period_range("2000", periods=4)}))
    with pytest.raises(DataError, match=f"Column '{column}' holds .* neither a number, a date nor a name"):
        declared(frame)


@pytest.mark.parametrize("column", ["age", "patient"])
@pytest.mark.parametrize("values", UNREADABLE)
def test_what_a_library_cannot_read_is_refused_in_one_sentence(values: str, column: str) -> None:
    frame, given = pd.DataFrame(COLUMNS), UNREADABLE[values]
    table = (
        frame.assign(**{column: given})
        if isinstance(given, pd.Series)
        else pa.Table.from_pandas(frame.drop(columns=column)).append_column(column, given)
    )
    with pytest.raises(DataError, match=r"cannot be read \(\w+\).* write .*as numbers or text first"):
        declared(table)


@pytest.mark.parametrize(
    "ids",
    [
        arrow(pa.uint64(), [1, 2, 3, 2**64 - 1]),
        arrow(pa.uint64(), [1, 2, 3, 2**63]),
        pd.Series([1, 2, 3, 2**70], dtype=object),
        pd.Series([1, 2, 3, 10**400], dtype=object),
        arrow(pa.decimal128(38, 0), [1, 2, 3, 10**37]),
    ],
    ids=["64 bits", "the first", "70 bits", "a googol", "decimal"],
)
def test_ids_of_any_size_are_ids(ids: pd.Series) -> None:
    frame = pd.DataFrame(COLUMNS).assign(patient=ids)
    assert declared(frame).data.subjects.tolist() == subject_codes([str(id) for id in ids]).tolist()


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("s", "UTC")])
def test_dates_far_from_now_are_read_in_any_unit(kind: pa.DataType) -> None:
    days = arrow(kind, [datetime.datetime(year, 5, 1) for year in (2000, 2005, 2010, 9000)])
    frame = pd.DataFrame(COLUMNS).assign(age=days)
    found = declared(frame, features={"age": wg.Date("2000-05-01", "2010-05-01")})
    np.testing.assert_allclose(found.data.inputs[:, 0], [-1, 0, 1, 1], atol=1e-3)


@pytest.mark.parametrize("high", [2**63, 2**64, 10**40])
def test_bounds_of_any_size_are_bounds(high: int) -> None:
    frame = pd.DataFrame(COLUMNS).assign(age=[0, high // 2, high, 2 * high], ill=[0, high // 2, high, high])
    found = declared(
        frame, features={"age": wg.Number(0, high, missing=high)}, target=wg.Target("ill", low=0, high=high)
    )
    np.testing.assert_allclose(found.data.inputs[:, 0], [-1, 0, 1, 1], atol=1e-6)
    np.testing.assert_allclose(found.data.targets[:, 0], [-1, 0, 1, 1], atol=1e-6)


@pytest.mark.parametrize(
    "declare",
    [
        lambda v: wg.Number(0, v),
        lambda v: wg.Number(0, 1, missing=v),
        lambda v: wg.Target("ill", low=0, high=v),
        lambda v: wg.Target("ill", at_least=v),
    ],
)
@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan")])
def test_declared_numbers_beyond_floating_point_are_refused(declare: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(SpecError, match="finite"):
        declare(value)


def test_a_category_may_be_any_whole_number() -> None:
    assert wg.Category([0, 10**400]).categories == ("0", str(10**400))
