"""What is trained on and what is scored: own test parts, held-out subjects, held-out items."""

import sys
from pathlib import Path

import numpy as np
import pytest

import wholegrain as wg
from wholegrain.data.subject_coins import Coins
from wholegrain.errors import DataError, SpecError
from wholegrain.policies.silo_facts import SiloFacts
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.runs.datasets import DataParts, split_dataset
from wholegrain.runs.planning import plan_for
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

RANDOM = np.random.default_rng(0)


def some(items: int, subjects: int) -> wg.SubjectData:
    """Items that can be told apart by their first feature."""
    inputs = np.stack([np.arange(items), RANDOM.normal(size=items)], axis=1).astype(np.float32)
    return wg.SubjectData(inputs, np.arange(items) % 2, np.arange(items) % subjects)


DATA = wg.Dataset(name="plain", data=some(400, 50), classes=2)
WITH_TEST = wg.Dataset(name="parted", data=some(400, 50), classes=2, test=some(30, 3))


def spec(**evaluation: object) -> RunSpec:
    return RunSpec.of(
        {
            "silos": {"partition": "uniform", "count": 4, "items_per_subject": 8},
            "policy": {"rate": 0.5},
            "privacy": {"epsilon": 4.0},
            "rounds": {"count": 2},
            "evaluation": evaluation,
        }
    )


def trained(parts: DataParts) -> wg.SubjectData:
    silos = [silo.data for silo in parts.silos.values()]
    columns = (np.concatenate([getattr(data, name) for data in silos]) for name in ("inputs", "targets", "subjects"))
    return wg.SubjectData(*columns)


def numbers(data: wg.SubjectData) -> set[int]:
    return {int(number) for number in data.inputs[:, 0]}


def test_a_fifth_of_the_subjects_is_held_out_unless_told_otherwise() -> None:
    default, told = (split_dataset(DATA, spec(**section)) for section in ({}, {"test": 0.2}))
    assert numbers(default.held_out["test"]) == numbers(told.held_out["test"])
    assert 0 < default.held_out["test"].subject_count < 25
    assert not set(trained(default).subjects) & set(default.held_out["test"].subjects)


def test_few_items_of_each_held_out_subject_are_scored_by_their_own_coins() -> None:
    whole, few = (split_dataset(DATA, spec(test=0.2, **more)) for more in ({}, {"scored_items": 3}))
    scored = few.held_out["test"]
    assert set(np.unique(scored.subjects, return_counts=True)[1]) == {3}
    assert set(scored.subjects) == set(whole.held_out["test"].subjects)
    assert numbers(scored) < numbers(whole.held_out["test"])
    assert numbers(trained(few)) == numbers(trained(whole))
    left_out = scored.subjects[0]
    without = wg.Dataset(name="plain", data=DATA.data.take(np.flatnonzero(DATA.data.subjects != left_out)), classes=2)
    others = numbers(scored.take(np.flatnonzero(scored.subjects != left_out)))
    assert numbers(split_dataset(without, spec(test=0.2, scored_items=3)).held_out["test"]) == others


def test_a_source_with_a_test_part_is_scored_on_it_and_trained_on_all_the_rest() -> None:
    parts = split_dataset(WITH_TEST, spec())
    assert parts.held_out == {"test": WITH_TEST.test}
    assert trained(parts).items == 400


def test_validation_is_held_out_of_the_rest() -> None:
    parts = split_dataset(WITH_TEST, spec(validation=0.3))
    assert parts.held_out["test"] is WITH_TEST.test
    assert numbers(parts.held_out["validation"]) | numbers(trained(parts)) == set(range(400))
    assert not set(parts.held_out["validation"].subjects) & set(trained(parts).subjects)


def test_an_own_test_part_can_be_left_unscored_but_not_be_added_to() -> None:
    assert split_dataset(WITH_TEST, spec(test=0)).held_out == {}
    with pytest.raises(SpecError, match=r"'parted' has a test part of its own, so that evaluation\.test = 0\.1"):
        split_dataset(WITH_TEST, spec(test=0.1))


def test_a_run_scores_the_own_test_part() -> None:
    prepared = prepare(spec(), dataset=WITH_TEST)
    with open_guard(prepared, "a run") as guard:
        run = execute(prepared, guard)
    assert list(run.scores) == ["test"]
    assert run.accuracy == run.scores["test"].accuracy
    assert split_dataset(WITH_TEST, RunSpec.of(run.spec.model_dump(mode="json"))).held_out["test"] is WITH_TEST.test


def test_a_test_part_needs_inputs_of_the_same_kind() -> None:
    for inputs in (np.zeros((3, 5), np.float32), np.zeros((3, 2), np.uint8)):
        other = wg.SubjectData(inputs, np.zeros(3, np.int64), np.zeros(3, np.int64))
        with pytest.raises(DataError, match="test part of 'parted'"):
            wg.Dataset(name="parted", data=DATA.data, classes=2, test=other)


def test_items_held_out_are_of_every_subject_and_the_others_are_trained_on() -> None:
    parts = split_dataset(DATA, spec(test=0.5, by="item"))
    kept, test = trained(parts), parts.held_out["test"]
    assert numbers(kept) | numbers(test) == set(range(400))
    assert not numbers(kept) & numbers(test)
    assert test.items == pytest.approx(200, abs=40)
    assert len(set(kept.subjects) & set(test.subjects)) > 40


def test_items_can_be_held_out_twice() -> None:
    parts = split_dataset(DATA, spec(test=0.2, validation=0.2, by="item"))
    found = [numbers(trained(parts)), *(numbers(data) for data in parts.held_out.values())]
    assert sum(map(len, found)) == len(set.union(*found)) == 400
    assert [len(part) for part in found] == pytest.approx([256, 64, 80], abs=30)


def test_where_an_item_goes_depends_on_no_other_subject() -> None:
    """Neighbouring data keep neighbouring parts."""
    kept = np.flatnonzero(DATA.data.subjects >= 10)
    other = wg.Dataset(name="plain", data=DATA.data.take(kept), classes=2)
    whole, part = (split_dataset(data, spec(test=0.3, by="item")).held_out["test"] for data in (DATA, other))
    assert numbers(part) == numbers(whole) & numbers(other.data) < numbers(whole)


@pytest.mark.parametrize("by", ["subject", "item"])
def test_the_bound_is_kept_whatever_is_held_out(by: str) -> None:
    silos = {"partition": "uniform", "count": 2, "items_per_subject": 2}
    parts = split_dataset(DATA, RunSpec.of(spec(by=by).model_dump() | {"silos": silos}))
    assert {silo.facts.items_per_subject for silo in parts.silos.values()} == {2}
    assert max(silo.data.largest_subject for silo in parts.silos.values()) == 2


@pytest.mark.parametrize("by", ["subject", "item"])
def test_holding_everything_out_is_refused(by: str) -> None:
    with pytest.raises(DataError, match="Nothing is left to train on"):
        split_dataset(DATA, spec(test=0.999999, by=by))


# What a policy does with surplus items follows from its row, whatever it is called.

MINE = """
from wholegrain.policies import policy_catalog


def item_row(settings, silo):
    return replace(policy_catalog.local_item_dp(settings, silo), name="mine")


def group_row(settings, silo):
    return replace(policy_catalog.local_group_dp(replace(settings, group_cap=2), silo), name="mine")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's own, with rows of the catalogue under other names."""
    (tmp_path / "mine.py").write_text("from dataclasses import replace\n" + MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def by_policy(name: str, bound: int, **silos: object) -> RunSpec:
    return RunSpec.of(
        {
            "silos": {"partition": "uniform", "count": 2, "items_per_subject": bound, **silos},
            "policy": {"name": name, "rate": 0.2, "group_cap": 2},
            "privacy": {"epsilon": 4.0},
            "rounds": {"count": 2},
        }
    )


@pytest.mark.parametrize(("own", "known"), [("item_row", "local_item_dp"), ("group_row", "local_group_dp")])
@pytest.mark.usefixtures("mine", "coarse_prices")
def test_a_row_of_ones_own_is_priced_as_the_catalogues(own: str, known: str) -> None:
    plans = [prepare(by_policy(name, 8), dataset=DATA).plan for name in (f"mine:{own}", known)]
    for unit in wg.Unit:
        assert plans[0].guarantee(unit) == plans[1].guarantee(unit)
    assert {facts.drops_surplus for _, facts in plans[0].rows} == {known != "local_item_dp"}


@pytest.mark.parametrize("name", ["mine:item_row", "local_item_dp"])
@pytest.mark.usefixtures("mine")
def test_a_row_of_single_items_drops_none(name: str) -> None:
    with pytest.raises(DataError, match=f"more than items_per_subject = 2 items, and {name} does not drop any"):
        split_dataset(DATA, by_policy(name, 2))
    with pytest.raises(SpecError, match=f"^{name} cannot drop surplus items"):
        split_dataset(DATA, by_policy(name, 2, surplus="drop"))


@pytest.mark.usefixtures("mine")
def test_a_row_of_groups_drops_surplus() -> None:
    assert (
        max(silo.data.largest_subject for silo in split_dataset(DATA, by_policy("mine:group_row", 2)).silos.values())
        == 2
    )


@pytest.mark.parametrize("part", ["test", "validation"])
def test_a_part_in_which_there_is_nobody_is_told_of(part: str, caplog: pytest.LogCaptureFixture) -> None:
    """One person in all rows is held out, or is not; in a release, which it was is nobody's business."""
    alone = wg.Dataset(name="alone", data=some(20, 1), classes=2)
    shares = {"test": 0.0, "validation": 0.0} | {part: 0.01}
    split_dataset(alone, spec(**shares))
    assert [message.split(":")[0] for message in caplog.messages if "no scores" in message] == [
        f"There are no scores of the part '{part}'"
    ]
    caplog.clear()
    split_dataset(DATA, spec(**shares | {part: 0.3}))
    split_dataset(alone, spec(test=0.0))
    assert not any("no scores" in message for message in caplog.messages)
    secret = {"privacy": {"epsilon": 4.0, "noise": "secure"}, "ledger": {"data": "one"}}
    sizes = {"silos": {"partition": "uniform", "count": 1, "sizes": {"*": {"items": 20, "subjects": 1}}}}
    split_dataset(alone, RunSpec.of({**secret, **sizes, "evaluation": shares}), Coins.seeded(0))
    assert not any("no scores" in message for message in caplog.messages)


@pytest.mark.parametrize("span", [0, -1])
def test_a_span_of_no_silos_is_refused_as_what_it_is(span: int) -> None:
    with pytest.raises(SpecError, match=f"^silos.span must be a whole number of at least 1, not {span}"):
        prepare(spec().model_copy(update={"silos": spec().silos.model_copy(update={"span": span})}), dataset=DATA)


@pytest.mark.parametrize(
    ("unit", "epsilon", "told"),
    [
        ("subject", 1e-9, "below one in 40, the subjects of all silos"),
        ("subject", 0.024, "below one in 40, the subjects of all silos"),
        ("subject", 0.026, None),
        ("item", 0.002, "below one in 320, the items of all silos"),
        ("item", 0.004, None),
    ],
)
@pytest.mark.usefixtures("coarse_prices")
def test_an_epsilon_that_lets_nothing_be_learnt_is_told_of(
    unit: str, epsilon: float, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {str(silo): SiloFacts(name=str(silo), items=80, subjects=10, items_per_subject=8) for silo in range(4)}
    asked = {"policy": {"rate": 0.5}, "privacy": {"epsilon": epsilon, "unit": unit}, "rounds": {"count": 1}}
    plan_for(RunSpec.of(asked), tuple(sizes.values()), DEFAULT)
    found = [message for message in caplog.messages if "could hardly change" in message]
    assert len(found) == (told is not None)
    assert all(told in message for message in found if told)
