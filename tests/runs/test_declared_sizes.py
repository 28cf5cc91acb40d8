"""Sizes are what the owner declares: nothing public follows from how many rows there are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import wholegrain as wg
from command import Command
from wholegrain.errors import DataError, LedgerError, SpecError
from wholegrain.runs.data_description import describe
from wholegrain.runs.datasets import split_dataset
from wholegrain.runs.declared_sizes import EVERY, declared_sizes, round_to_two_digits
from wholegrain.runs.plan_record import PlanRecord
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

SIZE = {"items": 400, "subjects": 90}
NAMED = {f"clinic-{number}": SIZE for number in range(3)}
UNIFORM = {"partition": "uniform", "count": 4}


def people(patients: int = 60) -> wg.Dataset:
    return wg.clinics(patients=patients, clinics=3, span=2, visits=4)


def spec(noise: str = "secure", **silos: Any) -> RunSpec:
    return RunSpec.of(
        {
            "silos": silos,
            "policy": {"name": "subject_dp", "batch_size": 30, "pool": "mean"},
            "privacy": {"epsilon": 4.0, "noise": noise},
            "rounds": {"count": 2, "averaging": "items"},
        }
    )


@pytest.mark.parametrize(
    ("silos", "line"),
    [
        ({}, "north = { items = 4000, subjects = 900 }"),
        ({"sizes": {EVERY: SIZE}}, "north = "),
        (UNIFORM, '"*" = { items = 4000, subjects = 900 }'),
        ({**UNIFORM, "sizes": {"silo-1": SIZE}}, '"*" = '),
    ],
    ids=str,
)
def test_a_release_needs_sizes_and_the_refusal_names_the_lines(silos: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        prepare(spec(**silos), dataset=people())
    assert "[silos.sizes]" in str(caught.value)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("silos", [{"sizes": NAMED}, {**UNIFORM, "sizes": {EVERY: SIZE}}], ids=["column", "uniform"])
def test_a_release_tells_the_same_whoever_is_there(silos: dict[str, Any], tmp_path: Path) -> None:
    """Plan, guarantees and weights of 60 and of 6 people; and what the folder says before the first round."""
    plans, records = [], []
    for patients in (60, 6):
        prepared = prepare(spec(**silos, items_per_subject=4), dataset=people(patients))
        plans.append(PlanRecord.of(prepared.plan).facts())
        folder = RunFolder.create(tmp_path / str(patients), prepared)
        files = {path.name for path in folder.path.iterdir()} - {"run.json"}
        records.append({name: (folder.path / name).read_bytes() for name in files if (folder.path / name).is_file()})
    assert plans[0] == plans[1]
    assert records[0] == records[1]
    assert {silo["items"] for silo in plans[0]["silos"]} == {400}
    assert all(not guarantee["counted_sizes"] for guarantee in plans[0]["guarantees"])


def test_the_rate_and_the_divisor_follow_from_what_is_declared() -> None:
    prepared = prepare(spec(sizes=NAMED), dataset=people())
    for policy, facts in prepared.plan.rows:
        assert (facts.items, facts.subjects, facts.declared) == (400, 90, True)
        assert policy.sampling.rate == 30 / 90
        assert policy.divisor.value == 30


def test_a_declared_silo_without_anybody_still_trains() -> None:
    sizes = {**NAMED, "clinic-9": SIZE}
    prepared = prepare(spec(sizes=sizes), dataset=people())
    assert prepared.silos["clinic-9"].data.items == 0
    assert len(prepared.plan.rows) == 4
    with open_guard(prepared, "a run") as guard:
        run = execute(prepared, guard)
    assert torch.isfinite(run.vector).all()
    assert not any(done.faults for done in run.rounds)


def test_rows_of_a_silo_that_is_not_declared_are_refused_in_a_release() -> None:
    sizes = {name: size for name, size in NAMED.items() if name != "clinic-2"}
    with pytest.raises(DataError, match=r"rows of a silo 'clinic-2', of which silos\.sizes says nothing"):
        prepare(spec(sizes=sizes), dataset=people())
    assert split_dataset(people(), spec("seeded", sizes=sizes)).silos["clinic-2"].facts.declared is False


def test_a_simulation_may_count_and_says_so() -> None:
    counted, declared = (
        prepare(spec("seeded", items_per_subject=4, **silos), dataset=people()).plan
        for silos in ({}, {"sizes": {EVERY: SIZE}})
    )
    assert str(counted.guarantee()).endswith("(simulation: seeded noise, sizes read off the data)")
    assert str(declared.guarantee()).endswith("(simulation: seeded noise)")
    assert {facts.declared for _, facts in counted.rows} == {False}


def test_a_size_for_a_silo_that_a_partition_does_not_make_is_refused() -> None:
    with pytest.raises(SpecError, match="names the silo 'north', and the partition 'uniform' makes silo-0 to silo-3"):
        prepare(spec("seeded", **UNIFORM, sizes={"north": SIZE}), dataset=people())


def test_one_line_stands_for_all_and_another_for_one_of_them() -> None:
    other = {"items": 10, "subjects": 5}
    sizes = declared_sizes(spec(**UNIFORM, sizes={EVERY: SIZE, "silo-2": other}).silos)
    assert [sizes.named[f"silo-{number}"].items for number in range(4)] == [400, 400, 10, 400]


@pytest.mark.parametrize("size", [{"items": 0, "subjects": 1}, {"items": 3, "subjects": 4}, {"items": 3}], ids=str)
def test_sizes_that_cannot_be_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=r"silos\.sizes\.north"):
        spec(sizes={"north": size})


def test_an_unknown_key_of_a_size_is_told_with_what_is_known_there() -> None:
    with pytest.raises(SpecError, match=r"unknown key 'silos\.sizes\.north\.item'.*known here: items, subjects"):
        spec(sizes={"north": {"items": 4, "subjects": 2, "item": 3}})


def test_the_digest_of_a_release_needs_the_machines_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, whoever guesses the data could confirm the guess from run.json."""

    def digest(folder: str) -> str:
        made = RunFolder.create(tmp_path / folder, prepare(spec(sizes=NAMED), dataset=people()))
        again = prepare(spec(sizes=NAMED), dataset=people())
        assert made.start(again).state.round == 0
        return str(json.loads((made.path / "run.json").read_text())["data"])

    monkeypatch.setattr("wholegrain.runs.run_folder.secrets.token_hex", lambda size: "0123456789abcdef")
    monkeypatch.setattr("wholegrain.runs.datasets.secret_key", lambda name: bytes(32))  # the very same silos
    here = digest("here")
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "another machine"))
    assert digest("there") != here


def test_describe_proposes_round_numbers_of_what_is_trained_on() -> None:
    data = {"source": "clinics", "options": {"patients": 500, "clinics": 2, "span": 1}}
    asked = RunSpec.of({"data": data, "policy": {"rate": 0.5}, "evaluation": {"test": 0.5}})
    proposed = describe(asked)["proposed_sizes"]
    trained = split_dataset(wg.clinics(patients=500, clinics=2, span=1), asked).silos
    assert proposed == {
        name: {"items": round_to_two_digits(silo.data.items), "subjects": round_to_two_digits(silo.data.subject_count)}
        for name, silo in trained.items()
    }
    together = RunSpec.of({**asked.model_dump(), "silos": {**UNIFORM}})
    assert list(describe(together)["proposed_sizes"]) == [EVERY]


def test_what_describe_proposes_can_be_written_into_a_spec(wholegrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        '[data]\nsource = "clinics"\noptions = { patients = 90, clinics = 3 }\n[policy]\nrate = 0.5\n'
        '[privacy]\nepsilon = 4.0\nnoise = "secure"\n'
    )
    assert "[silos.sizes]" in wholegrain("plan", path).err
    shown = wholegrain("data", "describe", path).out
    path.write_text(path.read_text() + shown[shown.index("[silos.sizes]") :])
    assert "PROVED" in wholegrain("plan", path).out


FEDERATION = {"shape": [6], "classes": 2, "silos": [{"name": "clinic-0", **SIZE}]}


def test_a_section_on_a_federation_frees_nobody_from_declaring() -> None:
    """It is for a server, which holds no data; whoever holds some declares silos and sizes."""
    asked = RunSpec.of({**spec(sizes={EVERY: SIZE}).model_dump(), "federation": FEDERATION})
    with pytest.raises(SpecError, match="not read off the data"):
        prepare(asked, dataset=people())


def test_a_section_on_a_federation_opens_no_second_ledger(tmp_path: Path) -> None:
    for name in ("first", "second"):
        given = spec(sizes=NAMED).model_dump()
        given["ledger"] = {"data": "clinics", "path": str(tmp_path / f"{name}.sqlite")}
        prepared = prepare(RunSpec.of({**given, "federation": FEDERATION}), dataset=people())
        if name == "first":
            with open_guard(prepared, name):
                pass
        else:
            with (
                pytest.raises(LedgerError, match=r"keeps the account of the data 'clinics'"),
                open_guard(prepared, name),
            ):
                pass


def test_a_release_counts_no_classes_wherever_its_data_comes_from() -> None:
    data = wg.from_torch((torch.rand(6, 2), torch.arange(6) % 3), subjects=range(6), silos=["clinic-0"] * 6)
    with pytest.raises(SpecError, match="number of classes is public"):
        prepare(spec(sizes=NAMED), dataset=data)
