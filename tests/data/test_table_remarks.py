"""What rows suggest is found, and said of the right columns."""

import polars as pl

from wholegrain.data.table_remarks import remarks

FRAME = pl.DataFrame(
    {
        "id": [f"r{number}" for number in range(120)],
        "serial": [str(number) for number in range(120)],
        "constant": ["No"] * 120,
        "empty": [""] * 120,
        "diagnosis": [f"d{number % 60}" for number in range(120)],
        "weight": ["?" if number % 2 else "70" for number in range(120)],
        "height": [f"{number}.5" for number in range(120)],
        "sex": ["f", "m"] * 60,
    }
)


def test_conspicuous_columns_are_named() -> None:
    found = remarks(FRAME, FRAME.columns, ["serial", "height"])
    assert {what.split(",")[0]: list(names) for what, names in found.items()} == {
        "a value of its own in every row": ["id"],
        "whole numbers": ["serial"],
        "one value in all rows": ["constant"],
        "no value at all": ["empty"],
        "more than 50 different names": ["diagnosis (60)"],
        "'?'": ["weight"],
    }


def test_nothing_is_said_of_a_plain_table() -> None:
    assert remarks(FRAME, ["sex", "height"], ["height"]) == {}


def test_many_columns_of_zeros_and_ones_are_remarked() -> None:
    """A private model drowns in them; the column that they were made of is learnt."""
    frame = pl.DataFrame({f"d{number}": ["0", "1", None] for number in range(60)} | {"age": ["0", "2", "2"]})
    (what,) = (found := remarks(frame, frame.columns, frame.columns))
    assert what.startswith("0 and 1 alone")
    assert found[what] == ["d0", "d1", "d2", "and 57 more"]
    assert remarks(frame, frame.columns[:20], frame.columns) == {}
