"""The page on one's own parts: its code runs, and does what the page says."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import load

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The modules of the page, where they can be imported."""
    for name, code in re.findall(r'```python\n"""(\w+)\.py"""\n(.*?)```', PAGE, re.S):
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # undone, whatever is imported
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write_spec(folder: Path) -> Path:
    """The page's sections, and a table for its source."""
    draws = np.random.default_rng(0)
    columns = {"age": 100, "pressure": 200, "ill": 2, "patient": 60, "clinic": 3}
    table = pl.DataFrame({name: draws.integers(most, size=300) for name, most in columns.items()})
    # One person is older than all the others.
    pl.concat([table, table[:1].with_columns(pl.lit(109, pl.Int64).alias("age"))]).write_parquet(
        folder / "visits.parquet"
    )
    sections = "".join(re.findall(r"```toml\n(.*?)```", PAGE, re.S))
    path = folder / "spec.toml"
    path.write_text(sections + '[policy]\nname = "fedavg"\nrate = 0.5\n[rounds]\ncount = 2\nlearning_rate = 1.0\n')
    return path


def test_a_source_and_a_server_optimiser(folder: Path) -> None:
    write_spec(folder)
    prepared = prepare(load(folder / "spec.toml"))
    assert repr(prepared.server.optimiser) == "Yogi(momentum=0.9, second=0.99, tiny=0.01)"
    assert sorted(prepared.silos) == ["0", "1", "2"]
    with open_guard(prepared, "a run") as guard:
        run = execute(prepared, guard)
    assert len(run.rounds) == 2
    assert all(done.moved > 0 for done in run.rounds)


def test_the_test_of_a_source_holds_for_the_pages_own_and_finds_one_that_is_wrong(folder: Path) -> None:
    write_spec(folder)
    check = importlib.import_module("check_visits")
    path, oldest = folder / "visits.parquet", pl.read_parquet(folder / "visits.parquet").sort("age")["patient"][-1]
    check.check_removal(path, oldest, folder / "without.parquet")
    source = (folder / "visits.py").read_text()
    (folder / "wrong_visits.py").write_text(
        source.replace("/ 110", '/ table["age"].max()')
    )  # ages that follow the oldest's
    check.visits = importlib.import_module("wrong_visits").visits
    with pytest.raises(AssertionError):
        check.check_removal(path, oldest, folder / "without.parquet")
