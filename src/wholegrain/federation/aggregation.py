"""The server's average of the silos' parameters, by public weights."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from wholegrain.clipping.rounding import all_finite
from wholegrain.federation.messages import Answer, SiloFault, SiloUpdate, SumUpdate
from wholegrain.policies.policy import SiloFacts


class Averaging(StrEnum):
    """How much each silo counts."""

    PLAIN = "plain"
    """All alike, as in the paper."""
    ITEMS = "items"
    """By the public number of items."""
    SUBJECTS = "subjects"
    """By the public number of subjects."""


def weights(silos: Iterable[SiloFacts], averaging: Averaging) -> Mapping[str, float]:
    """A weight for each silo, from public sizes."""
    if averaging is Averaging.PLAIN:
        return {silo.name: 1.0 for silo in silos}
    if averaging is Averaging.ITEMS:
        return {silo.name: float(silo.items) for silo in silos}
    return {silo.name: float(silo.subjects) for silo in silos}


@dataclass(frozen=True, eq=False)
class Mean:
    """The weighted mean of what was usable; `vector` is None where nothing was.

    `answered` are the silos whose update arrived, `used` those of which it could be used.
    """

    vector: Tensor | None
    answered: tuple[str, ...]
    used: tuple[str, ...]
    faults: tuple[SiloFault, ...]


def average(
    answers: Iterable[Answer],
    weights: Mapping[str, float],
    size: int,
    dtype: torch.dtype = torch.float32,
) -> Mean:
    """The weighted mean of the usable updates, summed as they arrive: one vector of memory for any number of silos.

    An update of another shape than [size], of another type, or with a value that is not finite, is left out like one
    that never came. A mean that overflows is none.
    """
    total: Tensor | None = None
    mass = 0.0
    answered: list[str] = []
    used: list[str] = []
    faults: list[SiloFault] = []
    for answer in answers:
        if isinstance(answer, SiloFault):
            faults.append(answer)
            continue
        silos = answer.silos if isinstance(answer, SumUpdate) else (answer.silo,)
        answered += silos
        why = _fault(answer, size, dtype)
        if why is not None:
            faults += [SiloFault(silo, why) for silo in silos]
            continue
        weight = sum(weights[silo] for silo in silos)
        mass += weight
        used += silos
        total = answer.vector * weight if total is None else total.add_(answer.vector, alpha=weight)
    mean = None if total is None else total.div_(mass)
    if mean is not None and not all_finite(mean):
        mean = None
    return Mean(mean, tuple(answered), tuple(used), tuple(faults))


def _fault(update: SiloUpdate | SumUpdate, size: int, dtype: torch.dtype) -> str | None:
    if tuple(update.vector.shape) != (size,):
        return f"its parameters have the shape {list(update.vector.shape)}, not [{size}]"
    if update.vector.dtype is not dtype:
        return f"its parameters are {update.vector.dtype}, not {dtype}"
    if not all_finite(update.vector):
        return "its parameters are not all finite"
    return None
