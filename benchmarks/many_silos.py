"""A run of a thousand silos: seconds of its rounds, of all of it, and peak memory, in a process of its own.

Run: python benchmarks/rounds.py --parts many
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SPEC = """
[data]
source = "clinics"
options = {{ patients = {patients}, clinics = {silos}, span = 2, visits = 4 }}
[model]
name = "logistic"
[policy]
name = "subject_dp"
rate = 1.0
[privacy]
epsilon = 8.0
[rounds]
count = {rounds}
steps = 1
[compute]
compiled = {compiled}
"""
"""20 patients for each silo, who each visit one or two; every subject is in every step."""
PATIENTS = 20
ROUNDS = 10


def run_apart(silos: int, compiled: bool) -> dict[str, Any]:
    """The figures of one run, played in a new process."""
    paths = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])
    code = f"import many_silos; many_silos.main({silos}, {compiled})"
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(silos: int, compiled: bool) -> None:
    """Play the run in this process and print its figures."""
    started = time.perf_counter()
    import torch

    from arena import resident
    from wholegrain.runs.runner import execute, open_guard, prepare
    from wholegrain.runs.spec import load

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.toml"
        switch = "true" if compiled else "false"
        spec.write_text(SPEC.format(silos=silos, patients=PATIENTS * silos, rounds=ROUNDS, compiled=switch))
        prepared = prepare(load(spec))
        with open_guard(prepared, "many", Path(folder)) as guard:
            wall, cpu = time.perf_counter(), time.process_time()
            result = execute(prepared, guard)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = {
        "silos": silos,
        "compiled": compiled,
        "rounds": len(result.rounds),
        "items": sum(silo.data.items for silo in prepared.silos.values()),
        "cpu": cpu,
        "wall": wall,
        "all_cpu": time.process_time(),
        "all_wall": time.perf_counter() - started,
        "peak": resident("VmHWM"),
    }
    print(json.dumps(found))
