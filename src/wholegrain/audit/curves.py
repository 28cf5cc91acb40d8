"""Privacy curves: the δ that a proof gives for every ε, and so the best that any attack can do.

A plan's event has such a curve. Guesses that no mechanism under the curve could make refute the proof, at whichever ε
they do; and the noise with which the same event would just be refuted gives the lower bound that lies closest. That
bound rests on the shape of the event's curve (on which a verdict rests too), those of `bounds` on nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from numpy.typing import NDArray

from wholegrain.audit.confidence_bounds import Rates
from wholegrain.errors import AccountingError
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.first_guess import suitable_grid

# Any δ gives a valid line; these lie close enough that the curve between them hardly shows corners.
DELTAS = np.concatenate([np.geomspace(1e-9, 1e-2, 22), np.linspace(0.02, 0.98, 33)])
# Coarser than accounts are kept with: still an upper bound, in the fourth digit, and a curve takes many of them.
COARSER = 10
# Noise is tried in steps of this factor, so that all attacks on a plan share their curves.
STEP = 2 ** (1 / 16)
LEAST, MOST = -64, 64
"""From a sixteenth of the noise to 16 times as much, in steps."""
EPSILON_OVERFLOWS = 500.0


@dataclass(frozen=True, eq=False)
class Curve:
    """Pairs (ε, δ) that all hold."""

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def most_hits(self, alarms: float) -> float:
        """The most often that an attack can be right about who is in, with so many false alarms.

        P(S) ≤ e^ε·Q(S) + δ for the attack's set S, and the same for its complement with P and Q exchanged.
        """
        hits = np.exp(self.epsilons) * alarms + self.deltas
        misses = np.exp(-self.epsilons) * (1 - alarms - self.deltas)
        return float(min(1.0, hits.min(), (1 - misses).min()))


def refuted_by_rates(curve: Curve, rates: Rates) -> bool:
    """Whether no mechanism under the curve has these error rates, one way or the other.

    >>> total = Curve(np.array([0.0]), np.array([0.1]))
    >>> refuted_by_rates(total, Rates(hits=0.3, alarms=0.1))
    True
    """
    return rates.hits > curve.most_hits(rates.alarms)


def refuted_epsilon(event: DpEvent, delta: float, refutes: Callable[[Curve], bool]) -> float:
    """ε at δ of the event with the least noise that is refuted: a lower bound, if the event's shape is right.

    Guarantee: more noise is refuted by whatever refutes less, so that one significance covers the whole search.
    """
    if not refutes(curve(event, MOST)):
        return 0.0
    stands, refuted = LEAST - 1, MOST
    while refuted - stands > 1:
        middle = (stands + refuted) // 2
        stands, refuted = (stands, middle) if refutes(curve(event, middle)) else (middle, refuted)
    return _accountant(event, refuted).epsilon(scale_noise(event, STEP**refuted), delta)


@lru_cache(maxsize=512)
def curve(event: DpEvent, power: int = 0) -> Curve:
    """The curve of the event with STEP^power times its noise."""
    pricing, louder = _accountant(event, power), scale_noise(event, STEP**power)
    epsilons = np.array([pricing.epsilon(louder, float(delta)) for delta in DELTAS])
    finite = epsilons < EPSILON_OVERFLOWS
    # δ = 1 holds of everything, and is all that holds of an event that hides nothing.
    return Curve(np.append(epsilons[finite], 0.0), np.append(DELTAS[finite], 1.0))


def _accountant(event: DpEvent, power: int) -> PldAccountant:
    return PldAccountant(COARSER * suitable_grid(scale_noise(event, STEP**power)))


@singledispatch
def scale_noise(event: DpEvent, factor: float) -> DpEvent:
    """The event with so many times its noise.

    >>> scale_noise(SelfComposedDpEvent(GaussianDpEvent(2.0), 3), 0.5)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.0), count=3)
    """
    raise AccountingError(f"No noise is known in {type(event).__name__}.")


@scale_noise.register(NoOpDpEvent)
@scale_noise.register(NonPrivateDpEvent)
def _(event: DpEvent, factor: float) -> DpEvent:
    return event


@scale_noise.register
def _(event: GaussianDpEvent, factor: float) -> DpEvent:
    return GaussianDpEvent(event.noise_multiplier * factor)


@scale_noise.register
def _(event: PoissonSampledDpEvent, factor: float) -> DpEvent:
    return PoissonSampledDpEvent(event.sampling_probability, scale_noise(event.event, factor))


@scale_noise.register
def _(event: MixtureOfGaussiansDpEvent, factor: float) -> DpEvent:
    return MixtureOfGaussiansDpEvent(event.standard_deviation * factor, event.sensitivities, event.sampling_probs)


@scale_noise.register
def _(event: SelfComposedDpEvent, factor: float) -> DpEvent:
    return SelfComposedDpEvent(scale_noise(event.event, factor), event.count)


@scale_noise.register
def _(event: ComposedDpEvent, factor: float) -> DpEvent:
    return ComposedDpEvent(tuple(scale_noise(part, factor) for part in event.events))
