"""A disk that is full and folders that cannot be written, for real: one sentence, and everything earlier is intact.

Three ways, because not each is possible everywhere: a small disk of its own where one can be mounted, a limit on the
size of files, which every user may set, and folders without permission, for which root becomes somebody else.
"""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command import Command, Outcome
from small_runs import contents, model, prepared, start, stop_after, write_spec
from wholegrain.runs.ledger_registry import LEDGER

NOBODY = 65534


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.cli.run_commands.prepare", prepared)


@pytest.fixture
def unbroken(tmp_path: Path) -> Path:
    start(tmp_path / "unbroken")
    return tmp_path / "unbroken"


def assert_refused(outcome: Outcome, *any_of: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "unforeseen" not in outcome.err
    assert any(words in outcome.err for words in any_of), outcome.err


def assert_goes_on(wholegrain: Command, spec: Path, out: Path, unbroken: Path) -> None:
    """With room again: anew where there is no folder, otherwise from where it was."""
    if out.exists():
        outcome = wholegrain("resume", out, "--quiet")
    else:
        assert not [path for path in out.parent.iterdir() if path.name.startswith(".")], "a draft was left"
        outcome = wholegrain("run", spec, "--out", out, "--quiet")
    assert outcome.code == 0, outcome.err
    assert model(out) == model(unbroken)
    assert wholegrain("ledger", "verify", out).code == 0


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Writing beyond this fails, half done, as it would on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


TOO_LARGE = ("File too large", "disk I/O error", "disk is full")


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 100, 250, 400, 700, 1000, 1150, 2000, 4096, 6000, 8192, 12288, 16384])
def test_no_room_for_a_file(wholegrain: Command, tmp_path: Path, unbroken: Path, size: int) -> None:
    spec, out = write_spec(tmp_path), tmp_path / "folder" / "run"
    with no_file_beyond(size):
        outcome = wholegrain("run", spec, "--out", out, "--quiet")
    if size < 16384:
        assert_refused(outcome, *TOO_LARGE)
    assert_goes_on(wholegrain, spec, out, unbroken)


@pytest.mark.parametrize("size", [0, 100, 250, 400, 500, 700, 8192, 12288])
def test_no_room_to_go_on(wholegrain: Command, tmp_path: Path, unbroken: Path, size: int) -> None:
    spec, out = write_spec(tmp_path), tmp_path / "run"
    stop_after(out, 1, spec)
    before = (out / "rounds.jsonl").read_text()
    with no_file_beyond(size):
        assert_refused(wholegrain("resume", out, "--quiet"), *TOO_LARGE)
    assert (out / "rounds.jsonl").read_text().startswith(before)
    assert not list(out.rglob("*.partial"))
    assert_goes_on(wholegrain, spec, out, unbroken)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few pages; `resize` gives it more."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True, capture_output=True)


def fill(disk: Path, left: int) -> None:
    """Leave room for this many pages."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes((free.f_bavail - left) * free.f_bsize))


def test_a_full_disk(wholegrain: Command, tmp_path: Path, unbroken: Path, small_disk: Path) -> None:
    """From no room at all to enough, page by page: wherever the disk is full, it goes on once it is not."""
    spec = write_spec(tmp_path)
    for pages in range(40):
        out = small_disk / "folder" / "run"
        shutil.rmtree(out.parent, ignore_errors=True)
        out.parent.mkdir()
        fill(small_disk, pages)
        outcome = wholegrain("run", spec, "--out", out, "--quiet")
        (small_disk / "filler").unlink()
        if outcome.code == 0:
            break
        assert_refused(outcome, "No space left", "disk is full", "disk I/O error")
        assert_goes_on(wholegrain, spec, out, unbroken)
    assert 10 < pages < 39


def test_a_disk_that_cannot_be_written(wholegrain: Command, tmp_path: Path, unbroken: Path, small_disk: Path) -> None:
    spec, out = write_spec(tmp_path), small_disk / "run"
    stop_after(out, 1, spec)
    before = contents(out)
    remount(small_disk, "ro")
    assert_refused(wholegrain("resume", out, "--quiet"), "Read-only file system")
    assert_refused(wholegrain("run", spec, "--out", small_disk / "other"), "Read-only file system")
    assert wholegrain("ledger", "verify", out).code == 0
    assert wholegrain("ledger", "show", out).code == 0
    assert contents(out) == before
    remount(small_disk, "rw")
    assert [path.name for path in small_disk.iterdir()] == ["run"]
    assert_goes_on(wholegrain, spec, out, unbroken)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may look into; the one that pytest gives is for its owner alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write anywhere; nobody else may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def forbid(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def allow(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_run_without_permission(wholegrain: Command, open_folder: Path, unbroken: Path) -> None:
    spec, out = write_spec(open_folder / "specs"), open_folder / "run"
    stop_after(out, 1, spec)
    before = contents(open_folder)
    forbid(open_folder)
    with without_privileges():
        resumed = wholegrain("resume", out, "--quiet")
        begun = wholegrain("run", spec, "--out", open_folder / "other" / "run", "--quiet")
        verified = wholegrain("ledger", "verify", out)
        shown = wholegrain("ledger", "show", out)
    assert_refused(resumed, "Permission denied")
    assert_refused(begun, "Permission denied")
    assert verified.code == 0, verified.err
    assert shown.code == 0, shown.err
    assert contents(open_folder) == before
    allow(open_folder)
    assert_goes_on(wholegrain, spec, out, unbroken)


@pytest.mark.parametrize("name", ["run.json", "spec.json", "plan.json", "rounds.jsonl", "checkpoints", LEDGER])
def test_a_part_without_permission(wholegrain: Command, open_folder: Path, unbroken: Path, name: str) -> None:
    spec, out = write_spec(open_folder / "specs"), open_folder / "run"
    stop_after(out, 1, spec)
    for path in (out, *out.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (out / name).chmod(0)
    before = contents(out)
    with without_privileges():
        assert_refused(wholegrain("resume", out, "--quiet"), name)
    allow(out)
    assert contents(out) == before
    assert_goes_on(wholegrain, spec, out, unbroken)


@pytest.mark.parametrize(
    "place", ["closed/ledger.sqlite", "closed/deeper/ledger.sqlite", "spec.toml/ledger.sqlite", "."]
)
def test_a_ledger_that_cannot_be_written(wholegrain: Command, open_folder: Path, place: str) -> None:
    spec = write_spec(open_folder)
    spec.write_text(f'{spec.read_text()}[ledger]\npath = "{place}"\n')
    (open_folder / "closed").mkdir()
    (open_folder / "open").mkdir()
    (open_folder / "open").chmod(0o777)
    (open_folder / "closed").chmod(0o555)
    with without_privileges():
        outcome = wholegrain("run", spec, "--out", open_folder / "open" / "run", "--quiet")
    assert_refused(outcome, "ledger")
    assert list((open_folder / "open").iterdir()) == []
    assert list((open_folder / "closed").iterdir()) == []
