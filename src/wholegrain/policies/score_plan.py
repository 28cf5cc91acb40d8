"""Which private scores a run releases, and what they reveal of the people who are held out.

A person who is held out in several silos pays for the score of each. Under a secure sum one vector is opened, to which
all of that person's silos add: it moves by as many times its reach, or by span by one reach.

Who is held out is decided by coins. Where one coin decides for all silos, a person is on one side. Silos that do not
trust each other toss coins of their own: the same person may be trained on in some and held out in others, and pays for
both. Every way to divide a person's silos is then priced as well (`split_exposures`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent

from wholegrain.policies.guarantees import Row, part_of_sum_event, step_event, worst_row
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.privacy import events
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.pricing import Exposure, Releases, Terms
from wholegrain.privacy.trust import SecureSum

MOST_SPLITS = 16
"""Silos of one person up to which every division is priced by itself; beyond, divisions are rounded upwards."""


@dataclass(frozen=True, kw_only=True)
class ScorePlan:
    """The form of every score, after which rounds there is one, and how many people each silo holds out.

    `sizes` are public: expected from declared sizes, or in a simulation counted. `counted` says which. The form's noise
    is what each silo adds; with `trust`, only a sum over silos is seen. `own_coins`: each silo decides by itself whom
    it holds out. `some_items`: not all items of a person are scored, so that one that leaves lets another in.
    """

    form: ScoreForm
    every: int | None
    part: str
    sizes: Mapping[str, int]
    counted: bool = False
    trust: SecureSum | None = None
    own_coins: bool = False
    some_items: bool = False

    def is_due(self, round: int, rounds: int) -> bool:
        """Whether parameters are scored after this round, the last of which has the number `rounds` − 1."""
        return round + 1 == rounds or (self.every is not None and (round + 1) % self.every == 0)

    def count(self, rounds: int) -> int:
        """Scores of a whole run of so many rounds.

        >>> form = ScoreForm(noise_multiplier=5.0, measures=("accuracy",))
        >>> ScorePlan(form=form, every=5, part="test", sizes={}).count(12)
        3
        """
        return 1 if self.every is None else -(-rounds // self.every)

    def releases(self, rounds: int) -> Releases:
        """Scores that each silo releases over a whole run."""
        return dict.fromkeys(self.sizes, self.count(rounds))

    def exposures(self, span: int) -> dict[Unit, Exposure]:
        """What one score of each silo reveals."""
        return score_exposures(self.form, self.sizes, span, self.trust, some_items=self.some_items)

    def add_to(self, trained: Terms, rows: Iterable[Row], span: int) -> Terms:
        """The terms of training with those of the scores beside them."""
        return add_score_terms(
            trained, list(rows), self.form, span, own_coins=self.own_coins, some_items=self.some_items
        )

    def with_visible_noise(self, multiplier: float) -> "ScorePlan":
        """The same with so much noise on what is seen: of a secure sum, each silo adds its part of it."""
        own = multiplier if self.trust is None else self.trust.silo_noise(multiplier)
        return replace(self, form=self.form.model_copy(update={"noise_multiplier": own}))


def add_score_terms(
    trained: Terms, rows: list[Row], form: ScoreForm, span: int, *, own_coins: bool, some_items: bool = False
) -> Terms:
    """Terms of training, and beside them what scores of this form reveal."""
    silos, trust = [silo.name for _, silo in rows], rows[0][0].trust
    scores = score_exposures(form, silos, span, trust, some_items=some_items)
    split = tuple(split_exposures(trained, scores, rows, form, min(span, len(rows)))) if own_coins else ()
    return replace(trained, scores=scores, split=split)


def score_exposures(
    form: ScoreForm, silos: Iterable[str], span: int, trust: SecureSum | None = None, *, some_items: bool = False
) -> dict[Unit, Exposure]:
    """What one score of each of these silos reveals: a person pays in up to `span` of them, an item in one.

    Nothing bounds what a whole silo adds to its score. By span one item can decide what its subject counts. With
    `some_items`, an item that leaves lets another in, perhaps in another silo: that has no price.
    """
    silos, seen = tuple(silos), _seen_noise(form, trust)
    alone, nothing = events.gaussian(seen), NonPrivateDpEvent()
    together = alone if trust is None or form.by_span else events.gaussian(seen / span)
    by_unit: dict[Unit, tuple[int, DpEvent]] = {
        Unit.SUBJECT: (span if trust is None else 1, together),
        Unit.ITEM: (1, nothing if form.by_span or some_items else alone),
        Unit.SILO: (1, nothing),
    }
    return {unit: Exposure(reach, dict.fromkeys(silos, step), step) for unit, (reach, step) in by_unit.items()}


def split_exposures(
    trained: Terms, scores: Mapping[Unit, Exposure], rows: list[Row], form: ScoreForm, span: int
) -> Iterator[tuple[Exposure, Exposure]]:
    """What a subject meets that is trained on in some of its silos and held out in others.

    Of a secure sum of plain Gaussian steps nothing is left to price: the square of what it moves is convex in the share
    of silos that train, so that all or none of them is the worst.
    """
    training, scored = trained.of(Unit.SUBJECT), scores[Unit.SUBJECT]
    steps = training.steps.values()
    if any(isinstance(step, NonPrivateDpEvent) for step in steps):
        return
    if rows[0][0].trust is None:
        yield from _split_locally(training, scored, rows, span)
    elif not all(isinstance(step, GaussianDpEvent) for step in steps):
        seen = _seen_noise(form, rows[0][0].trust)
        if form.by_span and span > MOST_SPLITS:
            yield training, scored
            return
        policy, silo = worst_row(rows, Unit.SUBJECT)
        for silos, weight, moved in _divide_shares(span) if form.by_span else _divide_moves(span):
            step, score = part_of_sum_event(policy, silo, silos, weight), events.gaussian(seen / moved)
            yield _same_for_all(training, step), _same_for_all(scored, score)


def _split_locally(
    training: Exposure, scored: Exposure, rows: list[Row], span: int
) -> Iterator[tuple[Exposure, Exposure]]:
    """With weights by span, j of m silos train with C/√m each: with as many held out, m = M is the worst."""
    worst = training.worst or step_event(*worst_row(rows, Unit.SUBJECT), Unit.SUBJECT)
    for most_trained, most_held in divide_silos(span):
        own = replace(training, reach=most_trained, worst=worst)
        if rows[0][0].by_span:
            own = _scale_noise(replace(training, worst=worst), math.sqrt(span / most_trained))
        yield own, replace(scored, reach=most_held)


def divide_silos(span: int) -> Iterator[tuple[int, int]]:
    """How a person's silos may be divided: trained on in so many at most, held out in so many at most.

    Every division is below one of these; up to MOST_SPLITS silos that hold out, it is one of them.

    >>> list(divide_silos(4))
    [(3, 1), (2, 2), (1, 3)]
    """
    low = 1
    while low < span:
        high = min(low if low <= MOST_SPLITS else low * 5 // 4, span - 1)
        yield span - low, high
        low = high + 1


def _divide_moves(span: int) -> Iterator[tuple[int, float, float]]:
    """In a sum without weights: silos that train, the weight of each, and how far the score moves, in its reach."""
    return ((trained, 1.0, float(held)) for trained, held in divide_silos(span))


def _divide_shares(span: int) -> Iterator[tuple[int, float, float]]:
    """The same of a person in m ≤ M silos, who counts 1/m in each."""
    return ((j, 1 / m, (m - j) / m) for m in range(2, span + 1) for j in range(1, m))


def _seen_noise(form: ScoreForm, trust: SecureSum | None) -> float:
    return form.noise_multiplier if trust is None else trust.sum_noise(form.noise_multiplier)


def _same_for_all(like: Exposure, step: DpEvent) -> Exposure:
    return Exposure(1, dict.fromkeys(like.steps, step), step)


def _scale_noise(exposure: Exposure, factor: float) -> Exposure:
    """Plain Gaussian steps with so many times the noise."""

    def scale(step: DpEvent) -> DpEvent:
        return events.gaussian(step.noise_multiplier * factor)

    worst = None if exposure.worst is None else scale(exposure.worst)
    return replace(exposure, steps={silo: scale(step) for silo, step in exposure.steps.items()}, worst=worst)
