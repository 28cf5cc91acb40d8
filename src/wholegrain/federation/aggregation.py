"""The server's part: an average of parameters, by public weights."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from torch import Tensor

from wholegrain.errors import RunError
from wholegrain.federation.messages import SiloUpdate
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


def average(updates: Iterable[SiloUpdate], weights: Mapping[str, float]) -> Tensor:
    """The weighted mean of the updates, summed as they arrive: one vector of memory however many silos there are."""
    total: Tensor | None = None
    mass = 0.0
    for update in updates:
        weight = weights[update.silo]
        mass += weight
        if total is None:
            total = update.vector * weight
        else:
            total.add_(update.vector, alpha=weight)
    if total is None:
        raise RunError("No silo returned an update in this round.")
    return total.div_(mass)
