"""Commands that the pages of docs show are run here, and print what the pages say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import Command

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def shown(page: str, verb: str) -> tuple[list[str], str]:
    """A command of a page and the output under it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"```console\n\$ (?:PYTHONPATH=\S+ )?wholegrain ({verb}.*?)\n(.*?)```", text, re.S)
    assert found, f"{page} shows no '{verb}'"
    return found[1].split(), found[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples, as after a clone."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_federation_init(wholegrain: Command, here: Path) -> None:
    command, _ = shown("operate-a-federation.md", "federation init")
    assert wholegrain(*command).code == 0
    assert (here / "fed" / "north" / "silo.toml").exists()


@pytest.mark.slow
def test_report(wholegrain: Command, here: Path) -> None:
    wholegrain("run", "examples/own_table/visits.toml", "--out", "runs/visits", "--quiet")
    command, output = shown("reports.md", "report")
    assert wholegrain(*command).out == output
    assert (here / "visits.html").stat().st_size > 500_000


@pytest.mark.slow
def test_text(wholegrain: Command, here: Path) -> None:
    pytest.importorskip("tokenizers")
    command, output = shown("tasks.md", "run examples/own_text")
    found = wholegrain(*command).out
    told, shown_lines = ([line.rstrip() for line in text.splitlines()][:14] for text in (found, output))
    assert [without_numbers(line) for line in told] == [without_numbers(line) for line in shown_lines]
    for line, other in zip(told, shown_lines, strict=True):  # products are rounded otherwise on other processors
        assert numbers(line) == pytest.approx(numbers(other), abs=2e-3)


NUMBER = re.compile(r"(?<![\w.])\d+\.\d+")


def numbers(line: str) -> list[float]:
    return [float(each) for each in NUMBER.findall(line)]


def without_numbers(line: str) -> str:
    return NUMBER.sub("#", line)


def test_own_policy(wholegrain: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "own-policy.md").read_text(encoding="utf-8")
    assert (here / "examples" / "my_policies.py").read_text() in text
    monkeypatch.syspath_prepend(str(here / "examples"))
    command, _ = shown("own-policy.md", "plan")
    planned = wholegrain(*command)
    assert planned.code == 0
    assert "by sampling people and averaging their clipped gradients" in planned.out
    assert re.search(r"subject +3\.999 +1e-05 +PROVED", planned.out)


COUNTED = re.compile(r"hits \d\.\d+, alarms \d\.\d+")


@pytest.mark.slow
def test_audit(wholegrain: Command, here: Path) -> None:
    command, output = shown("audit.md", "audit")
    audited = wholegrain(*command)
    assert audited.code == 0
    # Where hits and alarms are counted is a threshold, on either side of which last bits decide.
    told, shown_lines = (
        [COUNTED.sub("", line).rstrip() for line in text.splitlines()] for text in (audited.out, output)
    )
    assert told == shown_lines


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_ledger_of_a_run(wholegrain: Command, here: Path, verb: str) -> None:
    wholegrain("run", "examples/own_table/visits.toml", "--out", "runs/visits", "--quiet")
    told = wholegrain("ledger", verb, "runs/visits")
    assert told.code == 0
    assert "head" in told.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:row", "cannot be imported"),
        ("my_policies:two_clip", "cannot be imported"),
    ],
)
def test_a_policy_that_is_none(
    wholegrain: Command, here: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.syspath_prepend(str(here / "examples"))
    refused = wholegrain("plan", "examples/clinics.toml", "--set", f"policy.name={name}")
    assert refused.code == 2
    assert refused.err.startswith("error: ")


@pytest.mark.slow
def test_several_processes(here: Path) -> None:
    (command,) = re.findall(r"^wholegrain (run examples/.*)$", (DOCS / "engines.md").read_text(encoding="utf-8"), re.M)
    done = subprocess.run(
        [sys.executable, "-m", "wholegrain", *command.split()], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (here / "runs" / "clinics" / "model.safetensors").exists()
