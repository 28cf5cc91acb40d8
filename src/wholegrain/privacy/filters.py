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

A run whose training and private scores concern different people is, for each person, one of the two (see `events`): a
filter adds up, order by order, the larger one. The best of a random number of trials is one step with a Rényi curve of
its own (see `renyi`).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from wholegrain.privacy.renyi import curve, epsilons, iterate_steps

GAUSSIAN, RENYI = "Gaussian filter", "Rényi filter"

ORDERS = tuple(2.0 ** (half / 2) for half in range(-2, 19))
"""a = α − 1 of the orders that every filter has, from 0.5 to 512."""

SHARES = tuple(1 / (1 + abs(math.log2(a / 8))) for a in ORDERS)
"""Of δ, relative to one another: most for the orders that an ε between 1 and 10 needs."""

SHARE_OF_GAUSSIANS = 1 / 3
"""Of δ, for the case that all steps turn out to be Gaussians."""


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

    def as_filter(self, limit: float | None) -> "Filter":
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
        return float(max(epsilons(total, np.asarray(orders), delta * np.asarray(shares)).min(axis=1).max(), 0.0))


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
    largest = (limit - epsilons(np.zeros_like(a), a, np.full_like(a, delta))) / (1 + a)
    return float(a[largest.argmax()])
