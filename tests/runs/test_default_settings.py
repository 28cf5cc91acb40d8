"""Settings that a spec leaves out: what is given stays, and public facts alone decide."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from small_runs import PRICING
from wholegrain.data.schema import Category, Number, TableLayout, Target
from wholegrain.data.table import encode
from wholegrain.policies.policy import SiloFacts
from wholegrain.runs.default_settings import FilledSpec, PublicFacts, facts_of, fill_settings
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec

LAYOUT = TableLayout(
    subject="id",
    silo="site",
    target=Target("ill", ("no", "yes")),
    features={"age": Number(0, 100), "dose": Number(0, 1), "ward": Category(("a", "b", "c"))},
)
SIZES = {"north": {"items": 400, "subjects": 100}, "south": {"items": 200, "subjects": 50}}
PRIVATE = {"privacy": {"epsilon": 4.0}, "silos": {"items_per_subject": 4}}
SPECS: dict[str, dict[str, Any]] = {
    "private": PRIVATE,
    "fedavg": {"policy": {"name": "fedavg"}},
    "by item": PRIVATE | {"policy": {"name": "local_item_dp"}},
    "batch": PRIVATE | {"policy": {"batch_size": 30}},
    "mean": PRIVATE | {"policy": {"pool": "mean"}},
    "not linear": PRIVATE | {"model": {"name": "mlp"}},
    "secure sum": PRIVATE | {"trust": {"model": "secure_sum"}},
    "rate given": PRIVATE | {"rounds": {"learning_rate": 0.7}},
}


def table(subjects: int = 150, seed: int = 0) -> pl.DataFrame:
    draws = np.random.default_rng(seed)
    person = np.repeat(np.arange(subjects), 4)
    age, dose = draws.uniform(0, 100, len(person)), draws.uniform(0, 1, len(person))
    ill = np.where(draws.normal(age / 50 - 1, 0.5) > 0, "yes", "no")
    ward = draws.choice(["a", "b", "c"], len(person))
    site = np.where(person % 3 == 0, "south", "north")
    return pl.DataFrame({"id": person, "site": site, "ill": ill, "age": age, "dose": dose, "ward": ward})


def facts() -> PublicFacts:
    silos = tuple(SiloFacts(name=name, items_per_subject=4, declared=True, **size) for name, size in SIZES.items())
    return facts_of(encode(table(), LAYOUT, "visits"), silos)


def fill(tree: dict[str, Any]) -> FilledSpec:
    return fill_settings(RunSpec.of(tree), facts())


@pytest.mark.parametrize("name", SPECS)
def test_a_filled_spec_fills_to_itself_also_when_it_was_kept_as_json(name: str) -> None:
    """Run folders keep the filled spec: who resumes plans the same."""
    once = fill(SPECS[name]).spec
    kept = RunSpec.model_validate_json(once.model_dump_json())
    assert fill_settings(once, facts()).spec == once
    assert kept == once
    assert fill_settings(kept, facts()).spec == once


GIVEN = {
    "policy": {"rate": 0.25, "clip_norm": 0.123, "pool": "mean"},
    "rounds": {"count": 7, "steps": 3, "averaging": "plain"},
    "server": {"step": "plain", "momentum": 0.3, "schedule": "constant", "learning_rate": 0.5},
}


@pytest.mark.parametrize("policy", ["subject_dp", "fedavg", "local_item_dp"])
@pytest.mark.parametrize("place", [f"{section}.{key}" for section, keys in GIVEN.items() for key in keys])
def test_what_is_given_is_never_changed(place: str, policy: str) -> None:
    section, key = place.split(".")
    tree: dict[str, Any] = {"policy": {"name": policy}, "privacy": {"epsilon": 4.0}, "silos": {"items_per_subject": 4}}
    tree[section] = tree.get(section, {}) | {key: GIVEN[section][key]}
    filled = fill(tree)
    assert getattr(getattr(filled.spec, section), key) == GIVEN[section][key]
    assert place not in filled.reasons
    assert "rounds.learning_rate" in filled.reasons


def test_a_learning_rate_that_is_given_keeps_the_fixed_settings() -> None:
    asked = RunSpec.of(SPECS["rate given"])
    filled = fill(SPECS["rate given"])
    assert set(filled.reasons) == {"policy.rate"}
    assert (filled.spec.rounds, filled.spec.server) == (asked.rounds, asked.server)


def test_every_reason_is_of_a_setting_that_was_left_out() -> None:
    asked = RunSpec.of(PRIVATE)
    filled = fill(PRIVATE)
    for place in filled.reasons:
        section, key = place.split(".")
        assert key not in getattr(asked, section).model_fields_set
        assert key in getattr(filled.spec, section).model_fields_set


def test_nobody_who_leaves_changes_a_setting() -> None:
    tree = PRIVATE | {"silos": {"items_per_subject": 4, "sizes": SIZES}}
    whole = table()
    found = [
        prepare(RunSpec.of(tree), dataset=encode(frame, LAYOUT, "visits"), pricing=PRICING)
        for frame in (whole, whole.filter(pl.col("id") != 5), whole.filter(pl.col("id") > 20))
    ]
    assert found[0].spec == found[1].spec == found[2].spec
    assert found[0].plan.rows == found[1].plan.rows == found[2].plan.rows
