"""What a run's steps reveal, silo by silo and unit by unit: the terms on which releases are priced.

A run states its terms once, before it trains; from then on counting steps is enough to know what was spent. Terms are
made of events, which are public facts, so that a ledger can keep them and price them without knowing any policy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from dp_accounting import DpEvent, NoOpDpEvent

from wholegrain.errors import AccountingError
from wholegrain.privacy import events
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.filters import Filter
from wholegrain.privacy.group_privacy import group_epsilon

Releases = Mapping[str, int]
"""Steps that each silo released."""

NOTHING: Releases = MappingProxyType({})
"""No silo released anything."""


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
    where it is given, is what that subject meets in one silo, and often the better bound. `scores`, where it is given,
    is what one private score of each silo reveals of people who are not trained on.

    Where every silo tosses coins of its own, a subject may be trained on in some silos and held out in others. `split`
    has what it meets then: a step of training and a score, for every way to divide its silos.
    """

    exposures: Mapping[Unit, Exposure]
    through_subject: Exposure | None = None
    scores: Mapping[Unit, Exposure] | None = None
    split: tuple[tuple[Exposure, Exposure], ...] = ()

    def of(self, unit: Unit) -> Exposure:
        """The exposure of this unit."""
        if unit not in self.exposures:
            raise AccountingError(f"The run's terms say nothing about the unit '{unit}'.")
        return self.exposures[unit]

    def event(self, unit: Unit, steps: Releases, scores: Releases) -> DpEvent:
        """What these releases reveal about one unit: in no silo it is both trained on and held out."""
        sides = [self.of(unit).event(steps), self._event_of_scores(unit, scores)]
        if unit is Unit.SUBJECT and any(scores.values()):
            sides += [events.compose([one.event(steps), other.event(scores)]) for one, other in self.split]
        return events.side_by_side(*sides)

    def event_through_subject(self, steps: Releases, scores: Releases) -> DpEvent | None:
        """What the subject of an item meets in one silo, if that is stated."""
        if self.through_subject is None:
            return None
        return events.side_by_side(self.through_subject.event(steps), self._event_of_scores(Unit.ITEM, scores))

    def _event_of_scores(self, unit: Unit, scores: Releases) -> DpEvent:
        if not any(scores.values()):
            return NoOpDpEvent()
        if self.scores is None or unit not in self.scores:
            raise AccountingError(f"The run's terms say nothing about what scores reveal of the unit '{unit}'.")
        return self.scores[unit].event(scores)


class Spending(NamedTuple):
    """What one run has released so far, steps of training and private scores, and on what terms."""

    terms: Terms
    steps: Releases
    scores: Releases = NOTHING


Spent = Spending | tuple[Terms, Releases]
"""The same; without scores, a pair is enough."""


@dataclass(frozen=True)
class Price:
    """ε, and by which theorem."""

    epsilon: float
    way: str


def price(spent: Iterable[Spent], unit: Unit, accountant: Accountant, delta: float) -> float:
    """The smallest ε at δ that can be proved for one unit, over all that these runs released.

    >>> from wholegrain.privacy.accountants import DEFAULT
    >>> terms = Terms({Unit.SUBJECT: Exposure(1, {"north": events.gaussian(5.0)})})
    >>> round(price([(terms, {"north": 4})], Unit.SUBJECT, DEFAULT, 1e-5), 2)
    1.55
    """
    return _cheapest(spent, unit, accountant, delta)[0]


def price_with_method(spent: Iterable[Spent], unit: Unit, accountant: Accountant, delta: float) -> Price:
    """The same, with its way."""
    epsilon, event = _cheapest(spent, unit, accountant, delta)
    return Price(epsilon, accountant.way(event))


def _cheapest(spent: Iterable[Spent], unit: Unit, accountant: Accountant, delta: float) -> tuple[float, DpEvent]:
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


def compose_events(spent: Iterable[Spent], unit: Unit) -> tuple[DpEvent, DpEvent | None]:
    """What all of it reveals about a unit; and of an item, where that can be told, what its subject meets."""
    found = [Spending(*each) for each in spent]
    direct = events.compose(each.terms.event(unit, each.steps, each.scores) for each in found)
    if unit is not Unit.ITEM:
        return direct, None
    around = [each.terms.event_through_subject(each.steps, each.scores) for each in found]
    known = [event for event in around if event is not None]
    return direct, events.compose(known) if len(known) == len(around) else None
