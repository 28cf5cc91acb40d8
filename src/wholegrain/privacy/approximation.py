"""Rough sizes of events by the central limit theorem: where to start a search, how fine a grid to use.

Nothing here is ever an answer: many small releases look like one Gaussian of parameter μ, which is close but not a
bound.
"""

import math
from functools import singledispatch

import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    get_epsilon_gaussian,
)
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

COARSEST_GRID = 1e-3  # for an ε of 1; a larger ε needs no finer relative error
FINEST_GRID = 1e-7
# exp(x) − 1 beyond this is "large" for every purpose here.
LARGEST_EXPONENT = 50.0


def approximate_epsilon(event: DpEvent, delta: float) -> float:
    """ε of the Gaussian that the event resembles; a starting point, not a bound."""
    squared, _ = _size(event)
    if squared == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # the library takes log(0) on its way to a finite answer
        return float(get_epsilon_gaussian(1 / math.sqrt(squared), delta))


def suitable_grid(event: DpEvent) -> float:
    """A tenth of one step's typical privacy loss, rounded down to 1, 2 or 5 times a power of ten.

    Rounding privacy losses to a grid g adds at most g²/4 of variance per step, here 0.25 % of the step's own. The value
    does not depend on how often a step is repeated, so that one more round finds the step's distribution in the cache.
    """
    squared, steps = _size(event)
    if not steps:
        return COARSEST_GRID
    coarsest = COARSEST_GRID * max(1.0, squared / 10)  # ε grows as μ²/2 where it is large
    wanted = min(max(0.1 * math.sqrt(squared / steps), FINEST_GRID), coarsest)
    power = 10.0 ** math.floor(math.log10(wanted) + 1e-9)
    mantissa = max(m for m in (1, 2, 5) if m * power <= wanted * (1 + 1e-9))
    return float(f"{mantissa * power:.0e}")


@singledispatch
def _size(event: DpEvent) -> tuple[float, int]:
    """(μ², number of steps) of the event; nothing for events that are not priced here."""
    return 0.0, 0


@_size.register
def _(event: GaussianDpEvent) -> tuple[float, int]:
    return event.noise_multiplier**-2, 1


@_size.register
def _(event: PoissonSampledDpEvent) -> tuple[float, int]:
    sigma = getattr(event.event, "noise_multiplier", 1.0)
    return event.sampling_probability**2 * _expm1(sigma**-2), 1


@_size.register
def _(event: MixtureOfGaussiansDpEvent) -> tuple[float, int]:
    moves = np.asarray(event.sensitivities) / event.standard_deviation
    weights = np.asarray(event.sampling_probs)
    products = np.expm1(np.minimum(np.outer(moves, moves), LARGEST_EXPONENT))
    return float(weights @ products @ weights), 1


@_size.register
def _(event: SelfComposedDpEvent) -> tuple[float, int]:
    squared, steps = _size(event.event)
    return squared * event.count, steps * event.count


@_size.register
def _(event: ComposedDpEvent) -> tuple[float, int]:
    sizes = [_size(part) for part in event.events]
    return sum(size[0] for size in sizes), sum(size[1] for size in sizes)


def _expm1(exponent: float) -> float:
    return math.expm1(min(exponent, LARGEST_EXPONENT))
