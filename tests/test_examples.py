"""The notebooks of examples/ run from top to bottom, and print what the site shows."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent


def _load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "tools" / "notebooks.py")
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


notebooks = _load_tool()


def play(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every cell of a percent script, executed in one namespace as a notebook does."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    list(notebooks.play(name.removesuffix(".py"), names))
    return names


def kept(name: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "docs" / "tutorials" / f"{name}.ipynb").read_text("utf-8"))["cells"]


def test_the_notebooks_are_these() -> None:
    known = ["audit_run", "federation", "own_loop", "own_torch_model", "read_report", "reproduce", "table"]
    assert notebooks.names() == known
    assert sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.ipynb")) == known


@pytest.mark.parametrize("name", notebooks.names())
def test_a_kept_notebook_has_the_cells_of_its_source(name: str) -> None:
    assert ["".join(cell["source"]) for cell in kept(name)] == [cell.source for cell in notebooks.read_cells(name)]
    assert not re.search(r"/(tmp|home|root)/", json.dumps(kept(name)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", notebooks.names())
def test_a_kept_notebook_shows_what_a_run_prints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "federation":
        pytest.importorskip("flwr", reason="no Flower: pip install 'wholegrain[flower]'")
    if name == "reproduce":
        pytest.importorskip("matplotlib", reason="typefaces of matplotlib: pip install 'wholegrain[data]'")
    monkeypatch.chdir(ROOT)
    played = json.loads(notebooks.as_notebook(list(notebooks.play(name, {}))))["cells"]
    assert lasting(played) == lasting(kept(name))


def lasting(cells: list[dict[str, Any]]) -> list[Any]:
    """What cells show, without dates and without digits that another number of threads rounds otherwise."""
    text = json.dumps([cell.get("outputs") for cell in cells], ensure_ascii=False)
    text = re.sub(r"\b\d{4}-\d\d-\d\d\b", "DATE", text)
    return json.loads(re.sub(r"\b\d+\.\d{5,}\b", lambda found: f"{float(found[0]):.4f}", text))


@pytest.mark.usefixtures("coarse_prices")
def test_a_table_gives_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("table.py", monkeypatch)
    assert names["run"].guarantee.epsilon <= 4
    assert names["predictions"]["prediction"].is_in(["no", "yes"]).all()
    assert names["predictions"].height == 2


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.slow
def test_a_torch_model_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("own_torch_model.py", monkeypatch)
    assert names["run"].guarantee.epsilon <= 8
    assert names["run"].accuracy > 0.7
    assert len(names["seen"]) == 30 * (4 + 1)


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.slow
def test_a_loop_learns_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("own_loop.py", monkeypatch)
    assert names["spent"] == sorted(names["spent"])
    assert names["private"].guarantee.epsilon == names["spent"][-1] <= 4
    data = names["north"].data
    with torch.no_grad():
        right = names["net"](torch.from_numpy(data.inputs)).argmax(1) == torch.from_numpy(data.targets)
    assert right.double().mean() > 0.65


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.slow
def test_a_report_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("read_report.py", monkeypatch)
    assert names["page"].read_text("utf-8").startswith("<!doctype html>")
    assert names["after"][0.01] < names["after"][0.5] < 1
    assert names["value"] > names["run"].constant["test"].headline[1]
    assert "SIMULATION: protects nobody" in names["card"]


@pytest.mark.slow
def test_an_audit_finds_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("audit_run.py", monkeypatch)
    assert names["found"].verdict == "consistent"
    assert names["found"].failed == ()
