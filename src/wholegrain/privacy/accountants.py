"""What an event costs. Two accountants behind one protocol; each answer can be traced to the one that gave it.

Every price is computed in the process that charges, refuses or prints it; none is ever read from a file.

PLD (privacy loss distributions, the default) is the tighter one and prices everything that our policies do. RDP (the
moments accountant) is what the paper used; it cannot price mixtures and says so. The best of a random number of trials
is priced by its Rényi curve, whichever accountant is asked (`renyi`). Both give upper bounds for
add/remove-one; neither ever approximates what it cannot price.
"""

import contextlib
import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    NonPrivateDpEvent,
    SelfComposedDpEvent,
    UnsupportedEventError,
    rdp,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from wholegrain import _check
from wholegrain.errors import AccountingError
from wholegrain.privacy.events import iterate_cases
from wholegrain.privacy.filters import Filter
from wholegrain.privacy.first_guess import suitable_grid
from wholegrain.privacy.loss_composition import delta_curve, find_epsilon
from wholegrain.privacy.loss_distributions import loss_distribution
from wholegrain.privacy.renyi import iterate_steps, renyi_epsilon

# Raise it with every change to how events are priced, here or in `first_guess`.
PRICING = 4

SELECTION = "rdp (repeat and select)"

# Beyond this the library's way to ε leaves floating point (it takes exp(−ε)), and so does the smallest double.
LARGE_EPSILON = 700.0
LARGEST_EPSILON = 1e12

# How much coarser the grid is on which a case is first compared with the worst one so far.
COARSER = 8.0

# Below this the tail mass that PLD truncates would be a visible part of δ.
SMALLEST_DELTA = 1e-13


class Accountant(Protocol):
    """Prices events: the smallest ε it can show for an event at a δ."""

    @property
    def name(self) -> str:
        """The short name that answers carry."""
        ...

    @property
    def version(self) -> str:
        """All that the answer depends on besides the event and δ; caches key on it."""
        ...

    def epsilon(self, event: DpEvent, delta: float) -> float:
        """An upper bound on ε; infinite where nothing is protected."""
        ...

    def way(self, event: DpEvent) -> str:
        """By which theorem this event is priced; every answer names it."""
        ...

    def as_filter(self, limit: float | None) -> "Accountant":
        """The accountant for steps that are chosen after seeing what earlier ones released, up to a limit on ε."""
        ...


@dataclass(frozen=True)
class PldAccountant:
    """Privacy loss distributions on a grid; any grid gives an upper bound, a finer one a closer one.

    Without a grid of its own it takes a tenth of one step's typical privacy loss, which keeps the error of ε near a
    thousandth however many steps are composed, and costs the less the more noise there is.

    >>> from wholegrain.privacy.events import gaussian, repeat
    >>> round(PldAccountant().epsilon(repeat(gaussian(50.0), 1000), 1e-5), 3)
    2.594
    """

    grid: float | None = None

    @property
    def name(self) -> str:
        """`pld`."""
        return "pld"

    @property
    def version(self) -> str:
        """Accountant, grid and the version of dp_accounting."""
        return f"pld/{self.grid or 'auto'}/{_library_version()}"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        """The smallest ε that the discretised distribution shows at δ."""
        _check_delta(delta)
        if _selects(event):
            return renyi_epsilon(event, delta)
        worst = 0.0
        for case in iterate_cases(event):
            grid = self.grid or suitable_grid(case)
            # A coarse grid gives an upper bound, too: where that is below another case's, nothing finer is needed.
            if worst == 0 or self._epsilon(case, delta, COARSER * grid) > worst:
                worst = max(worst, self._epsilon(case, delta, grid))
        return worst

    def _epsilon(self, event: DpEvent, delta: float, grid: float) -> float:
        if _is_non_private(event):
            return math.inf
        try:
            with np.errstate(over="ignore", divide="ignore"):
                distribution = loss_distribution(event, grid)
                curve = delta_curve(distribution)
                if not curve(LARGE_EPSILON) <= delta:
                    return _large_epsilon(curve, delta)
                epsilon = find_epsilon(distribution, delta)
                return math.inf if math.isnan(epsilon) else epsilon
        except OverflowError:  # losses beyond floating point: so little noise that there is no bound to speak of
            return math.inf

    def way(self, event: DpEvent) -> str:
        """Composition of the event's steps, which are fixed beforehand; of a private selection, its Rényi curve."""
        return SELECTION if _selects(event) else self.name

    def as_filter(self, limit: float | None) -> Filter:
        """A filter over the steps."""
        return Filter(self, limit)


@dataclass(frozen=True)
class RdpAccountant:
    """Rényi differential privacy: the moments accountant of the paper."""

    @property
    def name(self) -> str:
        """`rdp`."""
        return "rdp"

    @property
    def version(self) -> str:
        """Accountant and the version of dp_accounting."""
        return f"rdp/{_library_version()}"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        """The smallest ε over dp_accounting's standard orders."""
        _check_delta(delta)
        if _selects(event):
            return renyi_epsilon(event, delta)
        return max(self._epsilon(case, delta) for case in iterate_cases(event))

    def _epsilon(self, event: DpEvent, delta: float) -> float:
        if _is_non_private(event):
            return math.inf
        accountant = rdp.RdpAccountant()
        try:
            with _quiet_orders():
                accountant.compose(event)
        except UnsupportedEventError as error:
            raise AccountingError(
                "The RDP accountant cannot price a subject whose number of sampled items is random"
                " (a mixture of Gaussians); use the accountant 'pld'."
            ) from error
        return float(accountant.get_epsilon(delta))

    def way(self, event: DpEvent) -> str:
        """Composition of the event's steps, which are fixed beforehand; of a private selection, its Rényi curve."""
        return SELECTION if _selects(event) else self.name

    def as_filter(self, limit: float | None) -> Filter:
        """A filter over the steps."""
        return Filter(self, limit)


DEFAULT: Accountant = PldAccountant()


def accountant(name: str, grid: float | None = None) -> Accountant:
    """The accountant with this short name."""
    _check.one_of("accountant", name, ["pld", "rdp"])
    return PldAccountant(grid) if name == "pld" else RdpAccountant()


def _check_delta(delta: float) -> None:
    _check.fraction("delta", delta)
    if delta < SMALLEST_DELTA:
        raise AccountingError(
            f"δ = {delta:g} is below what the accountant resolves ({SMALLEST_DELTA:g}); choose a larger δ."
        )


def _selects(event: DpEvent) -> bool:
    """Whether the best of several trials is part of the event: its price is known as a Rényi curve alone."""
    return any(isinstance(step, RepeatAndSelectDpEvent) for step, _ in iterate_steps(event))


def _is_non_private(event: DpEvent) -> bool:
    """Whether any part of the event protects nothing."""
    if isinstance(event, SelfComposedDpEvent):
        return _is_non_private(event.event)
    if isinstance(event, ComposedDpEvent):
        return any(_is_non_private(part) for part in event.events)
    return isinstance(event, NonPrivateDpEvent)


@contextlib.contextmanager
def _quiet_orders() -> Iterator[None]:
    """Hush the library where a Rényi order does not converge: it leaves that order out, and ε stays an upper bound."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _library_version() -> str:
    """Both halves of what computes an answer: our own pricing code and the library's."""
    return f"{PRICING}/{importlib.metadata.version('dp-accounting')}"


def _large_epsilon(curve: Callable[[float], float], delta: float) -> float:
    """The same by bisection over δ(ε), which takes exponents of differences alone and so never leaves floating point.

    Guarantee: δ(result) ≤ δ.
    """
    low, high = 0.0, LARGE_EPSILON
    while not curve(high) <= delta:
        low, high = high, 2 * high
        if high > LARGEST_EPSILON:  # mass at an infinite loss: no ε will do
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if curve(middle) <= delta else (middle, high)
    return high
