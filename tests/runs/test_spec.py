"""Specs: sections, changes, and errors that name the key."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.errors import SpecError
from wholegrain.runs.spec import RunSpec, load


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("change", "read", "value"),
    [
        ("seed=7", lambda s: s.seed, 7),
        ("policy.name=fedavg", lambda s: s.policy.name, "fedavg"),
        ('policy.name="fedavg"', lambda s: s.policy.name, "fedavg"),
        ("policy.rate=0.25", lambda s: s.policy.rate, 0.25),
        ("evaluation.train=true", lambda s: s.evaluation.train, True),
        ("data.options.patients=9", lambda s: s.data.options, {"patients": 9}),
        ("model.options={hidden=[8]}", lambda s: s.model.options, {"hidden": [8]}),
    ],
)
def test_changes(tmp_path: Path, change: str, read: object, value: object) -> None:
    assert read(load(write(tmp_path, ""), (change,))) == value  # type: ignore[operator]


def test_a_spec_is_frozen() -> None:
    spec = RunSpec.of({})
    with pytest.raises(ValueError, match="frozen"):
        spec.seed = 3  # type: ignore[misc]


def test_a_relative_table_is_beside_its_spec(tmp_path: Path) -> None:
    text = '[data.table]\npath = "a.csv"\nsubject = "s"\ntarget = {column = "t", threshold = 1}\nfeatures = {}\n'
    spec = load(write(tmp_path, text))
    assert spec.data.table is not None
    assert spec.data.table.path == str(tmp_path / "a.csv")


TYPED = {
    "data.options.path": lambda spec: spec.data.options["path"],
    "data.table.path": lambda spec: spec.data.table.path,
    "data.table.features.note.tokenizer": lambda spec: spec.data.table.features["note"].tokenizer,
    "model.start": lambda spec: spec.model.start,
    "ledger.path": lambda spec: spec.ledger.path,
}
PATHS = """
[data.options]
path = "here"
[data.table]
path = "here"
subject = "s"
target = {column = "t", threshold = 1}
features = {note = {length = 3, tokenizer = "here", public = "made from public text"}}
[model]
start = "here"
[ledger]
path = "here"
"""


@pytest.mark.parametrize("key", TYPED)
def test_a_path_counts_from_where_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """One of the file from the file's folder, and one that is typed from the working directory."""
    (folder := tmp_path / "specs").mkdir()
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    spec = load(write(folder, PATHS), (f"{key}=there/x",))
    assert {name: read(spec) for name, read in TYPED.items()} == {  # type: ignore[no-untyped-call]
        name: str(work / "there" / "x" if name == key else folder / "here") for name in TYPED
    }


def test_a_roster_that_is_typed_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "specs").mkdir()
    for place in (folder, tmp_path):
        with pytest.raises(SpecError, match=f"There is no roster '{place / 'r.toml'}'"):
            load(write(folder, '[federation]\nroster = "r.toml"'), ("federation.roster=r.toml",) * (place == tmp_path))


def test_a_path_that_is_left_blank_is_still_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"data\.table\.path still says 'FILL IN'"):
        load(write(tmp_path, '[data.table]\npath = "FILL IN"'))


@pytest.mark.parametrize("tree", [{"seeds": 1}, {"policy": {"nam": "x"}}, {"policy": 3}, {"rounds": {"count": "x"}}])
def test_errors_name_the_key(tree: dict[str, object]) -> None:
    key = next(iter(tree))
    with pytest.raises(SpecError, match=key):
        RunSpec.of(tree)


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"data": {"table": {"path": "a.csv", "target": {"column": "t", "threshold": 1}}}}, "data.table.subject"),
        (
            {"federation": {"shape": [3], "classes": 2, "silos": [{"name": "a", "items": 3}]}},
            "federation.silos.0.subjects",
        ),
    ],
)
def test_a_key_that_is_missing_is_named_without_what_stands_beside_it(tree: dict[str, object], key: str) -> None:
    with pytest.raises(SpecError) as refused:
        RunSpec.of(tree)
    assert str(refused.value) == f"In the spec, {key} is missing."


@pytest.mark.parametrize("slip", [True, False, "4", "", b"4", np.True_, np.array(True), torch.tensor(True)])
@pytest.mark.parametrize(
    "place",
    ["seed", "privacy.epsilon", "privacy.noise_multiplier", "policy.clip_norm", "rounds.count", "rounds.learning_rate",
     "model.rank", "silos.items_per_subject", "silos.sizes.*.items", "ledger.epsilon", "trust.answers",
     "evaluation.test", "evaluation.scored_items", "evaluation.private.every", "server.learning_rate",
     "federation.silos.0.items", "federation.shape"],
)  # fmt: skip
def test_true_and_text_are_no_numbers(place: str, slip: object) -> None:
    """A guarantee at ε = 1 must not follow from `epsilon = true`."""
    with pytest.raises(SpecError, match=rf"^In the spec, {re.escape(place)}: it should be a valid (number|integer) \("):
        RunSpec.of(_filled(place, slip))


def _filled(place: str, value: object) -> dict[str, Any]:
    """A tree in which all else is right."""
    tree: dict[str, Any] = {
        "silos": {"sizes": {"*": {"items": 2, "subjects": 1}}},
        "trust": {"model": "secure_sum"},
        "evaluation": {"private": {}},
        "federation": {"shape": [3], "classes": 2, "silos": [{"name": "a", "items": 2, "subjects": 1}]},
    }
    *sections, key = place.split(".")
    inner: Any = tree
    for section in sections:
        inner = inner[int(section)] if isinstance(inner, list) else inner.setdefault(section, {})
    inner[key] = [value] if key == "shape" else value
    return tree


@pytest.mark.parametrize("number", [4, 4.0, np.int64(4), np.float64(4.0)])
@pytest.mark.parametrize("place", ["privacy.epsilon", "rounds.count", "silos.sizes.*.items", "federation.shape"])
def test_a_number_of_any_kind_is_one(place: str, number: object) -> None:
    assert RunSpec.of(_filled(place, number)) == RunSpec.of(_filled(place, 4))


@pytest.mark.parametrize(("typed", "value"), [(".5", 0.5), ("4.", 4.0), ("-.5e1", -5.0), ("1e-5", 1e-5)])
def test_numbers_are_read_as_they_are_typed(tmp_path: Path, typed: str, value: float) -> None:
    assert load(write(tmp_path, ""), (f"privacy.delta={typed}",)).privacy.delta == value


def test_a_name_of_digits_is_a_name(tmp_path: Path) -> None:
    assert load(write(tmp_path, "[ledger]\nbudget = 7")).ledger.budget == "7"


def test_a_spec_of_pretraining_is_sent_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has `public`, as only those of wholegrain pretrain have; give it to that"):
        load(write(tmp_path, 'public = "it is everybody\'s"'))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(list(RunSpec.model_fields)) | st.text(max_size=6)


@given(st.dictionaries(keys, values | st.dictionaries(st.sampled_from(["name", "rate", "count", "table"]), values)))
def test_any_tree_is_a_spec_or_a_clear_error(tree: dict[str, object]) -> None:
    with suppress(SpecError):
        RunSpec.of(tree)


def test_what_earlier_versions_did_not_know_is_left_out_where_it_is_as_it_was() -> None:
    """A run that was started before goes on: its spec has the same digest."""
    assert RunSpec.of({}).digest == "7f3542b57a260ce92dd84efe1b5ea5d2ec564885d2bee9104afb6acd5b3991d1"
    for change in ({"model": {"loss": "multi_margin"}}, {"evaluation": {"metrics": ["accuracy"]}},
                   {"server": {"step": "adam", "options": {"second": 0.9}}}):  # fmt: skip
        spec = RunSpec.of(change)
        assert spec.digest != RunSpec.of({}).digest
        assert RunSpec.of(spec.model_dump()) == spec
