"""Coins of compiled simulations: those of numpy to the bit, batches as every sampler makes them, and the law."""

import math

import numpy as np
import pytest

from compilers import require_compiler
from draw_cases import SILOS
from wholegrain.data.sampling import FixedItems, PoissonItems, PoissonSubjects, Sampling, _batch, draw_batches
from wholegrain.data.subjects import SubjectIndex
from wholegrain.silo.counter_coins import COINS, LEAST_RATE, CounterCoins, last_coin, toss
from wholegrain.silo.counter_noise import words_of
from wholegrain.silo.noise import SeededNoise

require_compiler()

KEY = 0xF0E1D2C3B4A59687_0123456789ABCDEF


@pytest.mark.parametrize("name", SILOS)
@pytest.mark.parametrize("sampling", [PoissonItems(0.3), PoissonSubjects(0.3), PoissonItems(1.0), PoissonSubjects(1.0)])
def test_batches_are_made_from_the_coins_as_any_sampler_makes_them(name: str, sampling: Sampling) -> None:
    index, group = SubjectIndex.of(SILOS[name]), 0
    by_subject = isinstance(sampling, PoissonSubjects)
    count = len(index.counts) if by_subject else index.items
    for found in draw_batches(sampling, index, CounterCoins(KEY), 5):
        heads = toss(words_of(KEY), group, count) <= np.uint64(last_coin(sampling.rate))
        items = np.flatnonzero(heads[index.subjects]) if by_subject else index.order[heads]
        wanted = _batch(items, index)
        assert np.array_equal(found.items, wanted.items)
        assert np.array_equal(found.groups, wanted.groups)
        group += -(-count // COINS)


def test_several_batches_are_those_of_single_draws() -> None:
    index, one = SubjectIndex.of(SILOS["scattered"]), CounterCoins(KEY)
    for sampling in (PoissonItems(0.2), PoissonSubjects(0.5)):
        together = draw_batches(sampling, index, CounterCoins(KEY), 7)
        one = CounterCoins(KEY)
        for batch in together:
            assert np.array_equal(batch.items, sampling.draw(index, one).items)


@pytest.mark.parametrize("rate", [LEAST_RATE, 0.125, 0.5, 0.99])
def test_everybody_is_in_with_the_rate_and_independently(rate: float) -> None:
    draws, count = 4000, 64
    index, coins = SubjectIndex.of(np.arange(count)), CounterCoins(KEY)
    drawn = np.zeros((draws, count))
    for k in range(draws):
        drawn[k, PoissonItems(rate).draw(index, coins).items] = 1
    spread = math.sqrt(rate * (1 - rate))
    assert (np.abs(drawn.mean(0) - rate) < 5 * spread / math.sqrt(draws)).all()
    sizes = drawn.sum(1)
    assert abs(sizes.var() / (count * spread**2) - 1) < 5 * math.sqrt((2 + 1 / (count * spread**2)) / draws)
    together = np.corrcoef(drawn, rowvar=False)[np.triu_indices(count, 1)]
    assert np.abs(together).max() < 6 / math.sqrt(draws)
    following = (drawn[1:] * drawn[:-1]).mean()
    assert abs(following - rate**2) < 5 * math.sqrt(rate**2 * (1 - rate**2) * 3 / (draws * count))


def test_a_coin_does_not_depend_on_how_many_there_are() -> None:
    coins = toss(words_of(KEY), 3, 1000)
    for count in (1, 15, 16, 17, 31, 32, 33, 999):
        assert np.array_equal(toss(words_of(KEY), 3, count), coins[:count])


@pytest.mark.parametrize(
    "sampling",
    [
        PoissonItems(0.3, most_per_subject=2),
        PoissonSubjects(0.3, items=2),
        FixedItems(20),
        PoissonItems(LEAST_RATE / 2),
    ],
)
def test_other_laws_are_drawn_as_numpy_draws_them(sampling: Sampling) -> None:
    index = SubjectIndex.of(SILOS["scattered"])
    coins, others = SeededNoise(3, in_c=True).coins(1, "a"), SeededNoise(3).coins(1, "a")
    for found, wanted in zip(
        draw_batches(sampling, index, coins, 4), draw_batches(sampling, index, others, 4), strict=True
    ):
        assert np.array_equal(found.items, wanted.items)
        assert np.array_equal(found.groups, wanted.groups)


def test_an_empty_silo_gives_empty_batches() -> None:
    index = SubjectIndex.of(np.zeros(0, np.int64))
    assert not len(PoissonItems(0.5).draw(index, CounterCoins(KEY)).items)
