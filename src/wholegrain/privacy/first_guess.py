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

from wholegrain.privacy.events import WorstOfDpEvent

FINEST_GRID = 1e-7
COARSEST_GRID = 1e-3  # up to an ε of about 5; a larger ε bears a coarser grid at the same relative error
COARSEST_GRID_OF_ALL = 2e-2


def approximate_epsilon(event: DpEvent, delta: float) -> float:
    """ε of the Gaussian that the event resembles; a starting point, not a bound."""
    squared, _ = _size(event, most=50.0)
    if squared == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # the library takes log(0) on its way to a finite answer
        return float(get_epsilon_gaussian(1 / math.sqrt(squared), delta))


def suitable_grid(event: DpEvent) -> float:
    """A tenth of one step's typical privacy loss, rounded down to 1, 2 or 5 times a power of ten.

    Rounding privacy losses to a grid g adds at most g²/4 of variance per step, here 0.25 % of the step's own. The value
    does not depend on how often a step is repeated, so that one more round finds the step's distribution in the cache.
    """
    squared, steps = _size(event, most=1.0)
    if not steps:
        return COARSEST_GRID
    largest, _ = _size(event, most=50.0)
    coarsest = min(COARSEST_GRID * max(1.0, largest / 10), COARSEST_GRID_OF_ALL)
    finest = max(FINEST_GRID, _finest(event))
    wanted = max(min(0.1 * math.sqrt(squared / steps), coarsest), finest)
    power = 10.0 ** math.floor(math.log10(wanted) + 1e-9)
    mantissa = max(m for m in (1, 2, 5) if m * power <= wanted * (1 + 1e-9))
    return float(f"{mantissa * power:.0e}")


@singledispatch
def _finest(event: DpEvent) -> float:
    """The finest grid worth its memory and time, from the range over which the event's losses spread."""
    return 0.0


@_finest.register
def _(event: PoissonSampledDpEvent) -> float:
    return 1e-6 * _range(1.0 / getattr(event.event, "noise_multiplier", 1.0))


@_finest.register
def _(event: MixtureOfGaussiansDpEvent) -> float:
    # Each grid point of a mixture takes a search of its own.
    return 5e-6 * _range(max(event.sensitivities) / event.standard_deviation)


@_finest.register
def _(event: GaussianDpEvent) -> float:
    return 1e-6 * _range(1.0 / event.noise_multiplier)


@_finest.register
def _(event: SelfComposedDpEvent) -> float:
    if isinstance(event.event, GaussianDpEvent):  # composed as one, see the accountant
        return 1e-6 * _range(math.sqrt(event.count) / event.event.noise_multiplier)
    return _finest(event.event)


@_finest.register
def _(event: WorstOfDpEvent) -> float:
    return max(_finest(case) for case in event.cases)


@_finest.register
def _(event: ComposedDpEvent) -> float:
    return max(_finest(part) for part in event.events)


def _range(move: float) -> float:
    """Losses of a Gaussian that moves by so many standard deviations, as far out as matters."""
    return move**2 + 16 * move


@singledispatch
def _size(event: DpEvent, most: float) -> tuple[float, int]:
    """(μ², number of steps) of the event, with exponents held to `most` so that rare large losses do not dominate."""
    return 0.0, 0


@_size.register
def _(event: GaussianDpEvent, most: float) -> tuple[float, int]:
    return event.noise_multiplier**-2, 1


@_size.register
def _(event: PoissonSampledDpEvent, most: float) -> tuple[float, int]:
    sigma = getattr(event.event, "noise_multiplier", 1.0)
    return event.sampling_probability**2 * math.expm1(min(sigma**-2, most)), 1


@_size.register
def _(event: MixtureOfGaussiansDpEvent, most: float) -> tuple[float, int]:
    moves = np.asarray(event.sensitivities) / event.standard_deviation
    weights = np.asarray(event.sampling_probs)
    products = np.expm1(np.minimum(np.outer(moves, moves), most))
    return float(weights @ products @ weights), 1


@_size.register
def _(event: SelfComposedDpEvent, most: float) -> tuple[float, int]:
    squared, steps = _size(event.event, most)
    return squared * event.count, steps * event.count


@_size.register
def _(event: WorstOfDpEvent, most: float) -> tuple[float, int]:
    return max(_size(case, most) for case in event.cases)


@_size.register
def _(event: ComposedDpEvent, most: float) -> tuple[float, int]:
    sizes = [_size(part, most) for part in event.events]
    return sum(size[0] for size in sizes), sum(size[1] for size in sizes)
