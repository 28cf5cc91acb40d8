"""A small table of visits that can be learnt from."""

from typing import Any

import numpy as np
import polars as pl

import wholegrain as wg

FEATURES = {"age": wg.Number(0, 100), "pressure": wg.Number(80, 200), "sex": wg.Category(["f", "m"])}
TARGET = wg.Target("ill", ["no", "yes"])

CSV = "patient,clinic,age,sex,ill\n" + "".join(
    f"p{i % 20},{'north' if i % 3 else 'south'},{20 + i % 60},{'fm'[i % 2]},{i % 2}\n" for i in range(60)
)
SPEC = """\
[data.table]
path = "visits.csv"
subject = "patient"
silo = "clinic"
target = { column = "ill", classes = [0, 1] }
[data.table.features]
age = { low = 0, high = 110 }
sex = { categories = ["f", "m"] }
[silos]
items_per_subject = 4
[policy]
rate = 0.5
[privacy]
epsilon = 4.0
"""
"""A spec on `CSV` as visits.csv beside it."""


def visits(people: int = 120, seed: int = 0) -> pl.DataFrame:
    """Three visits of each person, in one of three clinics."""
    draws = np.random.default_rng(seed)
    patient = np.repeat(np.arange(people), 3)
    age = draws.uniform(0, 100, people)[patient]
    return pl.DataFrame(
        {
            "patient": [f"p{number}" for number in patient],
            "clinic": [f"clinic {number}" for number in draws.integers(3, size=len(patient))],
            "age": age,
            "pressure": draws.uniform(80, 200, len(patient)),
            "sex": draws.choice(["f", "m"], people)[patient],
            "ill": np.where(age + draws.normal(0, 10, len(patient)) > 50, "yes", "no"),
        }
    )


def data(frame: Any = None, **changes: Any) -> wg.Dataset:
    given = {"subject": "patient", "silo": "clinic", "target": TARGET, "features": FEATURES}
    return wg.from_frame(visits() if frame is None else frame, **{**given, **changes})
