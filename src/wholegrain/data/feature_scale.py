"""How long inputs can be and how much each value is expected to vary: by declaration alone, never by looking."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.flags import SHARED, many_flags
from wholegrain.data.schema import Category, TableLayout

UNIFORM = 1 / 3
"""The mean square of a number that lies anywhere between −1 and 1."""


@dataclass(frozen=True, eq=False)
class FeatureScale:
    """A bound on the square of an input's length, and the expected square of each value [feature].

    Expected as if numbers lay anywhere between their bounds and all categories were equally frequent.
    """

    longest: float
    squares: NDArray[np.float64]


def scale_of_table(layout: TableLayout) -> FeatureScale:
    """What a table's declarations say.

    >>> from wholegrain.data.schema import Number, Target
    >>> features = {"age": Number(0, 110), "sex": Category(["f", "m"])}
    >>> scale = scale_of_table(TableLayout(subject="id", target=Target("ill", ["no", "yes"]), features=features))
    >>> scale.longest, scale.squares.round(2).tolist()
    (1.5, [0.33, 0.25, 0.25])
    """
    if layout.text is not None:  # no linear model reads tokens; what a table of them gives is of this size
        return scale_of_numbers(layout.text.length)
    flags = frozenset(many_flags(layout))
    longest, squares = float(SHARED if flags else 0), list[float]()
    for name, feature in layout.features.items():
        if name in flags:
            values = 2 if isinstance(feature, Category) else 1
            squares += [UNIFORM * SHARED / len(flags) / values] * values
        elif isinstance(feature, Category):
            count = len(feature.categories)
            length = 1 - 1 / count if feature.centred else 1.0
            longest, squares = longest + length, squares + [length / count] * count
        else:
            longest, squares = longest + 1.0, [*squares, UNIFORM]
    return FeatureScale(longest, np.array(squares))


def scale_of_numbers(features: int) -> FeatureScale:
    """Of inputs of which nothing is declared: as many numbers between −1 and 1."""
    return FeatureScale(float(features), np.full(features, UNIFORM))
