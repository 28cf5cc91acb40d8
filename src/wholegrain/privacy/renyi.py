"""Rényi curves of events: of one step, of what is composed of steps, and of the best of a random number of trials.

Divergences of steps are those of the pairs that dominate them (see `events`), by quadrature of their one-dimensional
densities; no discretised distribution is involved, and no tail is cut off.

The best of K trials. A trial is a mechanism Q whose output can be ranked (here: training, and a private score of what
came of it). K is drawn from a public law, the trials are made independently, and only the output of the best one is
released: neither the others nor K. With Q of Rényi divergence R(λ) at the order λ, in the worse direction
[Papernot & Steinke 2022]:

    K ~ Poisson(m)                   R'(λ) ≤ R(λ) + m·δ̂ + log(m)/(λ−1), where Q is (log(1 + 1/(λ−1)), δ̂)-private
                                     (their Theorem 6; with K = 0 something is released that depends on no data)
    K ~ truncated negative binomial  R'(λ) ≤ R(λ) + (1+η)·[(1 − 1/λ̂)·R(λ̂) − log(γ)/λ̂] + log(E K)/(λ−1), for any λ̂
    of shape η and parameter γ       (their Theorem 2)

δ̂ is the smaller of two upper bounds: from the Rényi curve, and from the privacy loss distribution, which has its own
truncated mass in it. Where a trial draws its settings at random, or a unit may meet one of several events, the worst of
them stands in for Q at every order: the settings are part of the output, and a mixture over public outputs diverges by
no more than its worst part.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

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
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent
from numpy.typing import NDArray

from wholegrain.errors import AccountingError
from wholegrain.privacy.events import WorstOfDpEvent, iterate_cases
from wholegrain.privacy.first_guess import suitable_grid
from wholegrain.privacy.loss_distributions import loss_distribution
from wholegrain.privacy.trial_count import TrialCount

MOST_POINTS = 400_000
"""Orders whose integrand would take more are left out: another order gives the bound, or there is none."""

MARGIN = 14.0
"""Beyond the farthest peak, in σ: what lies there is less than 1e-40 of the integral."""

SLACK = 1e-9
"""Relative, upwards: more than quadrature and rounding can be wrong by."""

MANY_ORDERS = tuple(2.0 ** (eighth / 8) for eighth in range(-24, 81))
"""a = α − 1, from 1/8 to 1024, where the best order may be looked for."""

Curve = NDArray[np.float64]
"""Rényi divergences by (direction, order)."""


def renyi_epsilon(event: DpEvent, delta: float) -> float:
    """The smallest ε at δ over many orders: for what was fixed beforehand, so that the minimum is free."""
    found = epsilons(curve(event, MANY_ORDERS), np.asarray(MANY_ORDERS), np.full(len(MANY_ORDERS), delta))
    return float(max(found.min(axis=1).max(), 0.0))


def epsilons(total: Curve, a: Curve, delta: Curve) -> Curve:
    """ε from each order's divergence at its share of δ [Canonne, Kamath & Steinke 2020, Proposition 12]."""
    return total + np.log(a / (1 + a)) - np.log(delta * (1 + a)) / a


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
    """The Rényi divergences of an event, in both directions, at the orders 1 + a; infinite where none is computed."""
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
        case SelfComposedDpEvent(event=inner, count=count):
            return np.asarray(count * curve(inner, orders))
        case ComposedDpEvent(events=parts):
            return np.asarray(np.sum([curve(part, orders) for part in parts], axis=0))
        case RepeatAndSelectDpEvent(event=trial, mean=mean, shape=shape):
            best = _curve_of_best(trial, TrialCount(mean, shape), orders)
            return np.stack([best, best])
        case NoOpDpEvent():
            return np.zeros((2, len(orders)))
        case NonPrivateDpEvent():
            return np.full((2, len(orders)), np.inf)
        case _:
            raise AccountingError(f"A Rényi curve cannot price {type(step).__name__}.")
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


def _curve_of_best(trial: DpEvent, count: TrialCount, orders: tuple[float, ...]) -> Curve:
    """The divergences of the best of `count` trials, at the orders 1 + a."""
    a = np.asarray(orders)
    alone = curve(trial, orders).max(axis=0) + math.log(count.mean * (1 + 1e-8)) / a  # γ is rounded down
    if count.is_poisson:
        return np.asarray(alone + count.mean * np.asarray(_deltas(trial, tuple(np.log1p(1 / a).tolist()))))
    order, many = 1 + np.asarray(MANY_ORDERS), curve(trial, MANY_ORDERS).max(axis=0)
    more = (1 + count.shape) * ((1 - 1 / order) * many - math.log(count.parameter) / order).min()
    return np.asarray(alone + more)


@lru_cache(maxsize=256)
def _deltas(trial: DpEvent, epsilons_of: tuple[float, ...]) -> tuple[float, ...]:
    """δ of the trial at each ε, in the worse direction and of the worst of its cases."""
    worst = np.zeros(len(epsilons_of))
    for case in iterate_cases(trial):
        if isinstance(case, NoOpDpEvent):
            continue
        bound = np.minimum(_deltas_by_curve(case, epsilons_of), _deltas_by_losses(case, epsilons_of))
        worst = np.maximum(worst, bound)
    return tuple(worst.tolist())


def _deltas_by_curve(case: DpEvent, epsilons_of: tuple[float, ...]) -> Curve:
    """The same formula as in `epsilons`, solved for δ; 1 is always true."""
    a, many = np.asarray(MANY_ORDERS), curve(case, MANY_ORDERS).max(axis=0)
    logs = a * (many + np.log(a / (1 + a)) - np.asarray(epsilons_of)[:, None]) - np.log1p(a)
    return np.asarray(np.exp(np.minimum(logs.min(axis=1), 0.0)))


def _deltas_by_losses(case: DpEvent, epsilons_of: tuple[float, ...]) -> Curve:
    if isinstance(case, NonPrivateDpEvent):
        return np.ones(len(epsilons_of))
    rising = np.argsort(epsilons_of)
    distribution, found = loss_distribution(case, suitable_grid(case)), np.empty(len(epsilons_of))
    found[rising] = distribution.get_delta_for_epsilon(np.asarray(epsilons_of)[rising].tolist())
    return found
