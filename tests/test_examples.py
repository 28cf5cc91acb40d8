"""The notebooks of examples/ run from top to bottom, cell after cell."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(path.name for path in (ROOT / "examples").glob("*.py") if "# %%" in path.read_text("utf-8"))


def play(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every cell of a percent script, executed in one namespace as a notebook does."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for cell in re.split(r"^# %%.*\n", (ROOT / "examples" / name).read_text("utf-8"), flags=re.M):
        exec(compile(cell, name, "exec"), names)
    return names


def test_every_notebook_has_its_test() -> None:
    assert NOTEBOOKS == ["audit_run.py", "own_loop.py", "own_torch_model.py", "read_report.py", "table.py"]


@pytest.mark.usefixtures("coarse_prices")
def test_a_table_gives_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("table.py", monkeypatch)
    assert names["run"].guarantee.epsilon <= 4
    assert names["predictions"]["prediction"].is_in(["no", "yes"]).all()
    assert names["predictions"].height == 2


@pytest.mark.usefixtures("coarse_prices")
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
def test_a_report_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("read_report.py", monkeypatch)
    assert names["page"].read_text("utf-8").startswith("<!doctype html>")
    assert names["after"][0.01] < names["after"][0.5] < 1
    (value, constant) = names["scores"]["test"]
    assert value[1] > constant[1]
    assert "SIMULATION: protects nobody" in names["card"]


@pytest.mark.slow
def test_an_audit_finds_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("audit_run.py", monkeypatch)
    assert names["found"].verdict == "consistent"
    assert names["found"].failed == ()
