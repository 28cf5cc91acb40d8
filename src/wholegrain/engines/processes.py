"""Further processes on this machine that run the same command, as `torchrun` would start them on a cluster."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

Processes = Sequence[subprocess.Popen[bytes]]

LOOPBACK = "127.0.0.1"
PARTING = 20.0
"""Seconds that a process has to end by itself once the run is over."""


def rank() -> int | None:
    """The rank of this process, where it was started as one of several; None where it stands alone."""
    return int(os.environ["RANK"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None


def world_size() -> int:
    """How many processes there are."""
    return int(os.environ["WORLD_SIZE"]) if rank() is not None else 1


@contextlib.contextmanager
def beside(count: int) -> Iterator[Processes]:
    """Start the command of this process in `count` - 1 further ones, and be rank 0 among them."""
    world = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(count)}
    others = [_start(world | {"RANK": str(number)}) for number in range(1, count)]
    before = dict(os.environ)
    os.environ.update(world | {"RANK": "0"})
    try:
        yield others
    finally:
        os.environ.clear()
        os.environ.update(before)
        for process in others:
            _end(process)


def end_at_once(processes: Processes) -> None:
    """End processes in the middle of whatever they do."""
    for process in processes:
        process.kill()


def _start(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "wholegrain", *sys.argv[1:]],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(PARTING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])
