"""Ctrl-C: once to end when the silo that is at work is done, twice to end at once. A run can be resumed from either."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from wholegrain.cli import display
from wholegrain.federation.round_record import RoundRecord
from wholegrain.runs.observers import Observer, SiloAnswer


@contextlib.contextmanager
def stoppable(observe: Observer) -> Iterator[Observer]:
    """The observer, which ends the run after a silo's steps once Ctrl-C was pressed."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be taken
        yield observe
        return
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        display.err.print("Stopping when this silo is done; Ctrl-C again stops at once.")

    def told(event: SiloAnswer | RoundRecord) -> None:
        observe(event)
        if asked.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)
