"""Contestants in processes of their own, asked in turn: whatever slows the machine slows them all alike.

A process builds one contestant, then answers lines of JSON: {"do": "steps", "times": 3, "clock": "wall"} with
{"seconds": 0.71}. Its peak memory is its own, and so is its environment.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contestants import CONTESTANTS, Steps
from record import CLOCKS
from wholegrain.clipping.parameters import Layout
from workloads import CASES, Workload

Answer = dict[str, Any]


class ContestantError(Exception):
    """A contestant that cannot take part; the message says why."""


class Process:
    """The parent's end of one contestant."""

    def __init__(self, case: str, contestant: str) -> None:
        # Opacus and vmap warn of slow paths on every start; what they cost is what is measured.
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", **CONTESTANTS[contestant].environment}
        command = [sys.executable, __file__, case, contestant]
        self._folder: str | None = None
        script = CONTESTANTS[contestant].script
        if script is not None:
            self._folder = tempfile.mkdtemp()
            write_workload(CASES[case].workload(), f"{self._folder}/given.npz")
            command = [os.environ["JAX_PYTHON"], str(Path(__file__).with_name(script)), case, contestant]
            command.append(f"{self._folder}/given.npz")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]

    def ask(self, do: str, **arguments: Any) -> Answer:
        """The answer to one request."""
        try:
            print(json.dumps({"do": do, **arguments}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ContestantError(f"its process ended with code {self.process.wait()}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise ContestantError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process and wait for it."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder)


def write_workload(workload: Workload, path: str) -> None:
    """Parameters and batch, for a contestant without torch."""
    names = Layout.of(workload.model).names
    parameters = {f"parameter {name}": p.detach().numpy() for name, p in workload.model.named_parameters()}
    batch = {"inputs": workload.inputs, "targets": workload.targets, "groups": workload.groups}
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    np.savez(path, names=np.array(names), **arrays, **parameters)


def answer(steps: Steps, do: str, arguments: Mapping[str, Any]) -> Answer:
    """What a contestant's process says to one request."""
    if do == "gradient":
        np.save(arguments["path"], steps.gradient().detach().numpy())
        return {}
    if do == "memory":
        return {"peak": resident("VmHWM"), "grown": resident("VmHWM") - STARTED_WITH}
    act: Callable[[], object] = {"steps": steps.step, "gradients": steps.gradient}[do]
    clock = CLOCKS[arguments["clock"]]
    started = clock()
    for _ in range(arguments["times"]):
        act()
    return {"seconds": clock() - started}


def resident(entry: str) -> int:
    """Bytes that this process holds now (VmRSS) or held at most (VmHWM)."""
    # Not getrusage: its maximum survives exec, so that a child reports at least what its parent held.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{entry}:"))


# After the imports that all contestants share, before model and batch.
STARTED_WITH = resident("VmRSS")


def serve(case: str, contestant: str) -> None:
    """Answer the parent until it closes the pipe."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps: Steps | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            steps = steps or CONTESTANTS[contestant].build(CASES[case].workload())
            reply = answer(steps, request.pop("do"), request)
        except Exception as error:  # whatever a peer raises is a reason not to take part, for the parent to print
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
