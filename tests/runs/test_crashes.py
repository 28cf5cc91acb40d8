"""A few kills of what benchmarks/crashes.py does hundreds of times: a run survives them, and its ledger knew first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wholegrain

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "crashes.py"


def crash(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(wholegrain.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
def test_a_run_survives_kills_and_damage(tmp_path: Path) -> None:
    done = crash("--kills", 7, "--separate", 0, "--points", 6, "--damages", 1, "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Violations: 0" in done.stdout
    assert list(tmp_path.iterdir()) == [], "it cleans up after itself"
