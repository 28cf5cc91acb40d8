"""benchmarks/plays_parts.py: figures that are proved and from committed code."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import plays_parts  # noqa: E402
import trust_cases  # noqa: E402


def test_what_is_kept_is_proved_and_comes_from_committed_code() -> None:
    rows = trust_cases.read(plays_parts.RESULTS)
    assert rows
    for row in rows:
        assert "changes" not in row["commit"]
        assert row["standing"] == "PROVED"
        assert 0 < row["proved"] <= row["epsilon"]
        assert row["part"] in plays_parts.PARTS
