"""Which engine computes a clipped sum, by public settings."""

from torch import nn

from wholegrain.clipping.devices import Compute
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.errors_as_values import ErrorsAsValues
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.unit_passes import UnitPasses


def clipped_sums(model: nn.Module, loss: Loss, compute: Compute, memory: int = MEMORY) -> ErrorsAsValues:
    """The engine for a device and a precision; what raises at an item counts as zero."""
    needs_passes = compute.needs_passes
    engine = UnitPasses(model, loss, compute) if needs_passes else BookKeeping(model, loss, memory)
    return ErrorsAsValues(engine, model)
