"""Which engine computes a clipped sum, by public settings."""

from torch import nn

from wholegrain.clipping.devices import Compute
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.reference import ClippedSum, Loss
from wholegrain.clipping.unit_passes import UnitPasses


def clipped_sums(model: nn.Module, loss: Loss, compute: Compute, memory: int = MEMORY) -> ClippedSum:
    """The engine for a device and a precision."""
    if compute.needs_passes:
        return UnitPasses(model, loss, compute)
    return BookKeeping(model, loss, memory)
