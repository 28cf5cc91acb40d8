"""Many columns of 0 and 1, as one-hot encoding, symptoms or words of a text make them.

Scaled to [−1, 1], a thousand columns that are mostly 0 are mostly one long constant: it fills every clipped gradient,
and the curvature that such bounds allow asks for tiny steps. So where a table declares more than `MANY` of them, 0
stays 0, and together the flags of a row are at most as long as `SHARED` numbers. What becomes of a row depends on that
row alone.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.schema import Category, Feature, Number, TableLayout

TRUTH_VALUES = (("0", "false", "False", "FALSE"), ("1", "true", "True", "TRUE"))
"""How tables, libraries and spreadsheets write no and yes: a column that is declared by one pair may hold another."""
MANY = 16
"""Up to so many flags are scaled as other numbers are."""
SHARED = 8
"""The square of the length that more of them share: that of 16 flags of which half are set."""


def is_flag(feature: Feature) -> bool:
    """Whether a column is declared as 0 or 1: by its bounds, or by the two truth values.

    >>> is_flag(Number(0, 1)), is_flag(Category([False, True])), is_flag(Category(["f", "m"]))
    (True, True, False)
    """
    if isinstance(feature, Number):
        return (feature.low, feature.high) == (0, 1)
    if not isinstance(feature, Category) or feature.missing or len(feature.categories) != 2:
        return False
    return all(set(feature.categories) & set(spellings) for spellings in TRUTH_VALUES)


def many_flags(layout: TableLayout) -> tuple[str, ...]:
    """The columns of 0 and 1 that share one length; none where a table has few of them."""
    flags = tuple(name for name, feature in layout.features.items() if is_flag(feature))
    return flags if len(flags) > MANY else ()


def share_length(encoded: Mapping[str, NDArray[np.float32]], layout: TableLayout) -> dict[str, NDArray[np.float32]]:
    """[row, value] by column, as `encode_feature` gives them; of many flags, 0 stays 0 and all together are bounded."""
    flags = many_flags(layout)
    if not flags:
        return dict(encoded)
    sparse = {name: _from_zero(layout.features[name], encoded[name]) for name in flags}
    squares = np.zeros(len(sparse[flags[0]]))
    for value in (value for block in sparse.values() for value in block.T):
        squares += np.square(value, dtype=np.float64)  # one after the other: how a row is rounded depends on no other
    factor = np.sqrt(SHARED / np.maximum(squares, SHARED)).astype(np.float32)[:, None]
    return dict(encoded) | {name: block * factor for name, block in sparse.items()}


def _from_zero(feature: Feature, block: NDArray[np.float32]) -> NDArray[np.float32]:
    """[row, value] with zeros where the flag is not set, and the length 1 where it is."""
    if not isinstance(feature, Category):
        return ((block + 1) / 2).astype(np.float32)
    unset = [index for index, label in enumerate(feature.categories) if label in TRUTH_VALUES[0]]
    nothing = np.eye(2, dtype=np.float32)[unset] - np.float32(0.5 if feature.centred else 0.0)
    return ((block - nothing) / np.float32(math.sqrt(2))).astype(np.float32)
