"""The least noise, or the most rounds, that a budget allows.

The searches treat the event as a black box (noise or rounds in, event out), so they serve one silo, sixteen different
ones, any span and any cohort schedule alike. What they return always meets the budget by the accountant's own answer.
"""

import math
from collections.abc import Callable

from dp_accounting import DpEvent
from scipy import optimize

from wholegrain.errors import BudgetError
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Budget
from wholegrain.privacy.first_guess import approximate_epsilon

LEAST_NOISE = 0.1
MOST_NOISE = 1e7
MOST_ROUNDS = 100_000
MOST_TRIALS = 60


def calibrate_noise(
    event_of: Callable[[float], DpEvent], budget: Budget, accountant: Accountant, tolerance: float = 5e-4
) -> float:
    """The smallest noise multiplier (at least `LEAST_NOISE`) whose event costs at most the budget.

    Guarantee: `accountant.epsilon(event_of(result), budget.delta) <= budget.epsilon`, and ε comes within `tolerance` (a
    relative one) of the budget unless `LEAST_NOISE` is enough.

    >>> from wholegrain.privacy.accountants import PldAccountant
    >>> from wholegrain.privacy.events import gaussian, repeat
    >>> round(calibrate_noise(lambda s: repeat(gaussian(s), 100), Budget(1.0, 1e-5), PldAccountant()), 1)
    37.3
    """
    guess = first_guess(event_of, budget)
    return least_noise(lambda noise: accountant.epsilon(event_of(noise), budget.delta), guess, budget, tolerance)


def least_noise(cost: Callable[[float], float], guess: float, budget: Budget, tolerance: float = 5e-4) -> float:
    """The same for any cost that falls with noise, from a first guess."""
    too_little: tuple[float, float] | None = None
    enough: tuple[float, float] | None = None
    noise = guess
    for _ in range(MOST_TRIALS):
        epsilon = cost(noise)
        if epsilon <= budget.epsilon:
            enough = (noise, epsilon)
            if noise <= LEAST_NOISE or epsilon >= budget.epsilon * (1 - tolerance):
                return noise
        else:
            too_little = (noise, epsilon)
        if noise >= MOST_NOISE:
            break
        if too_little and enough and enough[0] / too_little[0] < 1 + tolerance / 10:
            break
        noise = _next_guess(too_little, enough, budget.epsilon * (1 - tolerance / 2))
    if enough is None:
        raise BudgetError(
            f"No noise below {MOST_NOISE:g} meets ε = {budget.epsilon:g} at δ = {budget.delta:g}"
            " for this many steps; raise the budget or train less."
        )
    return enough[0]


def most_rounds(cost: Callable[[int], float], budget: Budget) -> int:
    """The most rounds whose cost, which grows with rounds, is at most the budget; an error where not even one fits.

    Guarantee: `cost(result) <= budget.epsilon`.
    """
    needed = cost(1)
    if not needed <= budget.epsilon:
        raise BudgetError(
            f"Not even one round fits: it costs ε = {needed:.4g} and the budget is {budget.epsilon:g}"
            f" at δ = {budget.delta:g}; add noise or sample less."
        )
    low, high = 1, 2
    while high <= MOST_ROUNDS and cost(high) <= budget.epsilon:
        low, high = high, high * 2
    if high > MOST_ROUNDS:
        return MOST_ROUNDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= budget.epsilon else (low, middle)
    return low


def first_guess(event_of: Callable[[float], DpEvent], budget: Budget) -> float:
    """Where the approximation meets the budget, on a logarithmic scale."""

    def excess(log_noise: float) -> float:
        approximate = approximate_epsilon(event_of(math.exp(log_noise)), budget.delta)
        return math.log(max(approximate, 1e-9)) - math.log(budget.epsilon)

    low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    if excess(low) <= 0:
        return LEAST_NOISE
    if excess(high) >= 0:
        return MOST_NOISE
    return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-4)))


def _next_guess(too_little: tuple[float, float] | None, enough: tuple[float, float] | None, target: float) -> float:
    """Interpolate log ε over log noise inside the bracket; outside it, step as if ε were proportional to 1/noise."""
    if too_little and enough:
        return _interpolate(too_little, enough, target)
    noise, epsilon = too_little or enough or (1.0, 1.0)
    ratio = min(max(epsilon / target, 0.1), 10.0) if math.isfinite(epsilon) else 10.0
    beyond = 1.002 if too_little else 0.998
    return min(max(noise * ratio * beyond, LEAST_NOISE), MOST_NOISE)


def _interpolate(too_little: tuple[float, float], enough: tuple[float, float], target: float) -> float:
    (low, cost_low), (high, cost_high) = too_little, enough
    middle = math.sqrt(low * high)
    if not (math.isfinite(cost_low) and cost_high > 0):
        return middle
    slope = math.log(cost_low / cost_high)
    share = math.log(cost_low / target) / slope
    # Keep off the ends: an end that never moves would make the search crawl.
    share = min(max(share, 0.02), 0.98)
    return float(math.exp(math.log(low) + share * math.log(high / low)))
