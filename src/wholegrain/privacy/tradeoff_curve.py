"""The same guarantee as an attacker meets it: f-DP [Dong, Roth & Su 2022].

An attacker who must tell whether somebody is in the data errs: with false alarms α (says yes of somebody who is not
there) and misses β. A mechanism that is (ε, δ(ε))-private for every ε holds β above

    f(α) = max over ε of max(0, 1 − δ(ε) − e^ε·α, e^{−ε}·(1 − δ(ε) − α))

Any set of pairs (ε, δ(ε)) that hold gives a lower bound on β; they are upper bounds on privacy loss, so that f is one
on what an attacker can do. μ is that of the Gaussian mechanism with the same δ at the guarantee's own ε, the nearest in
the family that many small releases approach.

What a guess becomes: let somebody believe beforehand with probability p that a person is there, and see an outcome
that has probability a without that person, and so at most e^ε·a + δ with. Then the odds grow by at most e^ε + δ/a. It
is told for outcomes that are not rarer than a = 1 %; of rarer ones nothing better can be said than δ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from numpy.typing import NDArray
from scipy import optimize, stats

from wholegrain.errors import AccountingError
from wholegrain.privacy.accountants import Accountant

DELTAS = (1e-7, 1e-5, 1e-4, 1e-3, *np.geomspace(0.005, 0.8, 10).tolist())
"""Where the curve is asked for its ε: densely where its middle is drawn."""

GUESSES = (0.5, 0.01)
"""What somebody may believe beforehand."""

LARGEST_EXPONENT = 700.0
"""Of e: beyond it lies floating point's end."""
RARE = 0.01
"""The probability, without the person, below which nothing is told of an outcome."""


@dataclass(frozen=True)
class AttackView:
    """A guarantee as an attacker meets it."""

    unit: str
    epsilon: float
    delta: float
    mu: float
    """Of the Gaussian mechanism with the same ε at this δ."""
    false_alarms: tuple[float, ...]
    misses: tuple[float, ...]
    """The fewest at each number of false alarms."""

    @property
    def beliefs(self) -> tuple[tuple[float, float], ...]:
        """What each guess beforehand can become."""
        return tuple((guess, belief_after(guess, self.epsilon, self.delta)) for guess in GUESSES)


def attack_view(unit: str, event: DpEvent, delta: float, accountant: Accountant) -> AttackView | None:
    """The view of an event; None where it protects nobody, or its curve cannot be had."""
    if isinstance(event, NonPrivateDpEvent):
        return None
    try:
        pairs = [(accountant.epsilon(event, each), each) for each in (*DELTAS, delta)]
    except AccountingError:
        return None
    alarms = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 60)])
    misses = fewest_misses(alarms, pairs)
    epsilon = pairs[-1][0]
    return AttackView(unit, epsilon, delta, nearest_mu(epsilon, delta), tuple(alarms.tolist()), tuple(misses.tolist()))


def fewest_misses(alarms: NDArray[np.float64], pairs: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """f(α) from pairs of ε and δ that hold.

    >>> fewest_misses(np.array([0.0, 0.5]), [(0.0, 0.1)]).tolist()
    [0.9, 0.4]
    """
    found = np.zeros_like(alarms)
    for epsilon, delta in pairs:
        if not math.isfinite(epsilon):
            continue
        steep = 1 - delta - np.exp(min(epsilon, LARGEST_EXPONENT)) * alarms
        flat = math.exp(-epsilon) * (1 - delta - alarms)
        found = np.maximum(found, np.maximum(steep, flat))
    return np.asarray(np.round(np.clip(found, 0.0, 1.0), 12))


def belief_after(before: float, epsilon: float, delta: float) -> float:
    """The most that a belief can become, by an outcome that is not rare.

    >>> round(belief_after(0.5, 1.0, 1e-5), 3), round(belief_after(0.01, 1.0, 1e-5), 4)
    (0.731, 0.0267)
    """
    odds = (math.exp(min(epsilon, LARGEST_EXPONENT)) + delta / RARE) * before
    return odds / (1 - before + odds)


def nearest_mu(epsilon: float, delta: float) -> float:
    """μ of the Gaussian mechanism that is (ε, δ)-private and no more; infinite where there is no ε.

    >>> round(nearest_mu(2.59, 1e-5), 2)
    0.63
    """
    if not math.isfinite(epsilon):
        return math.inf

    def excess(mu: float) -> float:
        inner = stats.norm.logcdf(-epsilon / mu - mu / 2)
        return float(stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(min(epsilon + inner, 0.0)) - delta)

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(optimize.brentq(excess, 1e-9, high, xtol=1e-9))
