"""`wholegrain audit` as a user calls it: what it prints, and what its exit code says."""

import json
from pathlib import Path

import pytest
from torch import Tensor

from command import Command
from planted_faults import short_sums
from wholegrain.silo.noise import _Twister

SPEC = """
[data]
source = "clinics"
options = { patients = 80, clinics = 4, span = 1, visits = 3 }
[silos]
span = 1
[policy]
name = "subject_dp"
rate = 0.5
[privacy]
noise_multiplier = 1.0
[rounds]
count = 3
"""
FEW = ("--canaries", "400", "--runs", "6")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    short_sums(monkeypatch)
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


@pytest.mark.slow
def test_an_audit_says_what_it_did(wholegrain: Command, spec: Path, tmp_path: Path) -> None:
    outcome = wholegrain("audit", spec, *FEW, "--figure", tmp_path / "roc.svg")
    assert outcome.code == 0
    for words in ("PROVED", "95% confidence", "Verdict: consistent", "not private", "passed", "AUC"):
        assert words in outcome.out
    assert (tmp_path / "roc.svg").read_text().startswith("<svg")
    assert {path.name for path in tmp_path.iterdir()} <= {"small.toml", "roc.svg", "cache", "state"}


@pytest.mark.slow
def test_a_finished_run_is_audited_by_its_folder(wholegrain: Command, spec: Path, tmp_path: Path) -> None:
    wholegrain("run", spec, "--out", tmp_path / "run", "--quiet")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    by_folder = json.loads(wholegrain("audit", tmp_path / "run", *FEW, "--no-membership", "--json").out)
    by_spec = json.loads(wholegrain("audit", spec, *FEW, "--no-membership", "--json").out)
    assert by_folder == by_spec
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before
    assert by_spec["verdict"] == "consistent"
    assert by_spec["proved"]["standing"] == "PROVED"
    assert (by_spec["unit"], by_spec["canaries"], by_spec["runs"]) == ("subject", 400, 19)
    assert by_spec["lower_bound"] == max(each["epsilon"] for each in by_spec["findings"])
    assert {"attack", "view", "method", "trials", "epsilon", "refutes", "seen"} == set(by_spec["findings"][0])


@pytest.mark.slow
def test_a_violation_is_exit_code_one(wholegrain: Command, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Twister.add_to

    def half(self: _Twister, total: Tensor, multiplier: float, *norms: float) -> None:
        right(self, total, multiplier / 2, *norms)

    monkeypatch.setattr(_Twister, "add_to", half)
    outcome = wholegrain("audit", spec, "--canaries", "1000", "--runs", "6", "--no-membership")
    assert outcome.code == 1
    assert "Verdict: violation" in outcome.out
    assert "noise where nothing else is" in outcome.out


@pytest.mark.slow
def test_items_too(wholegrain: Command, spec: Path) -> None:
    facts = json.loads(wholegrain("audit", spec, *FEW, "--unit", "item", "--json").out)
    assert facts["unit"] == "item"
    assert facts["verdict"] == "consistent"
    assert "membership (not private)" not in facts


@pytest.mark.slow
def test_where_nothing_is_promised(wholegrain: Command, spec: Path) -> None:
    changes = ("--set", "policy.name=fedavg", "--set", "privacy.noise_multiplier=1.0")
    facts = json.loads(wholegrain("audit", spec, *changes, *FEW, "--no-membership", "--json").out)
    assert facts["verdict"] == "nothing promised"
    assert facts["proved"]["epsilon"] is None
    assert facts["lower_bound"] > 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--unit", "silo"), "for the unit 'silo' there is none"),
        (("--canaries", "3"), "are the fewest"),
        (("--runs", "1"), "are the fewest"),
        (("--confidence", "1.5"), "between 0 and 1"),
        (("--figure", "x.svg", "--no-membership"), "left out"),
        (("--figure", "x.svg", "--unit", "item"), "left out"),
        (("--figure", "x.pdf"), ".svg or .png"),
        (("--figure", "nowhere/x.svg"), "no folder"),
    ],
)
def test_bad_input_is_one_sentence(wholegrain: Command, spec: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = wholegrain("audit", spec, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_run_is_audited_as_it_was(wholegrain: Command, spec: Path, tmp_path: Path) -> None:
    wholegrain("run", spec, "--out", tmp_path / "run", "--quiet")
    outcome = wholegrain("audit", tmp_path / "run", "--set", "rounds.count=1")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--set is for specs" in outcome.err
    assert wholegrain("audit", tmp_path).code == 2
