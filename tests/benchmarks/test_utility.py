"""The record of benchmarks/utility.py: what was run with other settings is run anew, and shown no more."""

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


def test_only_results_of_the_recipes_as_they_are_are_shown() -> None:
    known = utility.problems(Path("digits.safetensors"))
    now = dict(zip(utility.KEY, next(known["nlswork"].cases("nlswork", (1.0,))).key, strict=True))
    assert utility.shown([now, {**now, "settings": "others"}], known) == [now]


def test_the_table_has_means_over_seeds_and_says_what_was_refused() -> None:
    best = [{"data": "toy", "method": "best", "epsilon": 1.0, "seed": s, "accuracy": 0.5 + 0.01 * s} for s in range(3)]
    free = [{"data": "toy", "method": "fedavg", "epsilon": None, "seed": 0, "accuracy": 0.75}]
    refused = [{"data": "toy", "method": "user_ldp", "epsilon": 1.0, "seed": 0, "refused": "Why."}]
    assert utility.table(best + free + refused).splitlines() == [
        "| data | method | ε = 1 |",
        "|---|---|---|",
        "| toy | fedavg | 75.0 (1) |",
        "| toy | user_ldp | refused |",
        "| toy | best | 51.0 ± 1.0 |",
    ]
