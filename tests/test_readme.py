"""The Python and the commands of README and docs print what they are said to print."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from command import Command, Outcome
from wholegrain.cli import demo
from wholegrain.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SUMS = (ROOT / "docs" / "secure-sums.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"```console\n\$ (wholegrain (?:calibrate|account).*?)\n(.*?)```", README + SUMS, re.S)

PAGE = (ROOT / "docs" / "soundness.md").read_text(encoding="utf-8")
SOUNDNESS = re.findall(r"^\$ (wholegrain .*)\n((?:[^$`].*\n)+)", PAGE, re.M)


@pytest.mark.slow
def test_twelve_lines_print_what_they_should() -> None:
    code, output = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.S).groups()  # type: ignore[union-attr]
    assert code == (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert code.count("\n") == 12
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == output


@pytest.mark.parametrize(("command", "output"), CONSOLES)
def test_commands_print_what_they_should(wholegrain: Command, command: str, output: str) -> None:
    assert wholegrain(*command.split()[1:]) == Outcome(0, output, "")


@pytest.mark.slow
def test_the_run_prints_what_it_should(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command, output = re.search(r"```console\n\$ (wholegrain run .*?)\n(.*?)```", README, re.S).groups()  # type: ignore[union-attr]
    assert timeless(printed(command, tmp_path)) == timeless(output)


@pytest.mark.slow
def test_the_demo_prints_what_it_should(tmp_path: Path) -> None:
    """`make demo` is this command; its table comes out of the survey and the seeds alone."""
    (output,) = re.findall(r"```text\n(nlswork: .*?)```", README, re.S)
    assert timeless(printed("wholegrain demo", tmp_path)) == timeless(output)
    assert re.search(r"^demo:.*\n\t.*wholegrain demo", (ROOT / "Makefile").read_text(), re.M)
    _demo_keeps_its_promises(json.loads(printed("wholegrain demo --json", tmp_path))["runs"])  # prices are kept by now


def _demo_keeps_its_promises(shown: list[dict[str, Any]]) -> None:
    runs = {run["label"]: run for run in shown}
    assert list(runs) == [label for label, *_ in demo.LINEUP]
    accuracy = {label: run["scores (not private)"]["test"]["accuracy"] for label, run in runs.items()}
    subject = {label: run["spent"][0] for label, run in runs.items()}
    private = [label for label, promise in subject.items() if (promise["epsilon"] or 99) <= 4]
    assert all(subject[label]["standing"] == "PROVED" for label in private)
    assert max(accuracy[label] for label in private) > accuracy["fedavg"] - 0.02
    assert subject["local_item_dp (item)"]["epsilon"] > 100


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
)
def test_every_command_in_the_text_exists(page: str) -> None:
    """Verbs and options that are only mentioned in passing are those of this version."""
    for line in re.findall(r"`wholegrain ([a-z][^`]*)`", (ROOT / page).read_text("utf-8")):
        command: click.Command = typer.main.get_command(app)
        for word in line.split():
            if not isinstance(command, click.Group):
                break
            context = click.Context(command)
            assert word in command.list_commands(context), f"{page}: wholegrain {line}"
            command = command.resolve_command(context, [word])[1] or command
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert set(re.findall(r"--[a-z-]+", line)) <= known, f"{page}: wholegrain {line}"


@pytest.mark.parametrize(("command", "beginning"), SOUNDNESS)
def test_soundness_shows_how_outputs_begin(wholegrain: Command, command: str, beginning: str) -> None:
    assert wholegrain(*command.split()[1:]).out.startswith(beginning)


@pytest.mark.parametrize(
    ("change", "epsilon"), [("--accountant rdp", "8.878"), ("--steps 312", "3.686")], ids=["rdp", "fewer steps"]
)
def test_soundness_says_what_the_first_command_gives_otherwise(wholegrain: Command, change: str, epsilon: str) -> None:
    command = f"{SOUNDNESS[0][0]} {change}"
    assert f"epsilon            {epsilon}\n" in wholegrain(*command.split()[1:]).out
    assert epsilon in PAGE


def printed(command: str, folder: Path | None = None) -> str:
    program = Path(sys.executable).parent / "wholegrain"
    done = subprocess.run([program, *command.split()[1:]], capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout


def timeless(text: str) -> str:
    """Without seconds, of a whole run and in the last column of a table, and without the spaces that fill a line."""
    return re.sub(r"in \d+\.\d s\b| +\d+\.\d *$| +$", "", text, flags=re.M)


def test_every_package_is_on_the_map() -> None:
    inside = (ROOT / "src" / "wholegrain").glob("*/__init__.py")
    beside = (path for path in (ROOT / "src").glob("*/__init__.py") if path.parent.name != "wholegrain")
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (*inside, *beside)}
    assert {name for name in packages if f"`{name}/`" not in README} == set()


def test_the_landing_page_shows_what_the_demo_prints() -> None:
    """Each row of its table is a row of the demo's, which another test compares with what the demo prints."""
    (output,) = re.findall(r"```text\n(nlswork: .*?)```", README, re.S)
    shown = {tuple(line.split()[-5:-2]) for line in output.splitlines() if re.search(r"\d%", line)}
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in home.splitlines() if "% |" in line]
    assert len(rows) == 5
    assert {tuple(row[1:]) for row in rows} <= shown


def test_the_landing_page_begins_as_the_readme_does() -> None:
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    (code,), (output,) = (re.findall(rf"```{kind}\n(.*?)```", home, re.S) for kind in ("python", "text"))
    assert f"```text\n{output}```" in README  # which another test compares with what the code prints
    assert code == (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
