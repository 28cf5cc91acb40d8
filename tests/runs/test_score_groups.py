"""Scores by silo and by group are those of the items that belong to each."""

import polars as pl
import pytest

import wholegrain as wg
from visit_tables import FEATURES, data, visits

SETTINGS = {"policy": "fedavg", "rounds": 3, "learning_rate": 1.0}


def test_groups_partition_the_test_items() -> None:
    run = wg.train(data(), groups=("silo", "sex"), **SETTINGS)
    parts = {name for name in run.scores if "/" in name}
    assert parts == {*(f"test/silo = clinic {k}" for k in range(3)), "test/sex = f", "test/sex = m"}
    low, high = sorted(run.scores[f"test/sex = {sex}"].accuracy for sex in "fm")
    assert low <= run.scores["test"].accuracy <= high
    assert set(run.constant) == set(run.scores)


def test_a_group_is_scored_on_its_own_items() -> None:
    """All women are ill and no man is: of each group, a constant answer is always right."""
    frame = visits().with_columns(ill=pl.when(pl.col("sex") == "f").then(pl.lit("yes")).otherwise(pl.lit("no")))
    run = wg.train(data(frame), groups="sex", **SETTINGS)
    assert run.constant["test"].accuracy < 1
    assert run.constant["test/sex = f"].accuracy == run.constant["test/sex = m"].accuracy == 1


def test_missing_values_are_a_group() -> None:
    frame = visits().with_columns(sex=pl.when(pl.col("age") > 50).then(pl.lit(None)).otherwise(pl.col("sex")))
    features = FEATURES | {"sex": wg.Category(["f", "m"], missing=True)}
    run = wg.train(data(frame, features=features), groups=("sex",), **SETTINGS)
    assert {"test/sex = f", "test/sex = m", "test/sex = missing"} <= set(run.scores)


def test_a_number_is_no_group() -> None:
    with pytest.raises(wg.WholegrainError, match="'age' is no column with categories; choose of silo, sex"):
        wg.train(data(), groups=("age",), **SETTINGS)
