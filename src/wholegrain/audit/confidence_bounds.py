"""From an attack's guesses to a lower bound on ε that holds with confidence. Statistics alone: no attack, no torch.

Two experiments are understood, both on secret fair coins that say which canaries were put in.

    one run      many canaries, one training: the guesses depend on each other, and the bound allows for that
                 [Steinke, Nasr and Jagielski 2023, Theorem 5.2]
    trials       independent trials of one canary each: exact binomial intervals on both error rates

`significance` is the probability, over coins and noise, that a bound lies above the true ε: 0.05 for 95 % confidence.
It is a bound for what is asked once; who asks several times divides the significance among the questions.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

MOST_EPSILON = 200.0
"""Beyond it no number of guesses that fits a computer says anything."""


@dataclass(frozen=True)
class Guesses:
    """`right` of `made` guesses about `canaries` secret coins were right; on the other canaries none was made."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise ValueError(f"{self.right} right of {self.made} guesses on {self.canaries} canaries is impossible")


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """At most the chance of so many right guesses if the run is (ε, δ)-DP for every canary.

    With ε alone, right guesses are dominated by Binomial(made, e^ε/(1+e^ε)); δ adds 2mδ·max_i P[v−i ≤ B < v]/i.

    >>> round(one_run_p_value(Guesses(100, 10, 10), math.log(3), 0.0), 4)  # 0.75 ** 10
    0.0563
    """
    if guesses.right == 0:
        return 1.0
    chance = special.expit(epsilon)
    tail = float(special.bdtrc(guesses.right - 1, guesses.made, chance))
    if delta == 0:
        return tail
    i = np.arange(1, guesses.right + 1)
    below = np.append(special.bdtrc(guesses.right - i[:-1] - 1, guesses.made, chance), 1.0) - tail
    return min(1.0, tail + 2 * guesses.canaries * delta * float((below / i).max()))


def one_run_epsilon(guesses: Guesses, delta: float, significance: float) -> float:
    """The largest ε that these guesses refute at δ; 0 where they refute none.

    >>> round(one_run_epsilon(Guesses(canaries=1000, made=100, right=98), 1e-5, 0.05), 2)
    2.71
    """

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, epsilon, delta) - significance

    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, MOST_EPSILON)) if excess(MOST_EPSILON) > 0 else MOST_EPSILON


@dataclass(frozen=True)
class Counts:
    """How often an attack said "in": `hits` of `inside` trials where it was, `alarms` of `outside` where it was not."""

    hits: int
    inside: int
    alarms: int
    outside: int


@dataclass(frozen=True)
class Rates:
    """Hits are at least so likely, and false alarms at most."""

    hits: float
    alarms: float


def rates(counts: Counts, significance: float) -> Rates:
    """Both bounds at once, by Clopper and Pearson, each with half of the significance.

    >>> found = rates(Counts(hits=50, inside=50, alarms=0, outside=50), 0.05)
    >>> round(found.hits, 4), round(found.alarms, 4)
    (0.9289, 0.0711)
    """
    return Rates(
        hits=at_least(counts.hits, counts.inside, significance / 2),
        alarms=1 - at_least(counts.outside - counts.alarms, counts.outside, significance / 2),
    )


def at_least(successes: int, trials: int, significance: float) -> float:
    """A lower bound on a probability [Clopper and Pearson 1934].

    >>> round(at_least(50, 50, 0.025), 4), at_least(0, 50, 0.025)
    (0.9289, 0.0)
    """
    # What scipy's binomtest inverts by search, in closed form.
    return float(special.betaincinv(successes, trials - successes + 1, significance)) if successes else 0.0


def two_world_epsilon(rates: Rates, delta: float) -> float:
    """The largest ε that these rates refute at δ, from hits against alarms and from their opposites.

    >>> round(two_world_epsilon(Rates(hits=0.5, alarms=0.01), 1e-5), 3)
    3.912
    """
    return max(
        0.0,
        _log_ratio(rates.hits - delta, rates.alarms),
        _log_ratio(1 - rates.alarms - delta, 1 - rates.hits),
    )


def _log_ratio(above: float, below: float) -> float:
    if above <= 0:
        return 0.0
    return math.log(above / below) if below > 0 else MOST_EPSILON
