"""Privacy loss distributions of events, on a grid: upper bounds, whatever the grid."""

import math
from functools import lru_cache, singledispatch

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld

from wholegrain.errors import AccountingError
from wholegrain.privacy.loss_composition import repeat_distribution
from wholegrain.privacy.mixture_loss import mixture_distribution


@lru_cache(maxsize=256)
def loss_distribution(event: DpEvent, grid: float) -> pld.PrivacyLossDistribution:
    """The event's privacy loss distribution; every node of an event is remembered, so that one more round is cheap."""
    return _build(event, grid)


@singledispatch
def _build(event: DpEvent, grid: float) -> pld.PrivacyLossDistribution:
    raise AccountingError(f"The PLD accountant cannot price {type(event).__name__}.")


@_build.register
def _(event: NoOpDpEvent, grid: float) -> pld.PrivacyLossDistribution:
    return pld.identity(value_discretization_interval=grid)


@_build.register
def _(event: GaussianDpEvent, grid: float) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(standard_deviation=event.noise_multiplier, value_discretization_interval=grid)


@_build.register
def _(event: PoissonSampledDpEvent, grid: float) -> pld.PrivacyLossDistribution:
    if not isinstance(event.event, GaussianDpEvent):
        raise AccountingError(f"The PLD accountant cannot price a Poisson-sampled {type(event.event).__name__}.")
    return pld.from_gaussian_mechanism(
        standard_deviation=event.event.noise_multiplier,
        sampling_prob=event.sampling_probability,
        value_discretization_interval=grid,
    )


@_build.register
def _(event: MixtureOfGaussiansDpEvent, grid: float) -> pld.PrivacyLossDistribution:
    # Measured in units of σ: the same mechanism, but the search for each grid point is far shorter.
    moves = [value / event.standard_deviation for value in event.sensitivities]
    return mixture_distribution(moves, event.sampling_probs, grid)


@_build.register
def _(event: SelfComposedDpEvent, grid: float) -> pld.PrivacyLossDistribution:
    if isinstance(event.event, GaussianDpEvent):
        # n Gaussians are exactly one with σ/√n, which spares the grid's error n times over.
        alone = GaussianDpEvent(event.event.noise_multiplier / math.sqrt(event.count))
        return loss_distribution(alone, grid)
    return repeat_distribution(loss_distribution(event.event, grid), event.count)


@_build.register
def _(event: ComposedDpEvent, grid: float) -> pld.PrivacyLossDistribution:
    first, *rest = (loss_distribution(part, grid) for part in event.events)
    for other in rest:
        first = first.compose(other)
    return first
