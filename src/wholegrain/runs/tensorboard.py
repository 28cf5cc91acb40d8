"""A run as event files, for those who watch their runs in TensorBoard."""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path

from wholegrain._files import date_alike
from wholegrain.errors import SpecError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.runs.observers import Observer, SiloAnswer, ignore


@contextlib.contextmanager
def event_files(folder: Path | None, *, timed: bool = True) -> Iterator[Observer]:
    """An observer that writes scores, ε spent, movement and time of each round; without a folder it does nothing.

    Without `timed`, as in a release, an event is dated by its round, and a file as the first one was: how long rounds
    took would tell how many items there are.
    """
    if folder is None:
        yield ignore
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SpecError("Event files need TensorBoard: pip install 'wholegrain[tensorboard]'.") from error
    writer = SummaryWriter(str(folder))
    begun = time.time()

    def write(event: SiloAnswer | RoundRecord) -> None:
        if isinstance(event, RoundRecord):
            step = event.round + 1
            for name, value in _scalars(event):
                writer.add_scalar(name, value, step, walltime=None if timed else begun + step)
            writer.flush()

    try:
        yield write
    finally:
        writer.close()
        if not timed:
            date_alike(folder, begun)


def _scalars(done: RoundRecord) -> Iterator[tuple[str, float]]:
    for part, score in done.scores.items():
        for name, value in {"loss": score.loss, **score.metrics}.items():
            yield f"{name} (not private)/{part}", value
    if math.isfinite(done.epsilon):
        yield "privacy/epsilon spent", done.epsilon
    yield "round/seconds", done.seconds
    yield "round/moved", done.moved
    if done.noise is not None:
        yield "round/noise alone (expected)", done.noise
    yield "round/faults", float(len(done.faults))
