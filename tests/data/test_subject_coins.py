"""Coins of subjects are a keyed function of subject and rank, and follow their laws."""

import numpy as np
import pytest
from scipy import stats

from wholegrain._random import Purpose
from wholegrain.data.subject_coins import Coins

COINS = Coins.seeded(5).of(Purpose.CAP, "north")
MANY = 50_000
RARE = 1e-7


def test_a_coin_depends_on_key_purpose_names_subject_and_rank_and_on_nothing_else() -> None:
    word = COINS.words([3], [1])[0].tolist()
    assert COINS.words(np.arange(10)[:, None], np.arange(4))[3, 1].tolist() == word
    others = [
        Coins.seeded(6).of(Purpose.CAP, "north").words([3], [1]),
        Coins.seeded(5).of(Purpose.SPLIT, "north").words([3], [1]),
        Coins.seeded(5).of(Purpose.CAP, "south").words([3], [1]),
        Coins.seeded(5).of(Purpose.CAP, "north", "south").words([3], [1]),
        Coins.seeded(5).of(Purpose.CAP).words([3], [1]),
        COINS.words([1], [3]),
        COINS.words([3], [0]),
        COINS.words([-3], [1]),
    ]
    assert word not in [other[0].tolist() for other in others]


def test_coins_stay_what_they_are_from_version_to_version() -> None:
    """A run that is resumed with a later version must find the same parts and silos."""
    assert COINS.words([0, 2**62], [0, 7]).tolist() == [
        [834407801438495028, 1539371900740034206],
        [3556901343697275565, 5969209949834426453],
    ]


def test_a_key_is_not_shown() -> None:
    assert repr(Coins(b"secret" + bytes(26))) == "Coins()"


def test_a_key_has_256_bits() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 3"):
        Coins(b"abc")


@pytest.mark.parametrize("axis", ["subjects", "ranks"])
def test_uniforms_and_normals_follow_their_laws(axis: str) -> None:
    keys = (np.arange(MANY), 0) if axis == "subjects" else (7, np.arange(MANY))
    uniforms, normals = COINS.uniforms(*keys), COINS.normals(*keys)
    assert stats.kstest(uniforms, "uniform").pvalue > RARE
    assert stats.kstest(normals, "norm").pvalue > RARE
    for values in (uniforms, normals):
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) * np.sqrt(MANY) < 6
    assert 0 < uniforms.min() < uniforms.max() < 1


def test_below_is_as_likely_as_it_says() -> None:
    assert stats.binomtest(int(COINS.below(0.3, np.arange(MANY)).sum()), MANY, 0.3).pvalue > RARE
    assert COINS.below(1.0, np.arange(MANY)).all()
    assert not COINS.below(0.0, np.arange(MANY)).any()


def test_every_order_is_as_likely_as_any_other() -> None:
    orders = COINS.orders(np.arange(12_000), 4)
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > RARE


def test_uniforms_never_reach_their_ends() -> None:
    class Told(Coins):
        def words(self, subjects: object, ranks: object = 0) -> np.ndarray:
            return np.array([[0, 0], [2**64 - 1, 2**64 - 1]], np.uint64)

    drawn = Told(bytes(32)).uniforms([0, 1])
    assert 0 < drawn[0] < drawn[1] < 1
    assert np.isfinite(Told(bytes(32)).normals([0, 1])).all()
