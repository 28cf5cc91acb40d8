"""A run's folder: every file whole or not at all, whatever fails; and nothing goes on that is not the same run."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledgers import bodies
from small_runs import STEPS, Faults, contents, model, prepared, resume, start, stop_after, write_spec
from wholegrain.errors import LedgerError, RunError, WholegrainError
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.ledger_registry import LEDGER
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.spec import RunSpec


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.cli.run_commands.prepare", prepared)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from start to end, to compare with."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    start(out)
    return out


def assert_finished(out: Path, unbroken: Path) -> None:
    rounds = len((unbroken / "rounds.jsonl").read_text().splitlines())
    assert model(out) == model(unbroken)
    assert len((out / "rounds.jsonl").read_text().splitlines()) == rounds
    assert RunFolder.open(out).finished
    assert not list(out.rglob("*.partial"))
    with Ledger.open(out / LEDGER, create=False) as ledger:
        (run,) = ledger.state.runs.values()
        assert run.reserved == run.released
        assert set(run.reserved.values()) == {rounds * STEPS}


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [0, 1])
def test_whatever_operation_fails_the_run_goes_on_from_there(tmp_path: Path, recorded: int) -> None:
    """One round from the start, or one after a resume; each operation of it fails once, as on a full disk."""
    spec, unbroken = write_spec(tmp_path / "specs", recorded + 1), tmp_path / "unbroken"
    start(unbroken, spec)
    refused = 0
    for number in itertools.count():
        out = tmp_path / f"{number}" / "run"
        out.parent.mkdir()
        if recorded:
            stop_after(out, recorded, spec)
        faults = Faults(number, errno.ENOSPC)
        with faults.injected():
            said = refusal(lambda out=out: resume(out) if recorded else start(out, spec))
        if not faults.met:
            break
        if said is not None:  # making a folder that is there already may fail without harm
            assert_one_sentence(said, "disk is full", os.strerror(errno.ENOSPC))
            refused += 1
        if not out.exists():
            assert list(out.parent.iterdir()) == [], f"operation {number} left something"
            start(out, spec)
        else:
            resume(out)
        assert_finished(out, unbroken)
    assert refused > 30


def test_a_resume_removes_what_a_killed_process_had_begun_to_write(tmp_path: Path, unbroken: Path) -> None:
    """Also where the file itself is there already, so that the resumed run does not write it again."""
    out = tmp_path / "run"
    stop_after(out, 1)
    kept = max((out / "checkpoints").glob("*.safetensors"))
    for begun in (kept, out / "plan.json", out / "summary.json"):
        begun.with_name(f"{begun.name}.partial").write_bytes(b"half")
    resume(out)
    assert_finished(out, unbroken)


def refusal(call: Callable[[], None]) -> str | None:
    try:
        call()
    except WholegrainError as error:
        return str(error)
    return None


def assert_one_sentence(text: str, *any_of: str) -> None:
    assert text.endswith(".")
    assert "\n" not in text
    assert any(words in text for words in any_of), text


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "gone", tmp_path / "notes.txt"):
        with pytest.raises(RunError, match=r"holds no run|cannot be read"):
            resume(place)
    assert list(tmp_path.iterdir()) == [tmp_path / "notes.txt"]


def test_a_finished_run_is_left_as_it_is(unbroken: Path) -> None:
    before = contents(unbroken)
    resume(unbroken)
    assert contents(unbroken) == before


def test_a_folder_needs_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    spec = write_spec(tmp_path / "specs")
    monkeypatch.chdir(tmp_path / "empty")
    for place in (".", "..", "/"):
        with pytest.raises(RunError, match="--out"):
            start(Path(place), spec)
    assert list((tmp_path / "empty").iterdir()) == []


def test_an_empty_folder_becomes_the_run(tmp_path: Path, unbroken: Path) -> None:
    (tmp_path / "run").mkdir()
    start(tmp_path / "run")
    assert_finished(tmp_path / "run", unbroken)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("spec.json", '"count": 3', '"count": 4', "not the one that the run was started with"),
        ("spec.json", '"seed": 0', '"seed": 1', "not the one that the run was started with"),
        ("spec.json", '"patients": 40', '"patients": 41', "not the one that the run was started with"),
        ("spec.json", "{", "", "not valid"),
        ("plan.json", '"rounds": 3', '"rounds": 4', "plans the run"),
        ("plan.json", "{", "", "cannot be read"),
        ("plan.json", "{", "[" * 100_000 + "{", "cannot be read"),
        ("run.json", '"format": 1', '"format": 2', "another version"),
        ("run.json", '"run": "', '"run": "0', "another version|not what"),
        ("run.json", '"run": "', f'"run": "{"0" * 100}', "another version|not what"),
        ("run.json", '"run": "', '"run": "\\ud800', "another version|not what"),
        ("run.json", "{", "", "cannot be read"),
        ("run.json", "{", "[" * 100_000 + "{", "cannot be read"),
    ],
)
def test_a_changed_run_is_refused_and_nothing_is_written(
    tmp_path: Path, name: str, old: str, new: str, words: str
) -> None:
    out = tmp_path / "run"
    stop_after(out, 2)
    text = (out / name).read_text()
    assert old in text
    (out / name).write_text(text.replace(old, new, 1))
    before = contents(out)
    with pytest.raises(WholegrainError, match=words):
        resume(out)
    assert contents(out) == before
    (out / name).write_text(text)
    resume(out)


@pytest.mark.parametrize("name", ["spec.json", "plan.json", "run.json", "rounds.jsonl", LEDGER, f"{LEDGER}.heads"])
def test_a_file_that_is_gone_is_named(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    stop_after(out, 2)
    (out / name).unlink()
    before = contents(out)
    with pytest.raises(WholegrainError, match=name):
        resume(out)
    assert contents(out) == before


def test_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    stop_after(out, 2)
    before = contents(out)

    def with_other_data(spec: RunSpec) -> PreparedRun:
        usual = prepared(spec)
        name, silo = next(iter(usual.silos.items()))
        inputs = silo.data.inputs.copy()
        inputs[0, 0] += 1e-3
        return replace(usual, silos={**usual.silos, name: replace(silo, data=replace(silo.data, inputs=inputs))})

    monkeypatch.setattr("wholegrain.cli.run_commands.prepare", with_other_data)
    with pytest.raises(RunError, match="data is not what"):
        resume(out)
    assert contents(out) == before


def test_a_second_process_is_refused_while_the_first_is_at_work(tmp_path: Path, unbroken: Path) -> None:
    out = tmp_path / "run"
    stop_after(out, 2)
    hold = "import fcntl, os, sys; h = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(h, fcntl.LOCK_EX);"
    command = [sys.executable, "-c", hold + "print('held', flush=True); sys.stdin.read()", str(out / "lock")]
    before = contents(out)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="Another process"):
            resume(out)
        first.kill()
    assert contents(out) == before
    resume(out)
    assert_finished(out, unbroken)


def test_an_error_in_the_middle_is_not_taken_for_another_process(tmp_path: Path) -> None:
    folder = stop_after(tmp_path / "run", 1)
    with pytest.raises(BlockingIOError), folder.lock():
        raise BlockingIOError(errno.EAGAIN, "standard output is not ready")


@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_a_line_that_was_cut_short_is_played_again(tmp_path: Path, unbroken: Path, cut: int) -> None:
    out = tmp_path / "run"
    stop_after(out, 2)
    record = (out / "rounds.jsonl").read_bytes()
    lines = record.splitlines(keepends=True)
    (out / "rounds.jsonl").write_bytes(lines[0] + lines[1][: -min(cut, len(lines[1]))])
    resume(out)
    assert_finished(out, unbroken)


@pytest.mark.parametrize(
    "damaged", ["", "{}", "[]", "null", '{"round": 0}', "\0" * 30, "[" * 100_000, '{"round": 5, "cohort": []}']
)
def test_a_line_that_is_damaged_in_the_middle_is_named(tmp_path: Path, damaged: str) -> None:
    """The parameters are there, but what led to them is not: nothing is cut off that somebody could still repair."""
    out = tmp_path / "run"
    stop_after(out, 2)
    record = (out / "rounds.jsonl").read_text().splitlines()
    (out / "rounds.jsonl").write_text("\n".join([damaged, record[1], ""]))
    before = contents(out)
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        resume(out)
    assert contents(out) == before


def test_lines_without_a_checkpoint_are_played_again(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "specs")
    spec.write_text(spec.read_text() + "checkpoint_every = 2\n")
    start(tmp_path / "unbroken", spec)
    out = tmp_path / "run"
    assert stop_after(out, 1, spec)
    resume(out)
    assert_finished(out, tmp_path / "unbroken")


def test_a_ledger_that_does_not_know_the_run_is_refused(tmp_path: Path) -> None:
    """Whoever lost the ledger and began another would otherwise spend everything twice."""
    out = tmp_path / "run"
    stop_after(out, 2)
    for file in out.glob(f"{LEDGER}*"):
        file.unlink()
    Ledger.open(out / LEDGER).close()
    before = bodies(out / LEDGER)
    with pytest.raises(LedgerError, match="does not know the run"):
        resume(out)
    assert bodies(out / LEDGER) == before


def test_a_ledger_that_was_put_back_is_refused(tmp_path: Path) -> None:
    """Both files from an earlier copy: whole in themselves, but the run's record knows better."""
    out, early = tmp_path / "run", tmp_path / "early"
    stop_after(out, 1)
    shutil.copytree(out, early)
    stop_after(out, 2, go=resume)
    for file in early.glob(f"{LEDGER}*"):
        shutil.copy(file, out)
    before = bodies(out / LEDGER)
    with pytest.raises(LedgerError, match="put back"):
        resume(out)
    assert bodies(out / LEDGER) == before
