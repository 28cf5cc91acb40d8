"""What a run's steps reveal, silo by silo and unit by unit: the terms on which releases are priced.

A run states its terms once, before it trains; from then on counting steps is enough to know what was spent. Terms are
made of events, which are public facts, so that a ledger can keep them and price them without knowing any policy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dp_accounting import DpEvent

from wholegrain.errors import AccountingError
from wholegrain.privacy import events
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.filters import Filter
from wholegrain.privacy.group_privacy import group_epsilon

Releases = Mapping[str, int]
"""Steps that each silo released."""


@dataclass(frozen=True)
class Exposure:
    """What one step of each silo reveals about a unit that can be in at most `reach` of them.

    `worst` is an event that no silo's step exceeds; it is needed only where `reach` is less than the silos there are.
    """

    reach: int
    steps: Mapping[str, DpEvent]
    worst: DpEvent | None = None

    def event(self, releases: Releases) -> DpEvent:
        """What these releases together reveal about one unit.

        Where the unit can be in every silo that released, their events compose exactly. Otherwise nobody knows in
        which ones it is: the worst step stands in, as often as the `reach` silos that released most did.
        """
        active = {silo: count for silo, count in releases.items() if count > 0}
        unknown = active.keys() - self.steps.keys()
        if unknown:
            raise AccountingError(f"The run's terms say nothing about the silo '{min(unknown)}'.")
        if self.reach >= len(active):
            return events.compose(events.repeat(self.steps[silo], count) for silo, count in active.items())
        if self.worst is None:
            raise AccountingError(
                f"A unit can be in {self.reach} of {len(active)} silos that released, and no worst step was stated."
            )
        most = sorted(active.values(), reverse=True)[: self.reach]
        return events.repeat(self.worst, sum(most))


@dataclass(frozen=True)
class Terms:
    """A run's exposures by unit.

    An item more or less is also its subject taken away and another version of it put in place: `through_subject`,
    where it is given, is what that subject meets in one silo, and often the better bound.
    """

    exposures: Mapping[Unit, Exposure]
    through_subject: Exposure | None = None

    def of(self, unit: Unit) -> Exposure:
        """The exposure of this unit."""
        if unit not in self.exposures:
            raise AccountingError(f"The run's terms say nothing about the unit '{unit}'.")
        return self.exposures[unit]


Spending = tuple[Terms, Releases]
"""What one run has released so far, and on what terms."""


@dataclass(frozen=True)
class Price:
    """ε, and by which theorem."""

    epsilon: float
    way: str


def price(spent: Iterable[Spending], unit: Unit, accountant: Accountant, delta: float) -> float:
    """The smallest ε at δ that can be proved for one unit, over all that these runs released.

    >>> from wholegrain.privacy.accountants import DEFAULT
    >>> terms = Terms({Unit.SUBJECT: Exposure(1, {"north": events.gaussian(5.0)})})
    >>> round(price([(terms, {"north": 4})], Unit.SUBJECT, DEFAULT, 1e-5), 2)
    1.55
    """
    return _cheapest(spent, unit, accountant, delta)[0]


def price_with_method(spent: Iterable[Spending], unit: Unit, accountant: Accountant, delta: float) -> Price:
    """The same, with its way."""
    epsilon, event = _cheapest(spent, unit, accountant, delta)
    return Price(epsilon, accountant.way(event))


def _cheapest(spent: Iterable[Spending], unit: Unit, accountant: Accountant, delta: float) -> tuple[float, DpEvent]:
    """ε, and the event that it was found from.

    Where steps were chosen later, so was the cheaper of two ways: each then has half of δ (see `filters`).
    """
    direct, subject = compose_events(spent, unit)
    if subject is None:
        return accountant.epsilon(direct, delta), direct
    delta = delta / 2 if isinstance(accountant, Filter) else delta
    epsilon = accountant.epsilon(direct, delta)
    around = group_epsilon(lambda inner: accountant.epsilon(subject, inner), 2, delta)
    return (epsilon, direct) if epsilon <= around else (around, subject)


def compose_events(spent: Iterable[Spending], unit: Unit) -> tuple[DpEvent, DpEvent | None]:
    """What all of it reveals about a unit; and of an item, where that can be told, what its subject meets."""
    spent = list(spent)
    direct = events.compose(terms.of(unit).event(steps) for terms, steps in spent)
    around = [(terms.through_subject, steps) for terms, steps in spent]
    if unit is not Unit.ITEM or not all(exposure for exposure, _ in around):
        return direct, None
    return direct, events.compose(exposure.event(steps) for exposure, steps in around if exposure)
