"""How long a run is and who trains when is public, and known before it starts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.errors import SpecError
from wholegrain.policies.horizon import Horizon

SILOS = ("a", "b", "c", "d")


@given(
    size=st.one_of(st.none(), st.integers(1, 4)),
    rounds=st.integers(1, 12),
    steps=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_releases_count_the_steps_of_every_cohort(size: int | None, rounds: int, steps: int, seed: int) -> None:
    horizon = Horizon(silos=SILOS, rounds=rounds, steps=steps, cohort_size=size, seed=seed)
    counted: Counter[str] = Counter()
    for number in range(rounds):
        cohort = horizon.cohort(number)
        assert len(set(cohort)) == len(cohort) == horizon.cohort_count == (size or 4)
        assert list(cohort) == [silo for silo in SILOS if silo in cohort]
        assert horizon.releases(number) == counted
        counted.update(dict.fromkeys(cohort, steps))
    assert horizon.releases() == counted


def test_without_a_cohort_size_all_silos_train() -> None:
    horizon = Horizon(silos=SILOS, rounds=3, steps=2)
    assert all(horizon.cohort(number) == SILOS for number in range(3))
    assert horizon.releases(0) == dict.fromkeys(SILOS, 0)


def test_a_cohort_of_all_is_all() -> None:
    assert Horizon(silos=SILOS, rounds=1, steps=1, cohort_size=4).cohort(0) == SILOS


@pytest.mark.parametrize("field", ["rounds", "steps"])
@pytest.mark.parametrize("value", [0, -3, 2.5, True])
def test_counts_are_whole_and_positive(field: str, value: float) -> None:
    with pytest.raises(SpecError, match=field):
        Horizon(**{"silos": SILOS, "rounds": 1, "steps": 1, field: value})


@pytest.mark.parametrize(("size", "message"), [(0, "cohort"), (5, "A cohort of 5 silos cannot be drawn from 4")])
def test_a_cohort_must_be_there_to_be_drawn(size: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Horizon(silos=SILOS, rounds=1, steps=1, cohort_size=size)
