"""Arguments that are odd to the last character still get one line and exit code 2."""

from pathlib import Path

import pytest

from command import Command, Outcome
from ledgers import guard_on
from wholegrain.privacy.ledger import Ledger


def assert_refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "unforeseen" not in outcome.err
    for word in words:
        assert word in outcome.err


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as opened:
        guard_on(opened).reserve(0, {"north": 1}, "start")
    return path


@pytest.mark.parametrize("change", ["policy.name=two\nlines", "data.source=two\rlines", "ledger.data=\udcff"])
def test_a_name_in_a_spec(wholegrain: Command, clinics: Path, change: str) -> None:
    assert_refused(wholegrain("plan", clinics, "--set", change))


@pytest.mark.parametrize("verb", ["show", "verify"])
@pytest.mark.parametrize("place", ["x" * 300, "gone", "gone/ledger.sqlite", "."])
def test_a_ledger_that_cannot_be(wholegrain: Command, tmp_path: Path, verb: str, place: str) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(wholegrain("ledger", verb, tmp_path / "empty" / place), "ledger")
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("head", ["", "x", "1", "9" * 20, "9" * 20 + " " + "0" * 64, "9" * 5000 + " a", "-1 a", "1 a"])
def test_a_head_that_is_none(wholegrain: Command, ledger: Path, head: str) -> None:
    assert_refused(wholegrain("ledger", "verify", ledger, "--head", head), "does not hold the head")


def test_a_head_that_was_noted(wholegrain: Command, ledger: Path) -> None:
    with Ledger.open(ledger) as opened:
        noted, number = opened.hash_of(2), 2
    assert wholegrain("ledger", "verify", ledger, "--head", f"{number} {noted}").code == 0
    assert wholegrain("ledger", "verify", ledger, "--head", str(noted)).code == 0
    assert_refused(wholegrain("ledger", "verify", ledger, "--head", f"3 {noted}"), "does not hold")


@pytest.mark.parametrize("out", [".", "/", "x" * 300, "spec.toml/run"])
def test_a_folder_that_cannot_be(
    wholegrain: Command, clinics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "spec.toml").write_bytes(clinics.read_bytes())
    monkeypatch.chdir(tmp_path / "empty")
    assert_refused(wholegrain("run", clinics, "--out", out))
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["spec.toml"]
