"""The record of benchmarks/utility.py: what was run with other settings is run anew, and shown no more."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pytest.importorskip("altair", reason="benchmarks draw with altair")
import utility  # noqa: E402


def case(rounds: int, start: str = "/here/digits.safetensors") -> utility.Case:
    return utility.Case("toy", "best", 1.0, 0, {"model": {"start": start}, "rounds": {"count": rounds}})


def test_settings_tell_recipes_apart_and_not_machines() -> None:
    assert case(5).settings != case(6).settings
    assert case(5).settings == case(5, "/there/digits.safetensors").settings


def test_what_was_run_is_not_run_again_unless_its_settings_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utility, "play", lambda each: dict(zip(utility.KEY, each.key, strict=True)))
    path = tmp_path / "results.jsonl"
    for rounds, expected in ((5, 1), (5, 1), (6, 2)):
        utility.run([case(rounds)], path)
        assert len(utility.read(path)) == expected


def test_the_kept_results_are_those_of_the_recipes_as_they_are() -> None:
    rows = utility.read(ROOT / "benchmarks" / "utility.jsonl")
    assert rows
    assert utility.shown(rows, utility.problems(Path("digits.safetensors"))) == rows
    assert len({json.dumps(utility.key_of(row)) for row in rows}) == len(rows)
    assert all(row["proved"] <= row["epsilon"] for row in rows if row["epsilon"] and "accuracy" in row)


@pytest.mark.parametrize("path", utility.PAGES, ids=lambda path: path.name)
def test_pages_have_the_table_of_the_kept_results(path: Path) -> None:
    rows = utility.read(ROOT / "benchmarks" / "utility.jsonl")
    page = path.read_text()
    assert page.count(utility.HEAD_ROW) == 1
    assert utility.renewed(page, utility.table(rows, utility.PAGES[path])) == page
