"""Suggestions about a table's columns, read off its rows: shown to whoever holds the table, written to no file.

Private: everything that is returned here. Whoever declares a column by it declares what the rows say.
"""

from collections.abc import Mapping, Sequence

import polars as pl

from wholegrain.data.column_values import as_text

MANY = 50
"""More names than these are a lot of columns for a model."""
SPELLINGS = ("?", "NA", "N/A", "n/a", "NULL", "null", "NaN", "nan", "None", "none", "-", ".", "unknown", "Unknown")
"""How tables write that a value is missing."""


def remarks(frame: pl.DataFrame, features: Sequence[str], quantities: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """What is conspicuous, with the columns that it is true of; `quantities` look like numbers or dates."""
    texts = {name: as_text(frame[name]) for name in features}
    distinct = {name: text.drop_nulls().n_unique() for name, text in texts.items()}
    present = {name: len(text) - text.null_count() for name, text in texts.items()}
    found = {
        "a value of its own in every row, as an id has": [
            name for name in features if distinct[name] == frame.height > 1 and name not in quantities
        ],
        "whole numbers, each once, as an id has": [
            name for name in features if distinct[name] == frame.height > 1 and _whole(texts[name], quantities)
        ],
        "one value in all rows": [name for name in features if distinct[name] <= 1 and present[name]],
        "no value at all": [name for name in features if not present[name]],
        f"more than {MANY} different names": [
            f"{name} ({distinct[name]})"
            for name in features
            if name not in quantities and MANY < distinct[name] < frame.height
        ],
    }
    flags = [name for name, text in texts.items() if set(text.drop_nulls().unique()) == {"0", "1"}]
    if len(flags) > MANY:
        found["0 and 1 alone (if one column of names was made into many, declare that one instead)"] = [
            *flags[:3],
            f"and {len(flags) - 3} more",
        ]
    for spelling in SPELLINGS:
        found[f"'{spelling}', perhaps for what is missing (missing_values = [\"{spelling}\"])"] = [
            name for name, text in texts.items() if (text == spelling).any()
        ]
    return {what: names for what, names in found.items() if names}


def _whole(text: pl.Series, quantities: Sequence[str]) -> bool:
    return text.name in quantities and bool(text.str.contains(r"^[+-]?\d+$").all())
