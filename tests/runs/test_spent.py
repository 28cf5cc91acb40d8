"""ε is what was spent: rounds that are played again with secure noise are new releases, wherever ε is shown."""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command import Command
from small_runs import PLAYED, SILOS, STEPS, prepared, secure_spec, stop_after
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.definitions import Standing
from wholegrain.privacy.events import repeat, sampled_gaussian
from wholegrain.privacy.ledger import Ledger
from wholegrain.report.live_page import LiveRuns, _page
from wholegrain.report.run_reader import read_run
from wholegrain.runs.ledger_registry import LEDGER
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.run_identity import data_digest
from wholegrain.runs.run_result import RunResult

AGAIN = 12


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.cli.run_commands.prepare", prepared)


def expected(rounds: int) -> float:
    step = sampled_gaussian(0.5, 6.0)
    return PldAccountant().epsilon(repeat(step, rounds * STEPS * SILOS), 1e-5)


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> list[RunResult]:
    """Every run that came to its end, as the library gives it."""
    found: list[RunResult] = []
    finish = RunFolder.finish

    def keeping(folder: RunFolder, run: RunResult) -> None:
        found.append(run)
        finish(folder, run)

    monkeypatch.setattr(RunFolder, "finish", keeping)
    return found


def replayed(out: Path, wholegrain: Command, **changes: Any) -> str:
    """A run that was killed when it had played twelve rounds, and began again; what it printed at its end."""
    stop_after(out, AGAIN, secure_spec(out.parent / "specs", **changes))
    outcome = wholegrain("resume", out, "--quiet")
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_spent_is_what_the_ledger_says_wherever_it_is_shown(
    tmp_path: Path, wholegrain: Command, finished: list[RunResult]
) -> None:
    out = tmp_path / "run"
    printed = replayed(out, wholegrain)
    planned, spent = expected(PLAYED), expected(PLAYED + AGAIN)
    assert spent > 1.3 * planned
    shown = json.loads(wholegrain("ledger", "show", out, "--json").out)
    (run,) = shown["accounts"][0]["runs"]
    assert run["steps_reserved"] == (PLAYED + AGAIN) * STEPS * SILOS
    assert run["silo_rounds_replayed"] == AGAIN * SILOS
    assert run["spent"] == {"epsilon": spent, "accountant": "pld"}
    assert f"{spent:.4g}" in wholegrain("ledger", "show", out).out

    summary = json.loads((out / "summary.json").read_text())
    of = {name: next(g for g in summary[name] if g["unit"] == "subject") for name in ("spent", "planned")}
    assert (of["spent"]["epsilon"], of["planned"]["epsilon"]) == (spent, planned)
    assert of["spent"]["standing"] == "PROVED"
    assert "played again" in of["spent"]["because"]

    row, *_ = [line.split() for line in printed.splitlines() if line.strip().startswith("subject")]
    assert row[1:3] == [f"{spent:.4g}", f"{planned:.4g}"]
    assert str(finished[0].guarantee).startswith(f"subject: ε = {spent:.4g}, δ = 1e-05, PROVED by pld")
    assert finished[0].plan.guarantee().epsilon == planned
    assert finished[0].rounds[-1].epsilon == spent

    record = read_run(out, "run")
    assert (record.promise.epsilon, record.plan.promise.epsilon) == (spent, planned)
    for page in (_page(LiveRuns([out])), _report(wholegrain, out, tmp_path / "page.html")):
        promise = re.search(r'<p class="promise">(.*?)</p>', page)
        assert promise is not None
        assert f"ε = {spent:.4g}" in promise[1]
        assert f"{planned:.4g}" not in promise[1]
        assert f"<dd>{spent:.4g}, 1e-05; planned: ε = {planned:.4g}</dd>" in page


def _report(wholegrain: Command, out: Path, page: Path) -> str:
    assert wholegrain("report", out, "--out", page).code == 0
    return page.read_text()


def test_a_run_that_goes_on_shows_what_it_has_spent_so_far(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stop_after(out, 5, secure_spec(tmp_path / "specs"))
    record = read_run(out, "run")
    assert record.promise.epsilon == expected(5)
    assert record.plan.promise.epsilon == expected(PLAYED)
    assert "what it has spent so far" in _page(LiveRuns([out]))


def test_without_its_ledger_nothing_is_proved_of_a_run_that_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stop_after(out, 2, secure_spec(tmp_path / "specs"))
    (tmp_path / "state" / LEDGER).rename(tmp_path / "elsewhere")
    record = read_run(out, "run")
    assert not record.ledger.whole
    assert record.promise.standing is Standing.NONE
    assert "nobody knows what was spent" in record.promise.because


def test_a_run_within_its_own_budget_ends_when_replayed_rounds_have_used_it_up(
    tmp_path: Path, wholegrain: Command, finished: list[RunResult]
) -> None:
    """The limit is the plan's own: what was spent never exceeds it, and the run says how far it came."""
    out = tmp_path / "run"
    spec = secure_spec(tmp_path / "specs", epsilon=None)
    spec.write_text(spec.read_text().replace("epsilon = 9.0", f"epsilon = {expected(PLAYED) * 1.0001}"))
    stop_after(out, AGAIN, spec)
    assert "2 of 14 rounds (the budget is spent)" in " ".join(wholegrain("resume", out, "--quiet").out.split())
    assert finished[0].guarantee.epsilon == expected(PLAYED) == finished[0].account.price.epsilon
    assert finished[0].account.price.way == "pld"


# Accounts that others spend from, too.


def test_a_later_run_on_the_account_is_priced_by_a_filter_and_says_so(tmp_path: Path, wholegrain: Command) -> None:
    spec = secure_spec(tmp_path / "specs")
    for name in ("first", "second"):
        assert wholegrain("run", spec, "--out", tmp_path / name, "--quiet").code == 0
    facts = json.loads((tmp_path / "second" / "summary.json").read_text())
    own = next(g for g in facts["spent"] if g["unit"] == "subject")
    assert (own["epsilon"], own["accountant"]) == (expected(PLAYED), "pld")
    account = facts["account"]
    assert (account["runs"], account["accountant"], account["epsilon"]) == (2, "Rényi filter", 40.0)
    assert expected(2 * PLAYED) < account["spent"] < 1.4 * expected(2 * PLAYED)
    told = wholegrain("ledger", "show", tmp_path / "second").out
    assert "Rényi filter" in told
    assert f"{account['spent']:.4g}" in told
    page = _page(LiveRuns([tmp_path / "second"]))
    assert f"spent (by {account['accountant']}; runs: 2)" in page
    assert f"{account['spent']:.4g} of 40" in page


def test_another_budget_on_the_data_is_told_what_is_gone(
    tmp_path: Path, wholegrain: Command, caplog: pytest.LogCaptureFixture
) -> None:
    first = secure_spec(tmp_path / "a", epsilon=None)
    second = secure_spec(tmp_path / "b", epsilon=None, budget="trial")
    assert wholegrain("run", first, "--out", tmp_path / "first", "--quiet").code == 0
    assert "is a new one" not in caplog.text
    printed = wholegrain("run", second, "--out", tmp_path / "second", "--quiet").out
    assert f"the data's 1 other(s) have spent ε = {expected(PLAYED):.4g} for each subject" in caplog.text
    shown = json.loads(wholegrain("ledger", "show", tmp_path / "second", "--json").out)
    assert [account["spent"]["subject"]["epsilon"] for account in shown["accounts"]] == [expected(PLAYED)] * 2
    (data,) = shown["data"]
    whole = data["spent"]["subject"]
    assert (data["data"], data["budgets"], whole["accountant"]) == ("patients", 2, "Rényi filter")
    assert whole["epsilon"] > expected(2 * PLAYED)
    assert f"The data over all its budgets (2): ε = {whole['epsilon']:.4g}" in " ".join(printed.split())
    assert "over all 2 budgets" in wholegrain("ledger", "show", tmp_path / "second").out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "privacy.delta=1e-6",
            "was opened for each subject at δ = 1e-05, and the run is for each subject at δ = 1e-06",
        ),
        ("privacy.unit=item", "was opened for each subject at δ = 1e-05, and the run is for each item at δ = 1e-05"),
    ],
)
def test_a_run_for_another_unit_or_delta_is_refused_on_the_account(
    tmp_path: Path, wholegrain: Command, change: str, said: str
) -> None:
    spec = secure_spec(tmp_path / "specs")
    assert wholegrain("run", spec, "--out", tmp_path / "first", "--quiet").code == 0
    outcome = wholegrain(
        "run", spec, "--out", tmp_path / "second", "--quiet", "--set", change, "--set", "privacy.epsilon=30"
    )
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())
    assert not (tmp_path / "second").exists()


def test_a_run_of_ones_own_budget_is_alone_on_it(tmp_path: Path, wholegrain: Command) -> None:
    spec = secure_spec(tmp_path / "specs", epsilon=None)
    assert wholegrain("run", spec, "--out", tmp_path / "first", "--quiet").code == 0
    outcome = wholegrain("run", spec, "--out", tmp_path / "second", "--quiet")
    assert outcome.code == 2
    assert "alone; open another one by name" in " ".join(outcome.err.split())


# What tells the data from other data is keyed with a secret of this machine.


def test_the_digest_of_a_release_cannot_be_computed_from_its_folder(tmp_path: Path, wholegrain: Command) -> None:
    out = tmp_path / "run"
    folder = stop_after(out, 2, secure_spec(tmp_path / "specs"))
    identity = json.loads((out / "run.json").read_text())
    guess = prepared(folder.spec).silos
    assert data_digest(guess, identity["run"].encode()) != identity["data"]
    assert wholegrain("resume", out, "--quiet").code == 0


def test_a_release_cannot_be_resumed_without_its_key(tmp_path: Path, wholegrain: Command) -> None:
    out = tmp_path / "run"
    stop_after(out, 2, secure_spec(tmp_path / "specs"))
    for key in (tmp_path / "state" / "keys").iterdir():
        key.unlink()
    outcome = wholegrain("resume", out, "--quiet")
    assert outcome.code == 2
    assert "started on another machine, which has the key" in " ".join(outcome.err.split())


def test_a_release_of_the_first_version_is_resumed_by_its_own_key(tmp_path: Path, wholegrain: Command) -> None:
    out = tmp_path / "run"
    folder = stop_after(out, 2, secure_spec(tmp_path / "specs"))
    identity = json.loads((out / "run.json").read_text())
    del identity["key"]
    identity["data"] = data_digest(prepared(folder.spec).silos, identity["run"].encode())
    (out / "run.json").write_text(json.dumps(identity))
    assert wholegrain("resume", out, "--quiet").code == 0


# Whoever else has an account on this machine reads none of it.


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0, 0o022])
def test_state_is_its_owners_alone_whatever_the_umask(tmp_path: Path, wholegrain: Command, mask: int) -> None:
    with umask(mask):
        stop_after(tmp_path / "run", 2, secure_spec(tmp_path / "specs"))
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {LEDGER, f"{LEDGER}.heads", "ledgers.json"} <= names
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {"0o600"}
    folders = [tmp_path / "state", *(path for path in (tmp_path / "state").rglob("*") if path.is_dir())]
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in folders} == {"0o700"}


def test_a_ledger_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    with umask(0):
        Ledger.open(tmp_path / LEDGER).close()
        (tmp_path / LEDGER).chmod(0o666)
        (tmp_path / f"{LEDGER}.heads").chmod(0o666)
        with Ledger.open(tmp_path / LEDGER) as ledger, ledger.writing():
            journal = [path for path in tmp_path.iterdir() if path.name.endswith("-journal")]
            assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in journal)
    for name in (LEDGER, f"{LEDGER}.heads"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
