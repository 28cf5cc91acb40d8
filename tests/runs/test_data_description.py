"""What is counted of a data set, and of batches drawn as a policy draws them."""

from dataclasses import replace

import pytest

from wholegrain.data.clinics import clinics
from wholegrain.errors import SpecError
from wholegrain.runs.data_description import BATCHES, describe
from wholegrain.runs.spec import RunSpec

CLINICS = {"source": "clinics", "options": {"patients": 150, "clinics": 3, "span": 2, "visits": 5}}


def facts(**sections: object) -> dict:
    return describe(RunSpec.of({"data": CLINICS, **sections}))


def test_counts_agree_with_each_other() -> None:
    found = facts(evaluation={"test": 0.5})
    assert found["subjects"] == 150  # nobody is held out
    assert found["private"] is False
    for key in ("items_per_subject", "items_per_subject_and_silo"):
        assert sum(size * count for size, count in found[key].items()) == found["items"]
    assert sum(found["items_per_subject"].values()) == sum(found["silos_per_subject"].values()) == 150
    assert max(found["items_per_subject"]) == 5
    assert max(found["silos_per_subject"]) == 2
    pairs = sum(silo["subjects"] for silo in found["silos"].values())
    assert pairs == sum(found["items_per_subject_and_silo"].values())
    assert sum(silo["items"] for silo in found["silos"].values()) == found["items"]


def test_without_a_way_to_draw_there_are_no_batches() -> None:
    assert facts()["batches"] is None


def test_batches_of_all_subjects_hold_the_largest() -> None:
    found = facts(policy={"name": "subject_dp", "rate": 1.0})
    largest = [silo["largest_subject"] for silo in found["silos"].values()]
    batches = found["batches"]
    assert sum(batches["largest_group"].values()) == 3 * BATCHES
    assert set(batches["largest_group"]) == set(largest)
    assert batches["mean_items"] == pytest.approx(found["items"] / 3)


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        ({"name": "local_group_dp", "rate": 0.9, "group_cap": 2}, 2),
        ({"name": "subject_dp", "rate": 0.9, "items_per_step": 1}, 1),
        ({"name": "local_item_dp", "rate": 0.9}, 5),
    ],
)
def test_groups_are_as_large_as_the_policy_lets_them(policy: dict, most: int) -> None:
    assert max(facts(policy=policy)["batches"]["largest_group"]) == most


def test_the_paper_draws_batches_of_a_fixed_size() -> None:
    policy = {"name": "local_group_dp", "batch_size": 20, "as_printed": True}
    assert facts(policy=policy)["batches"]["mean_items"] == 20


def test_empty_batches_have_no_group() -> None:
    found = facts(policy={"name": "subject_dp", "rate": 0.001})["batches"]
    assert found["largest_group"][0] > 0
    assert found["mean_items"] < 1


def test_the_seed_decides() -> None:
    policy = {"name": "local_item_dp", "rate": 0.1}
    assert facts(policy=policy) == facts(policy=policy) != facts(policy=policy, seed=1)


def test_surplus_that_is_dropped_is_not_counted() -> None:
    assert max(facts(silos={"items_per_subject": 2})["items_per_subject_and_silo"]) == 2


def test_what_k_drops_is_told() -> None:
    whole, dropped = facts(), facts(silos={"items_per_subject": 1})
    assert dropped["dropped"]["items"] == whole["items"] - dropped["items"] > 0
    assert dropped["dropped"]["of"] == whole["items"]
    assert dropped["dropped"]["items_per_subject"] == 1


def test_data_that_names_no_silos_is_seen_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = replace(clinics(patients=30), silos=None)
    monkeypatch.setattr("wholegrain.runs.data_description.load_dataset", lambda spec: nameless)
    found = describe(RunSpec())
    assert [silo["subjects"] for silo in found["silos"].values()] == [30]
    assert found["silos_per_subject"] == {1: 30}


def test_a_policy_that_does_not_exist() -> None:
    with pytest.raises(SpecError, match="did you mean"):
        facts(policy={"name": "subject_d", "rate": 0.1})
