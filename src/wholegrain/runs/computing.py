"""What computes a run's clipped sums, and how it is told: the same before a run as in its record."""

from dataclasses import replace

from torch import nn

from wholegrain import _check
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.errors_as_values import ErrorsAsValues
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.unit_passes import clipped_sums
from wholegrain.runs.spec import RunSpec

MOST_GIB = 2.0**30  # as good as no limit


def asked_compute(spec: RunSpec) -> Compute:
    """The device and precision of the spec, if this machine has them."""
    return Compute.of(spec.compute.device, spec.compute.precision, spec.compute.compiled)


def gradient_engine(spec: RunSpec, model: nn.Module, loss: Loss) -> ErrorsAsValues:
    """What computes the clipped sums of this model."""
    memory = int(min(_check.positive("compute.memory_gib", spec.compute.memory_gib), MOST_GIB) * 2**30)
    return clipped_sums(model, loss, asked_compute(spec), memory)


def told_compute(spec: RunSpec, gradients: ErrorsAsValues) -> Compute:
    """What of a compiled run is in C: the sums of some models, the products of others, and seeded noise."""
    compute = asked_compute(spec)
    if not compute.compiled:
        return compute
    engine = gradients.engine
    sums = not isinstance(engine, BookKeeping) or engine.in_c
    return replace(compute, compiled=sums or spec.privacy.noise == "seeded", sums_in_c=sums)
