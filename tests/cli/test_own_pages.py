"""The pages on one's own table and model: their commands print what they are said to print, one after the other."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import Command

ROOT = Path(__file__).parents[2]
DATA = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")
MODEL = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")


def consoles(page: str) -> list[tuple[str, str]]:
    """Commands with the output that is shown below them."""
    return re.findall(r"^\$ (wholegrain .*)\n((?:[^$`].*\n|\n)+)", page, re.M)


def bare(text: str) -> str:
    """Without what differs between runs and what an editor strips."""
    lines = [line.rstrip() for line in text.splitlines()]
    return re.sub(r"in \d+\.\d s", "in … s", "\n".join(lines)).strip()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(ROOT / "examples" / "own_table" / "visits.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complete(spec: Path) -> None:
    """Replace the sections of the skeleton that the page shows filled in."""
    shown = re.search(r"```toml\n(.*?)```", DATA, re.S)
    assert shown
    begun = spec.read_text("utf-8")
    first, rest = begun.index("[data.table]"), begun.index("[privacy]")
    spec.write_text(begun[:first] + shown[1] + "\n" + begun[rest:], encoding="utf-8")


@pytest.mark.slow
def test_five_commands_on_a_table(wholegrain: Command, folder: Path) -> None:
    shown = consoles(DATA)
    assert [command.split()[1] for command, _ in shown] == ["data", "plan", "data", "plan", "run"]
    for number, (command, output) in enumerate(shown):
        if number == 2:
            complete(folder / "visits.toml")
        said = wholegrain(*command.split()[1:])
        assert bare(said.out + said.err) == bare(output)


@pytest.mark.slow
def test_a_model_of_ones_own(wholegrain: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, module, _ = re.findall(r"```python\n(.*?)```", MODEL, re.S)
    assert (ROOT / "examples" / "own_model.py").read_text("utf-8").endswith(script)
    (folder / "my_models.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    wholegrain("data", "init", "visits.csv", "--target", "readmitted")
    complete(folder / "visits.toml")
    for command, output in consoles(MODEL):
        said = wholegrain(*command.split()[1:])
        assert bare(said.out + said.err) == bare(output)


@pytest.mark.slow
def test_the_example_in_python_prints_what_it_should() -> None:
    shown = re.search(r"\$ python (\S+)\n(.*?)```", MODEL, re.S)
    assert shown
    ran = subprocess.run([sys.executable, ROOT / shown[1]], capture_output=True, text=True, check=True)
    assert ran.stdout == shown[2]


def test_the_table_is_shown_as_it_is() -> None:
    table = (ROOT / "examples" / "own_table" / "visits.csv").read_text(encoding="utf-8")
    shown = re.search(r"```text\n(patient.*?)```", DATA, re.S)
    assert shown
    assert table.startswith(shown[1])
    patients = {line.split(",")[0] for line in table.splitlines()[1:]}
    assert (len(table.splitlines()) - 1, len(patients)) == (1070, 300)
