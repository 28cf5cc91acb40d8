"""The picture of steps: from the figures of one or several commands, and from the tables on record."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair", reason="benchmarks draw with altair")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import draw

    return draw


def measured(title: str, *contestants: tuple[str, str, float]) -> dict[str, Any]:
    rows = [
        {"name": name, "title": words, "ratio": {"median": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio}}
        for name, words, ratio in contestants
    ]
    return {"models": [{"title": title, "contestants": rows}]}


def test_figures_of_several_commands_are_one_picture(
    drawing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ("plain", "plain SGD", 1.0)
    files = {
        "one.json": measured("A CNN", plain, ("ours", "wholegrain, per item", 1.23)),
        "two.json": measured("An LSTM", plain, ("jax", "jax_privacy, per item", 4.56)),
    }
    for name, found in files.items():
        (tmp_path / name).write_text(json.dumps(found))
    given = ["draw.py", "--gradients", *(str(tmp_path / name) for name in files), "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", given)
    drawing.main()
    picture = (tmp_path / "gradients.svg").read_text("utf-8")
    assert all(words in picture for words in ("A CNN", "An LSTM", "1.23", "4.56", "wholegrain, per item"))
    # A panel holds only who was measured: each of the peers stands in one.
    assert picture.count(">jax_privacy, per item<") == 1


def test_the_steps_on_record_are_read_back(drawing: Any) -> None:
    text = (BENCHMARKS / "RESULTS.md").read_text("utf-8")
    models = drawing.steps_on_record(text)["models"]
    assert len(models) > 4
    for model in models:
        head = text.index(f"#### {model['title']}:")
        for row in model["contestants"]:
            ratio = row["ratio"]
            assert f"| {row['title']} | {ratio['median']:.2f} | {ratio['low']:.2f}–{ratio['high']:.2f} |" in text[head:]
        assert model["contestants"][0]["title"] == "plain SGD"
        assert len(model["contestants"]) > 2


def test_the_picture_of_the_page_is_of_the_steps_on_record(drawing: Any) -> None:
    picture = (BENCHMARKS.parent / "docs" / "images" / "gradients.svg").read_text("utf-8")
    for model in drawing.steps_on_record((BENCHMARKS / "RESULTS.md").read_text("utf-8"))["models"]:
        assert model["title"] in picture
        assert all(f">{row['ratio']['median']:.2f}<" in picture for row in model["contestants"])
