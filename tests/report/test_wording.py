"""What somebody signs must follow from the record, and must not promise what a simulation does not give."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from run_records import secure
from wholegrain.privacy.definitions import Unit
from wholegrain.report.advice import not_covered
from wholegrain.report.run_reader import read_run
from wholegrain.report.wording import conditions, promise
from wholegrain.runs.spec_sections import FederationSpec


def test_a_promise_names_unit_epsilon_delta_and_odds(proved: Path) -> None:
    run = secure(read_run(proved, "proved"))
    words = promise(run)
    epsilon = run.promise.epsilon
    assert (
        "limits what anybody can learn about any one person, with all of that person's records in every silo." in words
    )
    assert "simulation" not in words
    assert f"{epsilon:.4g}" in words
    assert f"{math.exp(epsilon):.1f}" in words
    assert "1e-05" in words


@pytest.mark.parametrize(
    ("unit", "otherwise"),
    [
        (Unit.SUBJECT, "if that person had not taken part"),
        (Unit.ITEM, "without that record"),
        (Unit.SILO, "with any other data in that silo"),
    ],
)
def test_a_promise_says_what_it_compares_with(proved: Path, unit: Unit, otherwise: str) -> None:
    run = secure(read_run(proved, "proved"))
    (found,) = (replace(each, unit=unit) for each in run.spent if each.unit == Unit.SUBJECT)
    told = promise(replace(run, spent=(found,), plan=replace(run.plan, unit=unit)))
    assert f"as likely as it would be {otherwise}, plus at most δ" in told


def test_a_simulation_says_would(proved: Path) -> None:
    run = read_run(proved, "proved")
    assert promise(run).startswith("This run is a simulation and protects nobody")
    assert "would limit" in promise(run)
    assert "protects nobody" in dict(conditions(run))["Noise"]
    assert "protects nobody" not in dict(conditions(secure(run)))["Noise"]


def test_where_nothing_is_proved_nothing_is_promised(printed: Path) -> None:
    words = promise(read_run(printed, "printed"))
    assert words.startswith("Nothing is promised")
    assert "limits" not in words


def test_conditions_name_bounds_and_what_is_not_covered(proved: Path) -> None:
    found = dict(conditions(read_run(proved, "proved")))
    assert "at most 12 records of a person in a silo; a person in at most 3 silos" in found["Assumes"]
    assert any("not private" in sentence for sentence in not_covered(read_run(proved, "proved")))
    assert found["Neighbouring"] == "all items of one subject added or removed, in every silo"


def test_a_run_that_goes_on_promises_by_its_plan(proved: Path) -> None:
    run = secure(read_run(proved, "proved"))
    assert "not at its end" not in promise(run)
    told = promise(replace(run, summary=None))
    assert "This run is not at its end; this is what it has spent so far, and ε = " in told
    assert "is planned for all 3 rounds." in told


def test_a_server_vouches_for_no_silos_noise(proved: Path) -> None:
    run = secure(read_run(proved, "proved"))
    facts = {"name": "a", "items": 5, "subjects": 5}
    server = run.spec.model_copy(update={"federation": FederationSpec(shape=(3,), classes=2, silos=(facts,))})
    assert "operating system" in dict(conditions(run))["Noise"]
    assert "the server cannot see" in dict(conditions(replace(run, spec=server)))["Noise"]
