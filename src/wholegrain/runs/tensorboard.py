"""A run as event files, for those who watch their runs in TensorBoard."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from wholegrain.errors import SpecError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.runs.observers import Observer, SiloAnswer, ignore


@contextlib.contextmanager
def event_files(folder: Path | None) -> Iterator[Observer]:
    """An observer that writes scores, ε spent, movement and time of each round; without a folder it does nothing."""
    if folder is None:
        yield ignore
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SpecError("Event files need TensorBoard: pip install 'wholegrain[tensorboard]'.") from error
    writer = SummaryWriter(str(folder))

    def write(event: SiloAnswer | RoundRecord) -> None:
        if isinstance(event, RoundRecord):
            for name, value in _scalars(event):
                writer.add_scalar(name, value, event.round + 1)
            writer.flush()

    try:
        yield write
    finally:
        writer.close()


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
