"""Samplings and silos that every way of drawing batches is tried with."""

import numpy as np

from wholegrain.data.sampling import FixedItems, PoissonItems, PoissonSubjects

SAMPLINGS = [
    PoissonItems(0.125),
    PoissonItems(0.001),
    PoissonItems(1.0),
    PoissonItems(0.5, most_per_subject=2),
    PoissonSubjects(0.3),
    PoissonSubjects(1.0),
    PoissonSubjects(0.3, items=2),
    FixedItems(10),
]
SILOS = {
    "in order": np.repeat(np.arange(150), np.resize([1, 2, 4, 9], 150)),
    "scattered": np.random.default_rng(4).integers(40, size=1000) * 1000,
    "one item": np.array([7]),
    "one subject": np.zeros(70, np.int64),
    "all by themselves": np.arange(513)[::-1].copy(),
}
"""The subject of each item."""
