"""Many columns of 0 and 1: 0 stays 0, and together they are bounded; a row's encoding is its own affair."""

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from wholegrain.data.feature_scale import scale_of_table
from wholegrain.data.flags import MANY, SHARED
from wholegrain.data.schema import Category, Feature, Number, TableLayout, Target
from wholegrain.data.table import encode_features
from wholegrain.errors import RunError
from wholegrain.runs.model_file import layout_facts, read_layout

KINDS: dict[str, Feature] = {
    "numbers": Number(0, 1),
    "numbers that may be missing": Number(0, 1, missing=0),
    "truth values": Category([False, True]),
    "truth values, yes first": Category(["true", "false"]),
    "not centred": Category([0, 1], centred=False),
}


def layout(flag: Feature, count: int) -> TableLayout:
    features: dict[str, Feature] = {"age": Number(0, 100), **{f"f{k}": flag for k in range(count)}}
    return TableLayout(subject="id", target=Target("ill", ["no", "yes"]), features=features)


def table(values: NDArray[np.float64]) -> pl.DataFrame:
    """[row, flag]"""
    return pl.DataFrame({"age": [50.0] * len(values), **{f"f{k}": column for k, column in enumerate(values.T)}})


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_flags_zero_stays_zero_and_one_has_the_length_of_a_number(kind: str) -> None:
    rows = np.zeros((3, 40))
    rows[1, 7] = 1
    rows[2] = 1
    found = encode_features(table(rows), layout(KINDS[kind], 40))
    assert found[:, 0].tolist() == [0, 0, 0]
    lengths = np.linalg.norm(found, axis=1)
    assert lengths.tolist() == pytest.approx([0, 1, np.sqrt(SHARED)])
    assert np.square(lengths).max() <= scale_of_table(layout(KINDS[kind], 40)).longest


def test_few_flags_are_encoded_as_any_number() -> None:
    rows = np.eye(MANY)
    assert np.array_equal(encode_features(table(rows), layout(Number(0, 1), MANY))[:, 1:], 2 * rows - 1)


def test_names_and_other_bounds_are_no_flags() -> None:
    rows = np.zeros((1, 40))
    assert (encode_features(table(rows), layout(Number(0, 2), 40))[0, 1:] == -1).all()
    assert (encode_features(table(rows), layout(Category(["0", "2"]), 40))[0, 1::2] == 0.5).all()
    assert (encode_features(table(rows), layout(Category([0, 1], missing=True), 40))[0, 1::2] == 0.5).all()


def test_how_a_row_is_rounded_depends_on_no_other_row() -> None:
    rows = np.random.default_rng(0).random((33, 101))
    declared = layout(Number(0, 1), 101)
    together = encode_features(table(rows), declared)
    for row in range(33):
        assert np.array_equal(encode_features(table(rows[row : row + 1]), declared)[0], together[row])


def test_a_model_file_of_another_encoding_is_refused() -> None:
    facts = layout_facts(layout(Number(0, 1), 40))
    assert read_layout(facts).features == layout(Number(0, 1), 40).features
    with pytest.raises(RunError, match="more than 16 columns of 0 and 1"):
        read_layout({key: value for key, value in facts.items() if key != "flags"})
    few = layout_facts(layout(Number(0, 1), 3))
    assert "flags" not in few
    read_layout(few)
