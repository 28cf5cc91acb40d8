"""From scores to guesses to bounds: which canaries to guess about, and where to draw the line.

Neither may be chosen by looking at the coins that are guessed. In one run a few numbers of guesses are tried, and share
the significance; over trials the line is drawn by some of them and used on the others, unless it was drawn before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy import stats

from wholegrain.audit.confidence_bounds import Counts, Guesses, Rates, one_run_epsilon, rates, two_world_epsilon
from wholegrain.audit.curves import curve, refuted_by_rates, refuted_epsilon

Coins = NDArray[np.bool_]
Values = NDArray[np.float64]

SHARES = (0.01, 0.04, 0.15, 0.6)
"""Shares of the canaries about which guesses are made."""
FEWEST = 30
LINES = 200
"""Most places at which a line is tried."""
SCOUTS = 4
"""One trial in so many draws the line, and is used for nothing else."""


@dataclass(frozen=True, eq=False)
class AttackEvidence:
    """Secret coins and an attack's scores [canary], and what they are held against: δ, and the event that was proved.

    `line` is where "in" begins, if that was known before any coin fell.
    """

    coins: Coins
    scores: Values
    delta: float
    event: DpEvent | None = None
    line: float | None = None


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε, whether it refutes the event that was proved, and what it was made from, in words."""

    epsilon: float
    refutes: bool
    seen: str


Method = Callable[[AttackEvidence, float], Bound]
"""From evidence and a significance to a bound."""


def one_run_bound(evidence: AttackEvidence, significance: float) -> Bound:
    """For any mechanism [Steinke et al. 2023]."""
    tried = all_guesses(evidence.coins, evidence.scores)
    found = [(one_run_epsilon(guesses, evidence.delta, significance / len(tried)), guesses) for guesses in tried]
    epsilon, best = max(found, key=lambda pair: pair[0])
    return Bound(epsilon, False, f"{best.right} of {best.made} right")


def trials_bound(evidence: AttackEvidence, significance: float) -> Bound:
    """For any mechanism, from independent trials [Clopper and Pearson 1934]."""
    found = observed_rates(evidence, significance, lambda each: two_world_epsilon(each, evidence.delta))
    return Bound(two_world_epsilon(found, evidence.delta), False, _describe(found))


def curve_bound(evidence: AttackEvidence, significance: float) -> Bound:
    """For mechanisms with a curve like the event's, from independent trials [Nasr et al. 2023]."""
    assert evidence.event is not None
    found = observed_rates(evidence, significance, _distance)
    epsilon = refuted_epsilon(evidence.event, evidence.delta, lambda each: refuted_by_rates(each, found))
    return Bound(epsilon, refuted_by_rates(curve(evidence.event), found), _describe(found))


def all_guesses(coins: Coins, scores: Values) -> list[Guesses]:
    """Guesses in the numbers that are tried."""
    numbers = {min(len(coins), max(FEWEST, int(share * len(coins)))) for share in SHARES}
    return [guess(coins, scores, made) for made in sorted(numbers)]


def guess(coins: Coins, scores: Values, made: int) -> Guesses:
    """Guesses on the canaries whose scores lie furthest from the middle: in where they are high, out where low.

    >>> guess(np.array([True, True, False, False]), np.array([3.0, 0.2, 0.1, -4.0]), made=2)
    Guesses(canaries=4, made=2, right=2)
    """
    centred = scores - np.median(scores)
    surest = np.argsort(-np.abs(centred), kind="stable")[:made]
    return Guesses(len(coins), made, int(((centred > 0) == coins)[surest].sum()))


def observed_rates(evidence: AttackEvidence, significance: float, worth: Callable[[Rates], float]) -> Rates:
    """Error rates of saying "in" above a line; one that is not given is drawn where it is worth most to the scouts."""

    def seen(part: Coins, line: float, times: int = 1) -> Rates:
        return rates(_counts(evidence.coins[part], evidence.scores[part], line, times), significance)

    def expected(line: float) -> float:
        """What the others' rates will be worth, if they are as the scouts', of whom there are fewer."""
        return worth(seen(scouts, line, SCOUTS - 1))

    scouts = np.arange(len(evidence.coins)) % SCOUTS == 0
    if evidence.line is not None:
        return seen(np.ones_like(scouts), evidence.line)
    return seen(~scouts, max(_lines(evidence.scores[scouts]), key=expected))


def _lines(scores: Values) -> Iterator[float]:
    """Places between scores that differ, the closer the further out: what tells most of a large ε lies at an end."""
    distinct = np.unique(scores)
    if len(distinct) < 2:
        yield float(distinct[0])
        return
    between = (distinct[1:] + distinct[:-1]) / 2
    steps = np.unique(np.geomspace(1, len(between), LINES // 2).astype(int))
    yield from between[steps - 1].tolist()
    yield from between[-steps].tolist()


def _counts(coins: Coins, scores: Values, line: float, times: int) -> Counts:
    said = scores > line
    return Counts(*(times * int(each.sum()) for each in (said & coins, coins, said & ~coins, ~coins)))


def _distance(found: Rates) -> float:
    """How far apart two normal laws with these rates are: comparable from one end of a curve to the other."""
    hits, alarms = np.clip([found.hits, found.alarms], 1e-9, 1 - 1e-9)
    return float(stats.norm.ppf(hits) - stats.norm.ppf(alarms))


def _describe(found: Rates) -> str:
    return f"hits {_short(found.hits)}, alarms {_short(found.alarms)}"


def _short(rate: float) -> str:
    return f"{rate:.2f}" if rate >= 0.01 or rate == 0 else f"{rate:.0e}"
