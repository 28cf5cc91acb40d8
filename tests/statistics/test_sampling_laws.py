"""Batches follow the laws that the accountant prices. Seeds are fixed: a test that passes once passes always.

A z-score of 6.5 is exceeded by chance once in 10¹⁰; a p-value of 1e-7 speaks for itself.
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from effort import amount
from wholegrain.data.draws import SecureDraws
from wholegrain.data.sampling import FixedItems, PoissonItems, PoissonSubjects, Sampling, Source
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData, SubjectIndex

pytestmark = pytest.mark.thorough

DRAWS = amount(4000, quick=1000)
FAR = 6.5
RARE = 1e-7
# Thirty items of ten subjects, interleaved; subject 0 has six.
COUNTS = [6, 5, 5, 4, 3, 2, 2, 1, 1, 1]
SUBJECTS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), COUNTS))
ROSTER = SubjectIndex.of(SUBJECTS)


SOURCES: dict[str, Callable[[], Source]] = {
    "seeded": lambda: np.random.default_rng(1),
    "secure": lambda: SecureDraws(bytes(32)),
}


@pytest.fixture(autouse=True, params=SOURCES)
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every law holds for both kinds of coins."""
    monkeypatch.setitem(SOURCES, "now", SOURCES[request.param])


def inclusions(sampling: Sampling, draws: int = DRAWS) -> NDArray[np.bool_]:
    """[draw, item] whether the item is in the batch."""
    stream = SOURCES["now"]()
    included = np.zeros((draws, ROSTER.items), bool)
    for number in range(draws):
        included[number, sampling.draw(ROSTER, stream).items] = True
    return included


def far(observed: NDArray, expected: float, variance: float, draws: int = DRAWS) -> float:
    """The largest z-score of means over the draws."""
    return float(np.abs((observed - expected) / np.sqrt(variance / draws)).max())


def p_of_counts(observed: NDArray, chances: NDArray) -> float:
    """Chi-square p-value, with rare outcomes put together."""
    expected = chances * observed.sum()
    common = expected >= 10
    both = [np.append(part[common], part[~common].sum()) for part in (observed, expected)]
    keep = both[1] > 0
    observed, expected = both[0][keep], both[1][keep]
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("rate", [0.03, 0.2, 0.7])
def test_poisson_items_are_independent_coins(rate: float) -> None:
    included = inclusions(PoissonItems(rate))
    assert far(included.mean(0), rate, rate * (1 - rate)) < FAR
    pairs = np.array([(included[:, a] & included[:, b]).mean() for a, b in combinations(range(ROSTER.items), 2)])
    assert far(pairs, rate**2, rate**2 * (1 - rate**2)) < FAR
    sizes = np.bincount(included.sum(1), minlength=ROSTER.items + 1)
    assert p_of_counts(sizes, stats.binom.pmf(np.arange(ROSTER.items + 1), ROSTER.items, rate)) > RARE


def test_poisson_batch_sizes_vary_as_a_binomial_does() -> None:
    sizes = inclusions(PoissonItems(0.2)).sum(1)
    variance = ROSTER.items * 0.2 * 0.8
    # A sample variance of nearly normal values has a standard error of variance·√(2/n).
    assert abs(sizes.var() - variance) < FAR * variance * np.sqrt(2 / DRAWS)
    assert len(set(sizes)) > 5


@pytest.mark.parametrize("sampling", [PoissonItems(1.0), PoissonSubjects(1.0), FixedItems(30)], ids=str)
def test_a_rate_of_one_takes_everything(sampling: Sampling) -> None:
    assert inclusions(sampling, draws=5).all()


def test_a_small_rate_gives_empty_batches() -> None:
    sizes = inclusions(PoissonItems(0.01)).sum(1)
    empty = 0.99**ROSTER.items
    assert far(np.array([(sizes == 0).mean()]), empty, empty * (1 - empty)) < FAR


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_poisson_subjects_are_independent_coins_and_bring_all_their_items(rate: float) -> None:
    included = inclusions(PoissonSubjects(rate))
    present = np.stack([included[:, subject == SUBJECTS].any(1) for subject in range(10)], axis=1)
    assert (included == present[:, SUBJECTS]).all()
    assert far(present.mean(0), rate, rate * (1 - rate)) < FAR
    pairs = np.array([(present[:, a] & present[:, b]).mean() for a, b in combinations(range(10), 2)])
    assert far(pairs, rate**2, rate**2 * (1 - rate**2)) < FAR
    sizes = np.bincount(present.sum(1), minlength=11)
    assert p_of_counts(sizes, stats.binom.pmf(np.arange(11), 10, rate)) > RARE


def chosen_subsets(included: NDArray[np.bool_], subject: int, size: int) -> NDArray[np.int64]:
    """How often each subset of this size of the subject's items was what the batch held of it."""
    mine = included[:, subject == SUBJECTS]
    mine = mine[mine.sum(1) == size]
    subsets = list(combinations(range(mine.shape[1]), size))
    return np.array([mine[:, subset].all(1).sum() for subset in subsets])


@pytest.mark.parametrize("subject", [0, 3])
def test_a_sampled_subject_brings_a_uniform_choice_of_its_items(subject: int) -> None:
    included = inclusions(PoissonSubjects(0.5, items=2))
    held = np.stack([included[:, s == SUBJECTS].sum(1) for s in range(10)], axis=1)
    assert ((held == 0) | (held == np.minimum(COUNTS, 2))).all()
    subsets = chosen_subsets(included, subject, 2)
    assert subsets.sum() == (held[:, subject] > 0).sum()
    assert stats.chisquare(subsets).pvalue > RARE
    assert far((held > 0).mean(0), 0.5, 0.25) < FAR


@pytest.mark.parametrize("subject", [0, 3])
@pytest.mark.parametrize("cap", [1, 2])
def test_a_group_cap_keeps_a_uniform_choice_of_the_drawn_items(cap: int, subject: int) -> None:
    included = inclusions(PoissonItems(0.4, most_per_subject=cap))
    count = COUNTS[subject]
    held = included[:, subject == SUBJECTS].sum(1)
    law = stats.binom.pmf(np.arange(cap + 1), count, 0.4)
    law[cap] = stats.binom.sf(cap - 1, count, 0.4)
    assert p_of_counts(np.bincount(held, minlength=cap + 1), law) > RARE
    assert stats.chisquare(chosen_subsets(included, subject, cap)).pvalue > RARE


@pytest.mark.parametrize("sampling", [PoissonItems(0.4, most_per_subject=2), PoissonSubjects(0.5, items=2)], ids=str)
def test_what_is_drawn_of_one_subject_tells_nothing_of_another(sampling: Sampling) -> None:
    included = inclusions(sampling)
    held = np.stack([included[:, subject == SUBJECTS].sum(1) for subject in range(10)], axis=1)
    correlations = np.corrcoef(held.T)[np.triu_indices(10, 1)]
    assert float(np.abs(correlations).max()) * np.sqrt(DRAWS) < FAR


def test_a_fixed_size_is_a_uniform_subset_of_exactly_that_size() -> None:
    included, size = inclusions(FixedItems(7)), 7
    share = size / ROSTER.items
    assert (included.sum(1) == size).all()
    assert far(included.mean(0), share, share * (1 - share)) < FAR
    together = share * (size - 1) / (ROSTER.items - 1)
    pairs = np.array([(included[:, a] & included[:, b]).mean() for a, b in combinations(range(ROSTER.items), 2)])
    assert far(pairs, together, together * (1 - together)) < FAR


# The cap K, when a silo is loaded.


def kept_by_cap(counts: list[int], most: int, draws: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """[draw, item] whether the item stays, and the items' subjects."""
    subjects = np.repeat(np.arange(len(counts)), counts)
    # The input is the item's own number, by which it is known again.
    data = SubjectData(np.arange(len(subjects))[:, None], np.zeros(len(subjects), np.int64), subjects)
    kept = np.zeros((draws, len(subjects)), bool)
    for number in range(draws):
        kept[number, data.cap_subjects(most, Coins.seeded(number)).inputs[:, 0]] = True
    return kept, subjects


@pytest.mark.parametrize("others", [[], [9], [1, 2, 3, 20]], ids=["alone", "with a larger", "with many"])
def test_a_cap_keeps_a_uniform_choice_whoever_else_is_there(others: list[int]) -> None:
    kept, subjects = kept_by_cap([5, *others], most=2, draws=5000)
    mine = kept[:, subjects == 0]
    assert (mine.sum(1) == 2).all()
    subsets = np.array([mine[:, pair].all(1).sum() for pair in combinations(range(5), 2)])
    assert stats.chisquare(subsets).pvalue > RARE


def test_what_a_cap_keeps_of_one_subject_tells_nothing_of_another() -> None:
    kept, subjects = kept_by_cap([4, 4], most=2, draws=8000)
    pairs = list(combinations(range(4), 2))
    joint = np.array(
        [
            [(kept[:, subjects == 0][:, a].all(1) & kept[:, subjects == 1][:, b].all(1)).sum() for b in pairs]
            for a in pairs
        ]
    )
    assert joint.sum() == 8000
    assert stats.chisquare(joint.ravel()).pvalue > RARE


def test_a_cap_leaves_smaller_subjects_whole() -> None:
    kept, subjects = kept_by_cap([2, 5, 1, 3], most=3, draws=50)
    assert (np.stack([kept[:, subjects == s].sum(1) for s in range(4)], axis=1) == [2, 3, 1, 3]).all()
