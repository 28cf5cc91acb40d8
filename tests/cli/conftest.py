"""Small specs to call the command with."""

from pathlib import Path

import pytest

from visit_tables import CSV, SPEC

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


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """A spec on synthetic patients."""
    path = tmp_path / "clinics.toml"
    path.write_text(CLINICS)
    return path


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """A spec on a CSV of visits beside it."""
    (tmp_path / "visits.csv").write_text(CSV)
    path = tmp_path / "visits.toml"
    path.write_text(SPEC)
    return path
