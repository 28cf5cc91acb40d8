from itertools import combinations, product

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wholegrain.data.sampling import FixedItems, PoissonItems
from wholegrain.data.subjects import SubjectIndex
from wholegrain.privacy import events
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.events import (
    compose,
    gaussian,
    group_by_poisson,
    group_without_replacement,
    mixture,
    presence,
    presence_without_replacement,
    repeat,
    sampled_gaussian,
)

TWO = compose([gaussian(1.0), gaussian(2.0)])
rates = st.floats(1e-4, 0.999)
many = settings(max_examples=60)


def law(event):
    """Sensitivity → probability of a mixture, of a sampled Gaussian or of a plain one, all with σ = 1."""
    if isinstance(event, MixtureOfGaussiansDpEvent):
        return dict(zip(event.sensitivities, event.sampling_probs, strict=True))
    if isinstance(event, PoissonSampledDpEvent):
        return {0.0: 1 - event.sampling_probability, 1 / event.event.noise_multiplier: event.sampling_probability}
    return {1 / event.noise_multiplier: 1.0}


def drawn_by_coins(rate, items):
    """P[j of the subject's items are drawn], by going through all outcomes of `items` coins."""
    chances = np.zeros(items + 1)
    for coins in product([0, 1], repeat=items):
        drawn = sum(coins)
        chances[drawn] += rate**drawn * (1 - rate) ** (items - drawn)
    return chances


def drawn_without_replacement(batch, size, items):
    """The same by going through all batches; the subject's items are the first ones."""
    batches = list(combinations(range(size), batch))
    counts = np.bincount([sum(i < items for i in chosen) for chosen in batches], minlength=items + 1)
    return counts / len(batches)


@many
@given(rate=rates, items=st.integers(2, 60), cap=st.none() | st.integers(2, 80))
def test_mixture_is_a_law_of_increasing_moves(rate, items, cap):
    event = group_by_poisson(rate, items, 3.0, cap)
    assert sum(event.sampling_probs) == pytest.approx(1.0, abs=1e-12)
    assert min(event.sampling_probs) > 0
    assert list(event.sensitivities) == sorted(set(event.sensitivities))
    assert event.sensitivities[-1] <= min(items, cap or items)


@many
@given(rate=rates, noise=st.floats(0.1, 50.0))
def test_one_item_is_the_ordinary_sampled_gaussian(rate, noise):
    event = group_by_poisson(rate, 1, noise)
    assert isinstance(event, PoissonSampledDpEvent)
    assert event.sampling_probability == pytest.approx(rate, rel=1e-12)
    assert event.event == GaussianDpEvent(noise)


@many
@given(rate=rates, items=st.integers(1, 30), beyond=st.integers(0, 30))
def test_cap_that_cannot_bind_is_no_cap(rate, items, beyond):
    assert group_by_poisson(rate, items, 2.0, cap=items + beyond) == group_by_poisson(rate, items, 2.0)


@pytest.mark.parametrize(("rate", "items"), [(0.05, 1), (0.3, 4), (0.9, 6), (1.0, 3)])
def test_poisson_groups_follow_the_coins(rate, items):
    chances = drawn_by_coins(rate, items)
    assert presence(rate, items) == pytest.approx(1 - chances[0])
    found = law(group_by_poisson(rate, items, 1.0))
    assert found == pytest.approx({j: p for j, p in enumerate(chances) if p > 0})


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_cap_moves_what_is_above_it_onto_it(cap):
    chances = drawn_by_coins(0.3, 4)
    found = law(group_by_poisson(0.3, 4, 1.0, cap))
    assert found == pytest.approx(dict(enumerate(chances[:cap])) | {cap: chances[cap:].sum()})


@pytest.mark.parametrize(("batch", "size", "items"), [(1, 6, 1), (3, 8, 2), (4, 9, 3), (5, 8, 4), (2, 7, 5)])
def test_batches_of_fixed_size_follow_the_count(batch, size, items):
    chances = drawn_without_replacement(batch, size, items)
    assert presence_without_replacement(batch, size, items) == pytest.approx(1 - chances[0])
    found = law(group_without_replacement(batch, size, items, 1.0, own=1.0, per_item=2.0))
    assert found == pytest.approx({1 + 2.0 * j if j else 0.0: p for j, p in enumerate(chances) if p > 0})


@pytest.mark.parametrize(
    ("sampling", "event"),
    [
        (PoissonItems(0.2), group_by_poisson(0.2, 4, 1.0)),
        (PoissonItems(0.4, most_per_subject=2), group_by_poisson(0.4, 4, 1.0, cap=2)),
        (FixedItems(6), group_without_replacement(6, 20, 4, 1.0, own=0.0, per_item=1.0)),
    ],
)
def test_samplers_draw_a_subject_as_the_event_says(sampling, event):
    index = SubjectIndex.of(np.array([7] * 4 + list(range(100, 116))))  # one subject of 4 items among 16 of one each
    draws, generator = 4000, np.random.default_rng(0)
    found = np.bincount(
        [int((sampling.draw(index, generator).items < 4).sum()) for _ in range(draws)], minlength=len(law(event))
    )
    expected = np.array(list(law(event).values())) * draws
    assert stats.chisquare(found, expected).pvalue > 1e-4


def test_negligible_tail_is_folded_upwards_and_so_never_cheaper(monkeypatch):
    sizes, chances = np.arange(7), stats.binom.pmf(np.arange(7), 6, 0.1)
    whole = MixtureOfGaussiansDpEvent(4.0, tuple(map(float, sizes)), tuple(chances))
    monkeypatch.setattr(events, "NEGLIGIBLE", 2e-2)  # far too coarse, so that the difference shows
    folded = mixture(4.0, sizes.tolist(), chances.tolist())
    assert folded.sensitivities == (0.0, 1.0, 2.0, 6.0)
    assert sum(folded.sampling_probs) == pytest.approx(1.0)
    coarse = PldAccountant(grid=1e-2)
    assert coarse.epsilon(folded, 1e-5) > coarse.epsilon(whole, 1e-5)


@pytest.mark.parametrize(
    ("event", "same"),
    [
        (mixture(3.0, [0.0], [1.0]), NoOpDpEvent()),
        (mixture(3.0, [2.0], [1.0]), GaussianDpEvent(1.5)),
        (mixture(3.0, [0.0, 1.0, 2.0], [0.0, 0.0, 1.0]), GaussianDpEvent(1.5)),
        (mixture(3.0, [0.0, 2.0], [0.75, 0.25]), PoissonSampledDpEvent(0.25, GaussianDpEvent(1.5))),
        (mixture(0.0, [0.0, 1.0, 2.0], [0.5, 0.25, 0.25]), NonPrivateDpEvent()),
        (sampled_gaussian(1.0, 2.0), GaussianDpEvent(2.0)),
        (sampled_gaussian(0.5, 0.0), NonPrivateDpEvent()),
        (sampled_gaussian(0.0, 2.0), NoOpDpEvent()),
        (group_by_poisson(1.0, 4, 2.0), GaussianDpEvent(0.5)),
    ],
)
def test_equal_mechanisms_are_equal_events(event, same):
    assert event == same


@pytest.mark.parametrize(
    ("event", "same"),
    [
        (repeat(gaussian(2.0), 1), gaussian(2.0)),
        (repeat(gaussian(2.0), 0), NoOpDpEvent()),
        (repeat(NoOpDpEvent(), 9), NoOpDpEvent()),
        (repeat(NonPrivateDpEvent(), 9), NonPrivateDpEvent()),
        (repeat(repeat(gaussian(2.0), 3), 5), SelfComposedDpEvent(gaussian(2.0), 15)),
    ],
)
def test_repetitions_are_flattened(event, same):
    assert event == same


def test_composition_merges_equal_events_and_keeps_different_ones():
    one, other = sampled_gaussian(0.1, 2.0), sampled_gaussian(0.2, 2.0)
    together = compose([repeat(one, 3), other, one, NoOpDpEvent(), repeat(other, 4)])
    assert list(together.events) == [repeat(one, 4), repeat(other, 5)]


@pytest.mark.parametrize(
    ("parts", "same"),
    [
        ([], NoOpDpEvent()),
        ([NoOpDpEvent(), NoOpDpEvent()], NoOpDpEvent()),
        ([gaussian(1.0), NoOpDpEvent()], gaussian(1.0)),
        ([gaussian(1.0)] * 16, SelfComposedDpEvent(gaussian(1.0), 16)),
        ([gaussian(1.0), NonPrivateDpEvent()], NonPrivateDpEvent()),
        (
            [compose([gaussian(1.0), gaussian(2.0)])] * 2,
            compose([repeat(gaussian(1.0), 2), repeat(gaussian(2.0), 2)]),
        ),
    ],
)
def test_composition_has_one_form(parts, same):
    assert compose(parts) == same
