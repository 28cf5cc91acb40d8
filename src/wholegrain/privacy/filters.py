"""What a sequence of steps costs when each was chosen after seeing what the ones before it released.

Composition by privacy loss distributions (PLD) prices a sequence of events that is fixed beforehand. Who chooses the
next event, or whether there is one, by looking at what was released, needs a privacy filter. What covers what:

    one run, terms and schedule fixed at its opening        PLD of the steps it has released
    the same, stopped early for whatever reason             PLD of the steps it has released
    the same, rounds played again after a fault             PLD, where only the number of steps can change (all steps
                                                            of one kind); otherwise a filter
    an account for several runs, and every silo's account   a filter over all steps

PLD holds for a run that stops early: let n be any fixed number of steps. Every outcome in which the run stopped at n or
before also occurs, with the same chances, if it is cut off at n; and the run that is cut off is the composition of n
fixed steps. So every conclusion from "the record shows n steps at most" keeps to (ε_n, δ). The same holds of faults, if
only the number of steps depends on them. It fails as soon as the *kind* of the next step may depend on what was seen:
an account with several runs, a silo whose server may change noise and rate in every round.

The filters, with a = α − 1 and R_t(α) the Rényi divergence of step t, in one of the two directions (a unit added, a
unit removed; every bound below is taken in both):

    Gaussian. Where all steps are Gaussians of unit rate, μ² = Σ 1/σ_t² adds up, whoever chose them [Smith & Thakurta
    2022; Koskela et al. 2023]: the whole is one Gaussian.

    Rényi. exp(a·Σ_t (L_t − R_t(α))) is a supermartingale for adaptively chosen steps [Feldman & Zrnic 2021; Lécuyer
    2021; Whitehouse et al. 2023], so where Σ R_t(α) ≤ B at the end, δ(ε) ≤ exp(a(B − ε))·(1 − 1/α)^a / α
    [Canonne, Kamath & Steinke 2020].

Each is for one way to count, fixed beforehand. Which of several ways (the Gaussian one, or one of several orders) is
best at the end depends on what was seen, and the minimum is not free: outcomes that end well under one way and outcomes
that end well under another add up. Each way therefore has a share of δ, fixed beforehand, and the shares add up to one:
a third for Gaussians, a third for the order that suits the account's limit, a third for a fixed set of orders. For an
item that can also be priced through its subject, each of the two has half of δ.

Mechanisms may also run at the same time [Haney et al. 2023]: filters bear runs that are interleaved.

A filter's answer x means: every conclusion from outcomes for which it answers x or less keeps to (x, δ). With a limit
that is fixed beforehand, and nothing released beyond it, all that was ever released keeps to (limit, δ). One gap is
left to name: a run with steps of several kinds is priced by PLD while nothing was played again, and by a filter
afterwards. That is sound for faults that do not depend on what was released; somebody who stops and resumes a run
because of what it released can bring δ to 2δ.

Rényi divergences are those of the pairs that dominate a step (see `events`), by quadrature of their one-dimensional
densities; no discretised distribution is involved, and no tail is cut off.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

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

from wholegrain.errors import AccountingError
from wholegrain.privacy.events import WorstOfDpEvent

GAUSSIAN, RENYI = "Gaussian filter", "Rényi filter"

ORDERS = tuple(2.0 ** (half / 2) for half in range(-2, 19))
"""a = α − 1 of the orders that every filter has, from 0.5 to 512."""

SHARES = tuple(1 / (1 + abs(math.log2(a / 8))) for a in ORDERS)
"""Of δ, relative to one another: most for the orders that an ε between 1 and 10 needs."""

SHARE_OF_GAUSSIANS = 1 / 3
"""Of δ, for the case that all steps turn out to be Gaussians."""

MOST_POINTS = 400_000
"""Orders whose integrand would take more are left out: another order gives the bound, or there is none."""

MARGIN = 14.0
"""Beyond the farthest peak, in σ: what lies there is less than 1e-40 of the integral."""

SLACK = 1e-9
"""Relative, upwards: more than quadrature and rounding can be wrong by."""

Curve = NDArray[np.float64]
"""Rényi divergences by (direction, order)."""


class GaussianPricer(Protocol):
    """Whoever prices the Gaussian that a sequence of Gaussians amounts to."""

    def epsilon(self, event: DpEvent, delta: float) -> float:
        """An upper bound on ε."""
        ...


@dataclass(frozen=True)
class Filter:
    """An accountant for steps that are chosen one after the other; `limit` is what it is tuned for, if anything is.

    >>> from wholegrain.privacy.accountants import PldAccountant
    >>> from wholegrain.privacy.events import repeat, sampled_gaussian
    >>> steps = repeat(sampled_gaussian(0.2, 3.0), 100)
    >>> round(PldAccountant().epsilon(steps, 1e-5), 2), round(Filter(PldAccountant(), 4.0).epsilon(steps, 1e-5), 2)
    (2.98, 3.45)
    """

    inner: GaussianPricer
    limit: float | None = None

    @property
    def name(self) -> str:
        """The short name; `way` says which filter priced an event."""
        return "filter"

    @property
    def version(self) -> str:
        """All that the answer depends on besides the event and δ."""
        return f"filter/{self.limit}"

    def filtered(self, limit: float | None) -> "Filter":
        """A filter already."""
        return Filter(self.inner, limit)

    def way(self, event: DpEvent) -> str:
        """Which filter prices this event."""
        return GAUSSIAN if all(isinstance(step, GaussianDpEvent) for step, _ in iterate_steps(event)) else RENYI

    def epsilon(self, event: DpEvent, delta: float) -> float:
        """The smallest ε at δ, whoever chose the steps of the event, and when."""
        steps = list(iterate_steps(event))
        if any(isinstance(step, NonPrivateDpEvent) for step, _ in steps):
            return math.inf
        if self.way(event) == GAUSSIAN:
            squared = sum(count / step.noise_multiplier**2 for step, count in steps)
            alone = GaussianDpEvent(1 / math.sqrt(squared)) if squared else NoOpDpEvent()
            return self.inner.epsilon(alone, delta * SHARE_OF_GAUSSIANS)
        orders, shares = _orders(self.limit, delta)
        total = sum((count * curve(step, orders) for step, count in steps), np.zeros((2, len(orders))))
        return float(max(_epsilons(total, np.asarray(orders), delta * np.asarray(shares)).min(axis=1).max(), 0.0))


def iterate_steps(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """The steps that an event is composed of, each kind with its number."""
    if isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from iterate_steps(part)
    elif isinstance(event, SelfComposedDpEvent):
        yield from ((step, count * event.count) for step, count in iterate_steps(event.event))
    elif not isinstance(event, NoOpDpEvent):
        yield event, 1


@lru_cache(maxsize=4096)
def curve(step: DpEvent, orders: tuple[float, ...]) -> Curve:
    """The Rényi divergences of one step, in both directions, at the orders 1 + a; infinite where none is computed."""
    match step:
        case GaussianDpEvent(noise_multiplier=noise):
            alone = (1 + np.asarray(orders)) / (2 * noise**2)
            return np.stack([alone, alone])
        case PoissonSampledDpEvent(sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=noise)):
            moves, chances = [0.0, 1 / noise], [1 - rate, rate]
        case MixtureOfGaussiansDpEvent(standard_deviation=noise):
            moves, chances = [move / noise for move in step.sensitivities], list(step.sampling_probs)
        case WorstOfDpEvent(cases=cases):
            # Of each unit one case is true, whichever: at every order none diverges by more than the worst.
            return np.asarray(np.max([curve(case, orders) for case in cases], axis=0))
        case NoOpDpEvent():
            return np.zeros((2, len(orders)))
        case NonPrivateDpEvent():
            return np.full((2, len(orders)), np.inf)
        case _:
            raise AccountingError(f"A filter cannot price {type(step).__name__}.")
    return np.array([_divergences(np.asarray(moves), np.asarray(chances), orders, out) for out in (False, True)])


def _divergences(moves: Curve, chances: Curve, orders: tuple[float, ...], out: bool) -> list[float]:
    return [_divergence(moves, chances, a, out) for a in orders]


def _divergence(moves: Curve, chances: Curve, a: float, out: bool) -> float:
    """D_{1+a} between P = Σ p_j N(m_j, 1) and Q = N(0, 1): of P from Q, or (`out`) of Q from P.

    With r = P/Q the integrands are φ·r^{1+a} and φ·r^{−a}: analytic, falling like a Gaussian beyond their last peak,
    and without a singularity nearer to the real line than the zeros of r, about π/m. The trapezoidal rule converges
    exponentially on such functions; its step is far below what that takes.
    """
    most, power = float(moves.max()), -a if out else 1 + a
    farthest = abs(power) * most
    low, high = (-farthest - MARGIN, MARGIN) if out else (-MARGIN, farthest + MARGIN)
    points = (high - low) * max(1.0, most) / 0.08
    if points > MOST_POINTS:
        return math.inf
    grid = np.linspace(low, high, int(points) + 2)
    log_ratio = np.full_like(grid, -np.inf)
    for move, chance in zip(moves, chances, strict=True):
        if chance > 0:
            log_ratio = np.logaddexp(log_ratio, math.log(chance) + grid * move - move**2 / 2)
    logs = power * log_ratio - grid**2 / 2
    top = float(logs.max())
    integral = top + math.log(float(np.exp(logs - top).sum()) * (grid[1] - grid[0]) / math.sqrt(2 * math.pi))
    return max(integral, 0.0) / a * (1 + SLACK) + SLACK * 1e-6 / a


def _epsilons(total: Curve, a: Curve, delta: Curve) -> Curve:
    """ε from each order's divergence at its share of δ [Canonne, Kamath & Steinke 2020, Proposition 12]."""
    return total + np.log(a / (1 + a)) - np.log(delta * (1 + a)) / a


@lru_cache(maxsize=256)
def _orders(limit: float | None, delta: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Orders and their shares of δ. All of it is fixed before anything is released."""
    left = 1 - SHARE_OF_GAUSSIANS
    shares = [share / sum(SHARES) * left for share in SHARES]
    if limit is None:
        return ORDERS, tuple(shares)
    return (_best_order(limit, delta * left / 2), *ORDERS), (left / 2, *(share / 2 for share in shares))


def _best_order(limit: float, delta: float) -> float:
    """The order at which a Gaussian may be largest within the limit: many small steps look like one."""
    a = np.geomspace(ORDERS[0], ORDERS[-1], 481)
    largest = (limit - _epsilons(np.zeros_like(a), a, np.full_like(a, delta))) / (1 + a)
    return float(a[largest.argmax()])
