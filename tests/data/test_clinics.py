"""The synthetic clinics keep to their parameters."""

import numpy as np
import pytest

from wholegrain.data.clinics import clinics
from wholegrain.errors import SpecError

CASES = [
    {"patients": 1, "clinics": 1, "span": 1, "visits": 1, "features": 1},
    {"patients": 120, "clinics": 12, "span": 2, "visits": 3, "features": 4},
    {"patients": 400, "clinics": 4, "span": 4, "visits": 9, "features": 2},
    {"patients": 300, "clinics": 5, "span": 1, "visits": 20, "features": 3},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_parameters_are_respected(options: dict[str, int]) -> None:
    made = clinics(**options)
    data = made.data
    assert data.subject_count == options["patients"]
    assert made.features == options["features"]
    assert made.items_per_subject == options["visits"]
    assert data.largest_subject <= options["visits"]
    assert made.silos is not None
    assert len(made.silos) == data.items
    assert len(set(made.silos)) <= options["clinics"]
    for patient in range(options["patients"]):
        assert len(set(made.silos[data.subjects == patient])) <= options["span"]
    assert data.inputs.dtype == np.float32
    assert np.abs(data.inputs).max() <= 1
    assert set(data.targets) <= {0, 1}


def test_the_bounds_are_reached() -> None:
    made = clinics(patients=2000, clinics=6, span=3, visits=4)
    assert made.data.largest_subject == 4
    assert made.silos is not None
    spans = [len(set(made.silos[made.data.subjects == patient])) for patient in range(2000)]
    assert max(spans) == 3
    assert len(set(made.silos)) == 6


def test_the_seed_decides() -> None:
    first, again, other = clinics(patients=60), clinics(patients=60), clinics(patients=60, seed=1)
    assert (first.data.inputs == again.data.inputs).all()
    assert (first.data.targets == again.data.targets).all()
    assert (first.silos == again.silos).all()
    assert first.data.inputs.shape != other.data.inputs.shape or (first.data.inputs != other.data.inputs).any()


def test_visits_of_one_patient_are_alike() -> None:
    """Otherwise protecting a visit would protect the patient, and there were nothing to show."""
    data = clinics(patients=500).data
    same, nearby = data.inputs[:-1], data.inputs[1:]
    together = data.subjects[:-1] == data.subjects[1:]
    distance = np.linalg.norm(same - nearby, axis=1)
    assert distance[together].mean() < 0.75 * distance[~together].mean()


def test_both_outcomes_are_common() -> None:
    assert 0.2 < clinics().data.targets.mean() < 0.8


@pytest.mark.parametrize("name", ["patients", "clinics", "span", "visits", "features"])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_counts_are_whole_and_positive(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=name):
        clinics(**{name: value})


def test_span_is_at_most_the_clinics_there_are() -> None:
    with pytest.raises(SpecError, match="span = 4 is more than the 3 clinics"):
        clinics(clinics=3, span=4)
