"""Items lie over silos by the stated law, and batches then hold groups as large as the paper reports."""

import numpy as np
import pytest
from scipy.stats import chisquare

from wholegrain.data import partition
from wholegrain.data.sampling import FixedItems
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData, SubjectIndex

WRITERS, ITEMS, SILOS, BATCH = 3500, 145, 16, 512  # FEMNIST in the paper


def bare(subjects: np.ndarray) -> SubjectData:
    """Items without content: only whose they are."""
    return SubjectData(np.zeros((len(subjects), 0), np.uint8), subjects, subjects)


@pytest.mark.parametrize("alpha", [2.0, 4.0, 16.0])
def test_shares_of_silos_are_those_of_the_power_law(alpha: float) -> None:
    data = bare(np.zeros(200_000, np.int64))
    counts = np.sort(np.unique(partition.power(data, SILOS, alpha, Coins.seeded(0)), return_counts=True)[1])
    shares = np.diff((np.arange(SILOS + 1) / SILOS) ** alpha)
    shares = shares[-len(counts) :] / shares[-len(counts) :].sum()  # at α = 16 the first silos are empty
    rare = shares * data.items < 20
    observed, expected = np.append(counts[~rare], counts[rare].sum()), np.append(shares[~rare], shares[rare].sum())
    assert chisquare(observed[expected > 0], data.items * expected[expected > 0]).pvalue > 1e-4


def test_uniform_is_uniform() -> None:
    data = bare(np.zeros(200_000, np.int64))
    assert chisquare(np.unique(partition.uniform(data, SILOS, Coins.seeded(0)), return_counts=True)[1]).pvalue > 1e-4


@pytest.fixture(scope="module")
def femnist() -> SubjectData:
    return bare(np.repeat(np.arange(WRITERS), ITEMS))


def largest_groups(data: SubjectData, labels: partition.Labels) -> np.ndarray:
    """Of 40 batches in each of four silos."""
    draws = np.random.default_rng(0)
    indexes = [SubjectIndex.of(data.subjects[labels == name]) for name in np.unique(labels)[:4]]
    return np.array([FixedItems(BATCH).draw(index, draws).largest_group for index in indexes for _ in range(40)])


def test_uniformly_placed_subjects_mostly_have_three_items_in_the_largest_group(femnist: SubjectData) -> None:
    """[Marathe, §5.1]: "dominated by 3"."""
    found = largest_groups(femnist, partition.uniform(femnist, SILOS, Coins.seeded(0)))
    assert np.bincount(found).argmax() == 3
    assert (found == 3).mean() > 0.6
    assert found.mean() == pytest.approx(2.85, abs=0.15)


@pytest.mark.parametrize(("alpha", "reported", "here"), [(2.0, 3, 3.11), (16.0, 6, 5.81)])
def test_the_largest_group_grows_with_alpha_as_the_paper_says(
    femnist: SubjectData, alpha: float, reported: int, here: float
) -> None:
    """[Marathe, §5.2]: from 3 to 6. The standard error of the mean over 160 batches is below 0.07."""
    mean = largest_groups(femnist, partition.power(femnist, SILOS, alpha, Coins.seeded(0))).mean()
    assert round(mean) == reported
    assert mean == pytest.approx(here, abs=0.3)
