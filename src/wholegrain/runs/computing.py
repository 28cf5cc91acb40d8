"""What computes a run's clipped sums, and how it is told: the same before a run as in its record."""

from dataclasses import replace

from torch import nn

from wholegrain import _check
from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.errors_as_values import ErrorsAsValues
from wholegrain.clipping.reference import Loss
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.c_library import load_library

MOST_GIB = 2.0**30  # as good as no limit


def asked_compute(spec: RunSpec) -> Compute:
    """The device and precision of the spec, if this machine has them."""
    return Compute.of(spec.compute.device, spec.compute.precision, spec.compute.compiled)


def gradient_engine(spec: RunSpec, model: nn.Module, loss: Loss) -> ErrorsAsValues:
    """What computes the clipped sums of this model."""
    memory = int(min(_check.positive("compute.memory_gib", spec.compute.memory_gib), MOST_GIB) * 2**30)
    return clipped_sums(model, loss, asked_compute(spec), memory)


def told_compute(spec: RunSpec) -> Compute:
    """What is asked for, but compiled only where there is anything in C: seeded noise."""
    compute = asked_compute(spec)
    if compute.compiled:
        load_library()  # a machine that has none says so before anything is paid for
    return replace(compute, compiled=compute.compiled and spec.privacy.noise == "seeded")
