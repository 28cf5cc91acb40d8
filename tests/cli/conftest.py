"""Small specs to call the command with."""

from pathlib import Path

import pytest

CLINICS = """
seed = 3
[data]
source = "clinics"
options = { patients = 200, clinics = 4, span = 2, visits = 6 }
[policy]
name = "subject_dp"
rate = 0.5
[privacy]
epsilon = 4.0
delta = 1e-5
[rounds]
count = 3
steps = 2
"""

TABLE = """
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


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """A spec on synthetic patients."""
    path = tmp_path / "clinics.toml"
    path.write_text(CLINICS)
    return path


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """A spec on a CSV of visits beside it."""
    rows = [f"p{i % 20},{'north' if i % 3 else 'south'},{20 + i % 60},{'fm'[i % 2]},{i % 2}" for i in range(60)]
    (tmp_path / "visits.csv").write_text("patient,clinic,age,sex,ill\n" + "\n".join(rows) + "\n")
    path = tmp_path / "visits.toml"
    path.write_text(TABLE)
    return path
