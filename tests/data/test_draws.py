"""What samplers draw from. The laws themselves are in tests/statistics/test_sampling_laws.py, for both kinds."""

import numpy as np
import pytest

from wholegrain.data import draws
from wholegrain.data.draws import NumpyDraws, SecureDraws, as_draws

KEY = bytes(range(32))


def test_a_numpy_generator_draws_what_it_always_drew() -> None:
    """Seeded batches of earlier versions stay the same."""
    for count, rate in ((100, 0.3), (7, 1.0), (0, 0.5)):
        ours, plain = NumpyDraws(np.random.default_rng(4)), np.random.default_rng(4)
        size = plain.binomial(count, rate)
        assert ours.subset(count, rate, shuffled=True).tolist() == plain.choice(count, size, replace=False).tolist()
        assert ours.choose(count, count // 2).tolist() == plain.choice(count, count // 2, replace=False).tolist()
        assert ours.shuffle(np.arange(9)).tolist() == plain.permutation(np.arange(9)).tolist()


def test_a_key_draws_the_same_again_and_another_key_does_not() -> None:
    first, again, other = (SecureDraws(key).subset(2000, 0.5, shuffled=True) for key in (KEY, KEY, bytes(32)))
    assert first.tolist() == again.tolist() != other.tolist()
    stream = SecureDraws(KEY)
    assert stream.subset(2000, 0.5, shuffled=True).tolist() != stream.subset(2000, 0.5, shuffled=True).tolist()


class Told(SecureDraws):
    """Draws whose words are told."""

    def __init__(self, *words: list[int]) -> None:
        self.words = list(words)

    def _words(self, count: int) -> np.ndarray:
        words = self.words.pop(0)
        assert len(words) == count
        return np.array(words, np.uint64)


def test_a_coin_is_compared_with_the_rate_exactly() -> None:
    edge = int(0.3 * 2.0**64)
    assert Told([edge - 1, edge, edge + 1, 0, 2**64 - 1]).subset(5, 0.3, shuffled=False).tolist() == [0, 3]
    assert Told([0, 1]).subset(2, 2.0**-64, shuffled=False).tolist() == [0]
    assert Told([0, 1]).subset(2, 2.0**-70, shuffled=False).tolist() == []


def test_a_rate_of_one_needs_no_coins() -> None:
    assert Told().subset(3, 1.0, shuffled=False).tolist() == [0, 1, 2]


def test_words_that_are_alike_are_drawn_again() -> None:
    """Otherwise one of two orders would be more likely than the other."""
    assert Told([5, 1, 5], [9, 1, 5]).shuffle(np.arange(3)).tolist() == [1, 2, 0]


@pytest.mark.parametrize("size", [0, 1, 5, 9])
def test_a_choice_is_of_different_things(size: int) -> None:
    chosen = SecureDraws(KEY).choose(9, size)
    assert len(set(chosen.tolist())) == size
    assert set(chosen.tolist()) <= set(range(9))


def test_only_a_numpy_generator_is_wrapped() -> None:
    secure = SecureDraws(KEY)
    assert as_draws(secure) is secure
    assert isinstance(as_draws(np.random.default_rng(0)), draws.NumpyDraws)
