"""Specs that nobody in their right mind would write: one of our own errors, or a run that can be prepared."""

import copy
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from damages import Damage, damages
from effort import examples
from wholegrain.errors import SpecError, WholegrainError
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec, load

TREE: dict[str, Any] = {
    "seed": 3,
    "data": {"source": "clinics", "options": {"patients": 30, "clinics": 3, "span": 2, "visits": 4, "features": 3}},
    "silos": {"partition": "column", "items_per_subject": 4, "span": 2, "surplus": "drop"},
    "model": {"name": "logistic", "options": {}},
    "policy": {"name": "subject_dp", "rate": 0.5, "clip_norm": 1.0, "items_per_step": 2},
    "privacy": {"delta": 1e-5, "unit": "subject", "noise_multiplier": 6.0, "accountant": "pld", "noise": "seeded"},
    "ledger": {"path": "ledger.sqlite", "data": "patients", "budget": "main", "epsilon": 50.0},
    "rounds": {"count": 2, "steps": 2, "cohort": 2, "learning_rate": 0.5, "averaging": "items", "fewest_silos": 1},
    "evaluation": {"test": 0.2, "validation": 0.1, "by": "subject", "train": True},
    "compute": {"memory_gib": 0.1, "ranks_per_silo": 2},
}
TABLE: dict[str, Any] = {
    "data": {
        "table": {
            "path": "visits.csv",
            "subject": "patient",
            "silo": "clinic",
            "target": {"column": "ill", "classes": [0, 1]},
            "features": {"age": {"low": 0, "high": 110, "missing": 50}, "sex": {"categories": ["f", "m"]}},
        }
    },
    "silos": {"items_per_subject": 4},
    "policy": {"name": "local_group_dp", "rate": 0.5, "group_cap": 2},
    "privacy": {"noise_multiplier": 6.0},
    "rounds": {"count": 2},
}
ROWS = [f"p{i % 20},{'north' if i % 3 else 'south'},{20 + i % 60},{'fm'[i % 2]},{i % 2}" for i in range(60)]
TEXT = """# odd
seed = 3
[data]
source = "clinics"
options = { patients = 30, clinics = 3, span = 2, visits = 4 }
[policy]
name = "subject_dp"
rate = 0.5
[privacy]
noise_multiplier = 6.0
delta = 1e-5
[rounds]
count = 2
steps = 2
"""

NUMBERS = [0, -0.0, -1, 1, 2, 3, 0.3, 1e-9, 1e-300, 5e-324, 1e300, 10**12, 10**18, 2**63, 10**30, -(10**30), 10**400]
ODD_NUMBERS = [math.nan, math.inf, -math.inf]
STRINGS = [
    "",
    " ",
    "\0",
    "a\nb",
    "ß",
    "\ud800",
    "\u202e",
    "🏥",
    "x" * 300,
    "/",
    ".",
    "..",
    "/dev/null",
    "1",
    "nan",
    ":",
]
STRINGS += [
    "a:",
    ":b",
    "nowhere:x",
    "[red]",
    "%s",
    "{0}",
    "FILL IN",
    "subject_dp",
    "local_item_dp",
    "user_ldp",
    "fedavg",
]
STRINGS += [
    "uniform",
    "power",
    "item",
    "silo",
    "rdp",
    "secure",
    "refuse",
    "plain",
    "mlp",
    "visits.csv",
    "age",
    "clinic",
]


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def values() -> st.SearchStrategy[Any]:
    """Anything that JSON can say, and mostly what it should not."""
    plain = st.sampled_from([None, True, False, *NUMBERS, *ODD_NUMBERS, *STRINGS, [], {}, [[]], {"a": 1}, ["f", "m"]])
    deep = st.sampled_from([50, 400]).map(_nested)
    return plain | plain | plain | deep | st.text(max_size=5) | st.floats() | st.integers(-3, 40)


def places(tree: Any, so_far: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a tree, as a path."""
    for key, inner in tree.items() if isinstance(tree, dict) else ():
        yield (*so_far, key)
        yield from places(inner, (*so_far, key))


def known_places() -> list[tuple[str, ...]]:
    """Every key that a section knows, whether or not a spec here uses it."""
    return [
        (name, key)
        for name, field in RunSpec.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    ]


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """A spec that works, with one to three things wrong."""
    tree = copy.deepcopy(draw(st.sampled_from([TREE, TREE, TABLE])))
    for _ in range(draw(st.integers(1, 3))):
        *sections, last = draw(st.sampled_from([*places(tree), *known_places()]))
        inner = tree
        for section in sections:
            inner = inner.get(section)
            if not isinstance(inner, dict):
                break
        else:
            match draw(st.sampled_from(["set", "set", "set", "set", "remove", "rename"])):
                case "set":
                    inner[last] = draw(values())
                case "remove":
                    inner.pop(last, None)
                case "rename":
                    inner[draw(st.sampled_from(["", "é", last + "s", "\0", "seed"]))] = inner.pop(last, None)
    return tree


class Quick:
    """An accountant that answers at once: what is fuzzed here is everything else."""

    name, version = "quick", "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return 1.0

    def way(self, event: DpEvent) -> str:
        return self.name

    def as_filter(self, limit: float | None) -> "Quick":
        return self


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder inside others, with a table, so that `..` leads nowhere else."""
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    (folder / "visits.csv").write_text("patient,clinic,age,sex,ill\n" + "\n".join(ROWS) + "\n")
    return folder


def prepare_and_begin(spec: Path) -> None:
    """All that a run does before its first round; whatever it refuses leaves nothing behind."""
    before = set(spec.parent.parent.parent.rglob("*"))
    try:
        prepared = prepare(load(spec), pricing=Quick())
    except WholegrainError:
        assert set(spec.parent.parent.parent.rglob("*")) == before
        return
    out = spec.parent / "run"
    try:
        RunFolder.create(out, prepared)
    except WholegrainError:
        assert not out.exists()


def clean(place: Path) -> None:
    """Away with what the example before has left."""
    for path in [*place.iterdir(), *place.parent.iterdir(), *place.parent.parent.iterdir()]:
        if path.name not in ("visits.csv", "a", "b", "c"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def begin(place: Path, tree: dict[str, Any]) -> None:
    clean(place)
    path = place / "spec.json"
    path.write_text(json.dumps(tree), encoding="utf-8")
    prepare_and_begin(path)


HOUSE = examples(150, suppress_health_check=list(HealthCheck))


@HOUSE
@given(tree=trees())
@pytest.mark.slow
def test_trees(place: Path, tree: dict[str, Any]) -> None:
    begin(place, tree)


@HOUSE
@given(damage=damages())
@pytest.mark.slow
def test_texts(place: Path, damage: Damage) -> None:
    clean(place)
    path = place / "spec.toml"
    path.write_bytes(damage(TEXT.encode()))
    prepare_and_begin(path)


@pytest.mark.parametrize("section", ["ledger", "data", "rounds", "policy"])
@pytest.mark.parametrize("value", ["\ud800", 10**400, _nested(900), "\0", "x" * 300])
def test_values_that_were_too_much_once(place: Path, section: str, value: Any) -> None:
    for key in TREE[section]:
        begin(place, TREE | {section: TREE[section] | {key: value}})


@pytest.mark.parametrize("option", TREE["data"]["options"])
@pytest.mark.parametrize("value", [10**12, 10**400])
def test_data_that_fits_in_no_memory_is_refused(place: Path, option: str, value: int) -> None:
    options = TREE["data"]["options"] | {option: value, "span": 2}
    begin(place, TREE | {"data": {"source": "clinics", "options": options}})


def test_a_name_of_a_table_that_is_too_long(place: Path) -> None:
    table = TABLE["data"]["table"] | {"path": "x" * 300 + ".csv"}
    begin(place, TABLE | {"data": {"table": table}})


def test_much_memory_is_no_limit(place: Path) -> None:
    begin(place, TREE | {"compute": {"memory_gib": 1e300}})


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_a_number_with_thousands_of_digits(place: Path, suffix: str) -> None:
    path = place / f"spec.{suffix}"
    path.write_text('{"seed": %s}' % ("1" * 5000) if suffix == "json" else f"seed = {'1' * 5000}")
    with pytest.raises(SpecError, match=r"spec\..*not valid"):
        load(path)
    path.write_text("{}" if suffix == "json" else "")
    with pytest.raises(SpecError, match="seed"):
        load(path, (f"seed={'1' * 5000}",))
