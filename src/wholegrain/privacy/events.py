"""The events of one step, and how steps and silos compose: descriptions only, evaluated by the accountants.

Each function's docstring is the mathematics. Two simplifications are made wherever an event is built, so that equal
mechanisms are equal events (which is what the caches key on): repetitions are flattened into one count, and a sampling
probability of one is no sampling.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

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
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from scipy import stats

from wholegrain.errors import AccountingError

# Probability below which a mixture's larger sensitivities are folded into the largest one. Folding upwards only makes
# the event worse, so it is sound; this much mass is below what the accountant itself truncates.
NEGLIGIBLE = 1e-26

MOST_CASES = 1024
"""Combinations of cases that one event may have; more are refused."""


@dataclass(frozen=True)
class WorstOfDpEvent(DpEvent):  # type: ignore[misc]  # dp_accounting is untyped
    """One of several events, for each unit always the same one, and nobody knows which.

    Whoever holds the data decides the case before anything is released, so that n repetitions are n times the same
    case. An accountant prices every case and takes the worst.
    """

    cases: tuple[DpEvent, ...]


def worst_of(cases: Iterable[DpEvent]) -> DpEvent:
    """The worst of these events; a single one is itself."""
    distinct = tuple(dict.fromkeys(cases))
    return distinct[0] if len(distinct) == 1 else WorstOfDpEvent(distinct)


def side_by_side(*sides: DpEvent) -> DpEvent:
    """Events of which every unit meets one at most, and nobody knows which: of plain Gaussians, the one that costs
    most.

    So it is with training and scores on people who are held out: a person's own coin decides on which side that person
    is, and it is tossed before anything is released. Whoever is trained on changes what is released by training; scores
    then follow from that and from other people. Whoever is held out changes the scores, and training not at all.
    """
    met = [each for each in dict.fromkeys(sides) if not isinstance(each, NoOpDpEvent)]
    if not met:
        return NoOpDpEvent()
    if any(isinstance(each, NonPrivateDpEvent) for each in met):
        return NonPrivateDpEvent()
    plain = {each: square for each in met if (square := gaussian_square(each)) is not None}
    costliest = [max(plain, key=lambda each: plain[each])] if plain else []
    return worst_of([each for each in met if each in costliest or each not in plain])


def gaussian_square(event: DpEvent) -> float | None:
    """μ² of what is composed of plain Gaussians alone, which is one of them; else None."""
    if isinstance(event, GaussianDpEvent):
        return float(event.noise_multiplier) ** -2
    if isinstance(event, SelfComposedDpEvent):
        inner = gaussian_square(event.event)
        return None if inner is None else event.count * inner
    if isinstance(event, ComposedDpEvent):
        squares = [gaussian_square(part) for part in event.events]
        return None if None in squares else math.fsum(square for square in squares if square is not None)
    return None


def iterate_cases(event: DpEvent) -> Iterator[DpEvent]:
    """Every plain event that an event with several cases may turn out to be."""
    open_choices = list(dict.fromkeys(_choices(event)))
    if math.prod(len(choice.cases) for choice in open_choices) > MOST_CASES:
        raise AccountingError(f"An event with more than {MOST_CASES:,} combinations of cases cannot be priced.")
    for chosen in product(*(choice.cases for choice in open_choices)):
        settled = _settle(event, dict(zip(open_choices, chosen, strict=True)))
        # A case may have cases of its own.
        yield from iterate_cases(settled) if open_choices else (settled,)


def _choices(event: DpEvent) -> Iterator[WorstOfDpEvent]:
    if isinstance(event, WorstOfDpEvent):
        yield event
    elif isinstance(event, SelfComposedDpEvent):
        yield from _choices(event.event)
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from _choices(part)


def _settle(event: DpEvent, chosen: dict[WorstOfDpEvent, DpEvent]) -> DpEvent:
    """The event with each choice made."""
    if not chosen:
        return event
    if isinstance(event, WorstOfDpEvent):
        return chosen[event]
    if isinstance(event, SelfComposedDpEvent):
        return repeat(_settle(event.event, chosen), event.count)
    if isinstance(event, ComposedDpEvent):
        return compose(_settle(part, chosen) for part in event.events)
    return event


def gaussian(noise_multiplier: float) -> DpEvent:
    """One release with N(0, (σ·Δ)²) on a sum of sensitivity Δ; no noise is no privacy."""
    return GaussianDpEvent(noise_multiplier) if noise_multiplier > 0 else NonPrivateDpEvent()


def sampled_gaussian(probability: float, noise_multiplier: float) -> DpEvent:
    """The Gaussian release when the protected unit takes part with this probability only."""
    if probability <= 0:
        return NoOpDpEvent()
    if probability >= 1 or noise_multiplier <= 0:
        return gaussian(noise_multiplier)
    return PoissonSampledDpEvent(probability, GaussianDpEvent(noise_multiplier))


def presence(rate: float, items: int) -> float:
    """Chance that at least one of `items` items is sampled when each is with `rate`: 1 − (1−q)^K.

    >>> round(presence(0.01, 4), 6)
    0.039404
    """
    return 1.0 if rate >= 1 else -math.expm1(items * math.log1p(-rate))


def presence_without_replacement(batch: int, size: int, items: int) -> float:
    """The same when exactly `batch` of `size` items are drawn."""
    return float(-math.expm1(stats.hypergeom(size, items, batch).logpmf(0)))


def mixture(noise_multiplier: float, sensitivities: Sequence[float], probabilities: Sequence[float]) -> DpEvent:
    """A release whose sensitivity is itself random: Σ_j p_j·N(c_j, σ²) against N(0, σ²).

    The vector case is dominated by this scalar one [Choquette-Choo et al., 2310.15526]. Sensitivities must increase.
    """
    values, weights = _fold_upwards(np.asarray(sensitivities, float), np.asarray(probabilities))
    if len(values) == 1 and values[0] == 0:
        return NoOpDpEvent()
    if noise_multiplier <= 0:
        return NonPrivateDpEvent()
    if len(values) == 2 and values[0] == 0:
        return sampled_gaussian(float(weights[1]), noise_multiplier / values[1])
    if len(values) == 1:
        return gaussian(noise_multiplier / values[0])
    return MixtureOfGaussiansDpEvent(noise_multiplier, tuple(values), tuple(weights))


def group_by_poisson(rate: float, items: int, noise_multiplier: float, cap: int | None = None) -> DpEvent:
    """A subject with `items` items, each sampled with `rate`, at most `cap` kept, each clipped by itself.

    It moves the sum by at most min(J, Z)·C with J ~ Binomial(K, q) [Ganesh, 2401.10294]. K = 1 is the ordinary
    Poisson-sampled Gaussian.
    """
    law = group_by_poisson_law(rate, items, cap)
    return mixture(noise_multiplier, list(range(len(law))), law)


def group_without_replacement(
    batch: int, size: int, items: int, noise_multiplier: float, *, own: float, per_item: float
) -> DpEvent:
    """A subject with `items` of a silo's `size` items, when exactly `batch` of them are drawn.

    Removing the subject lets j other items into the batch in place of its own j ~ Hypergeometric, so both its
    contribution and theirs move the sum: by `own + per_item·j` (in units of C) for j > 0. Such batches are *not*
    Poisson ones, and cost more.
    """
    drawn = np.arange(min(items, batch) + 1)
    chances = stats.hypergeom(size, items, batch).pmf(drawn)
    moves = np.where(drawn > 0, own + per_item * drawn, 0.0)
    return mixture(noise_multiplier, moves.tolist(), chances.tolist())


def group_by_poisson_law(rate: float, items: int, cap: int | None = None) -> list[float]:
    """P[min(J, Z) = j] for j = 0, 1, …: how many of a subject's K items a batch holds, with J ~ Binomial(K, q)."""
    largest = min(items, cap or items)
    sizes = np.arange(largest + 1)
    chances = stats.binom.pmf(sizes, items, rate)
    chances[-1] = stats.binom.sf(largest - 1, items, rate)
    return [float(chance) for chance in chances]


def sum_over_silos(noise_multiplier: float, law: Sequence[float], silos: int, *, shared: bool) -> DpEvent:
    """A round of a secure sum, of which a subject in `silos` silos moves each part by j·C with probability law[j].

    The silos' coins are independent, so that the moves add up to a convolution. Where a subject's weight is `shared`
    out, it counts 1/m in each of its m silos, and m is any number up to `silos`: no m is the worst of all at every ε
    (that of one silo usually is, at the ε that one asks for), so every one of them is a case.
    """
    if not shared:
        return sum_of_moves(noise_multiplier, law, silos, 1.0)
    return worst_of(sum_of_moves(noise_multiplier, law, m, 1.0 / m) for m in range(1, silos + 1))


def sum_of_moves(noise_multiplier: float, law: Sequence[float], silos: int, weight: float) -> DpEvent:
    """The same where it is in exactly so many silos, and counts with this weight in each."""
    together = np.ones(1)
    for _ in range(silos):
        together = np.convolve(together, law)
    return mixture(noise_multiplier, (weight * np.arange(len(together))).tolist(), together.tolist())


def repeat(event: DpEvent, times: int) -> DpEvent:
    """The event `times` over, with nested repetitions flattened."""
    if times == 0 or isinstance(event, NoOpDpEvent):
        return NoOpDpEvent()
    if isinstance(event, NonPrivateDpEvent) or times == 1:
        return event
    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(event.event, event.count * times)
    return SelfComposedDpEvent(event, times)


def compose(events: Iterable[DpEvent]) -> DpEvent:
    """Adaptive composition; equal events are counted, so that sixteen like silos cost what one does.

    >>> compose([repeat(gaussian(2.0), 3), gaussian(2.0)])
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4)
    """
    counts: Counter[DpEvent] = Counter()
    for event in events:
        for part in event.events if isinstance(event, ComposedDpEvent) else (event,):
            if isinstance(part, SelfComposedDpEvent):
                counts[part.event] += part.count
            else:
                counts[part] += 1
    parts = [repeat(event, n) for event, n in counts.items()]
    private = [part for part in parts if not isinstance(part, NoOpDpEvent)]
    if any(isinstance(part, NonPrivateDpEvent) for part in private):
        return NonPrivateDpEvent()
    if not private:
        return NoOpDpEvent()
    return private[0] if len(private) == 1 else ComposedDpEvent(tuple(private))


def _fold_upwards(values: np.ndarray, weights: np.ndarray) -> tuple[list[float], list[float]]:
    """Drop impossible sensitivities, and fold the negligible tail into the largest one."""
    tail = np.cumsum(weights[::-1])[::-1]
    keep = tail > NEGLIGIBLE
    folded = weights[~keep].sum()
    values_kept, weights_kept = values[keep], weights[keep].copy()
    if folded > 0:
        values_kept = np.append(values_kept, values[-1])
        weights_kept = np.append(weights_kept, folded)
    possible = weights_kept > 0
    values_kept, weights_kept = values_kept[possible], weights_kept[possible]
    return values_kept.tolist(), (weights_kept / weights_kept.sum()).tolist()
