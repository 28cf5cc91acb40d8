"""The page on diabetes130: its spec fits the table, and its first command prints what the page shows."""

import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import wholegrain as wg
from command import Command
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.spec import load

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "examples" / "diabetes130.toml"
PAGE = (ROOT / "docs" / "diabetes130.md").read_text("utf-8")
TABLE = Path(os.environ.get("WHOLEGRAIN_DATA", ROOT.parent / "shared" / "data")) / "diabetes130.csv.gz"
needs_table = pytest.mark.skipif(not TABLE.exists(), reason="diabetes130.csv.gz is not here; WHOLEGRAIN_DATA names it")


def test_the_spec_takes_a_table_of_its_form(tmp_path: Path) -> None:
    """Rows of every silo, of an unknown specialty and of one that is left out."""
    table = load(SPEC).data.table
    assert table is not None
    assert (len(table.silos), len(table.features)) == (16, 16)
    places = [*table.silos, "?", "Dentistry"]
    rows = [
        {
            "patient_nbr": str(number // 2),
            "medical_specialty": place,
            "readmitted": ("NO", "<30", ">30")[number % 3],
            "race": "?" if number % 5 == 0 else "Asian",
            "gender": "Unknown/Invalid" if number % 7 == 0 else "Female",
            "age": "[70-80)",
            "A1Cresult": ">8",
            "insulin": "Up",
            "change": "Ch",
            "diabetesMed": "Yes",
            **{name: "3" for name in table.features if name.startswith(("num", "time", "admission"))},
        }
        for number, place in enumerate(places)
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "t.csv")
    found = load_dataset(load(SPEC, (f"data.table.path={tmp_path / 't.csv'}",)))
    assert found.data.items == 16
    assert set(found.data.targets.tolist()) == {0, 1}
    assert found.data.targets.tolist() == [number % 3 > 0 for number in range(16)]


@needs_table
@pytest.mark.slow
def test_the_spec_takes_the_table() -> None:
    found = load_dataset(load(SPEC, (f"data.table.path={TABLE}",)))
    assert (found.data.items, found.data.subject_count) == (48_307, 36_122)
    assert "48,307 stays of\n36,122 patients" in PAGE


@needs_table
@pytest.mark.slow
def test_a_spec_is_begun_as_the_page_shows(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(TABLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    command, shown = PAGE.split("```console\n$ wholegrain ", 1)[1].split("```")[0].split("\n", 1)
    assert wholegrain(*command.split()).out == shown


def test_the_page_needs_few_commands_and_lines() -> None:
    commands = [line for line in PAGE.splitlines() if line.startswith("$ wholegrain ")]
    assert len(commands) <= 6
    assert len([line for line in python_of_the_page().splitlines() if line.strip()]) <= 12


@needs_table
@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").mkdir()
    shutil.copy(TABLE, tmp_path / "examples")
    shutil.copy(SPEC, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(python_of_the_page(), "diabetes130.md", "exec"), names)
    for epsilon in (4, 1):
        folder = tmp_path / "runs" / f"python-{epsilon}"
        assert pl.read_csv(folder / "predictions.csv").height == 101_766
        assert (folder / "report.html").exists()
        run = wg.load(folder)
        assert run.guarantee.epsilon <= epsilon
        assert run.accuracy > run.constant["test"].accuracy + 0.04
        assert run.scores["test"].loss < run.constant["test"].loss
        assert run.warnings == ()


def python_of_the_page() -> str:
    return PAGE.split("```python\n")[1].split("```")[0]
