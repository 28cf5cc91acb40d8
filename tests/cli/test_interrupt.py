"""Ctrl-C once: the run ends after the silo at work, says how to go on, and goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SPEC = """
[data]
source = "clinics"
options = { patients = 60, clinics = 3 }
[policy]
name = "fedavg"
rate = 0.5
[rounds]
count = 20000
steps = 1
"""


@pytest.mark.slow
def test_a_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "wholegrain", "run", str(tmp_path / "spec.toml"), "--out", str(out), "--quiet"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    record = out / "rounds.jsonl"
    while running.poll() is None and not (record.exists() and record.read_text().count("\n") >= 2):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=600)
    assert running.returncode == 130
    assert "Stopping when this silo is done" in said
    assert f"wholegrain resume {out}" in said.replace("\n", "")
    assert "Traceback" not in said
    assert 2 <= record.read_text().count("\n") < 20000
    assert not (out / "summary.json").exists()
