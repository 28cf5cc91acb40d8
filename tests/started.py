"""Commands in processes of their own, what becomes of them, and what runs have left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 1200.0
"""Seconds for what takes ten on a quiet machine."""


def there(*arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`wholegrain ARGS` in a process of its own."""
    command = [sys.executable, *launcher, "-m", "wholegrain", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def spent(folder: Path) -> list[tuple[float, list[str]]]:
    lines = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    return [(line["epsilon"], line["cohort"]) for line in lines]


@contextlib.contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, which is gone afterwards."""
    command = [sys.executable, "-m", "wholegrain", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process is there and is more than a name in a list."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it takes too long"
        assert process is None or process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
        time.sleep(0.01)


def recorded(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0
