"""A process that is started again when it crashes, and that ends with the one that started it, however that ended.

A crash is an end by a signal that nobody here sent: out of memory, a fault in native code. A process that ends by
itself has said what it had to say: its exit code is handed on.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType

log = logging.getLogger("wholegrain.server")

STANDARD_INPUT = 0
LOOK = 0.5
"""Seconds between two looks whether it has ended."""

PARTING = 60.0
"""Seconds that the process has to end by itself once it is told to."""

AGAIN = 1.0
"""Seconds before it is started again."""

MOST_CRASHES = 5
WITHIN = 600.0
"""More crashes than that within so many seconds, and it is given up."""


def supervise(command: Sequence[str]) -> int:
    """Run a command, again after each crash, until it ends by itself or this process is told to; its exit code."""
    crashes: list[float] = []
    while True:
        code, told = _run(command)
        if told or code >= 0:
            return code if code >= 0 else 128 - code
        now = time.monotonic()
        crashes = [*(each for each in crashes if now - each < WITHIN), now]
        if len(crashes) > MOST_CRASHES:
            log.error("it has crashed %d times within %.0f seconds, and is given up", len(crashes), WITHIN)
            return 2
        log.warning("it was ended by signal %d and is started again", -code)
        time.sleep(AGAIN)


def end_with_parent() -> None:
    """In the child: end when the supervisor is gone, which holds the other end of the standard input."""

    def wait() -> None:
        os.read(STANDARD_INPUT, 1)  # by the system's own call: a lock of Python's would stand in the way of its end
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PARTING)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run(command: Sequence[str]) -> tuple[int, bool]:
    """One life of the command: its exit code, and whether this process was told to end it."""
    told = threading.Event()
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:

        def hand_on(number: int, frame: FrameType | None) -> None:
            told.set()
            process.send_signal(signal.SIGTERM)

        with _handlers(hand_on):
            while process.poll() is None and not told.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PARTING)
            process.kill()
        _end_group(process.pid)
        return process.returncode, told.is_set()


def _end_group(group: int) -> None:
    """End whatever the command has left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


@contextlib.contextmanager
def _handlers(handler: "signal.Handlers | object") -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
