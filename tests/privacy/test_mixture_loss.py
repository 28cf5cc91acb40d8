"""Mixtures are priced by the library's own numbers, to the last bit."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss
from scipy.stats import binom

from wholegrain.privacy.mixture_loss import MixtureLoss, mixture_distribution


def binomial(rate: float, items: int, noise: float) -> tuple[list[float], list[float]]:
    counts = np.arange(items + 1)
    return (counts / noise).tolist(), binom.pmf(counts, items, rate).tolist()


CASES = {
    "two moves": (([0.0, 0.4, 0.8], [0.8, 0.15, 0.05]), 1e-2),
    "always moved": (([0.3, 0.5], [0.5, 0.5]), 1e-2),
    "seldom": (binomial(0.01, 4, 4.0), 1e-3),
    "often, far": (binomial(0.4, 12, 1.5), 5e-2),
    "one probability is 0": (([0.0, 0.2, 0.4, 0.9], [0.5, 0.0, 0.3, 0.2]), 1e-2),
    "uneven moves, little noise": (([0.0, 0.1, 7.0], [0.6, 0.399, 0.001]), 5e-2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_distribution_is_the_librarys(case: str) -> None:
    (moves, chances), grid = CASES[case]
    ours = mixture_distribution(moves, chances, grid)
    theirs = pld.from_mixture_gaussian_mechanism(1.0, moves, chances, value_discretization_interval=grid)
    for mine, other in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        mine, other = mine.to_dense_pmf(), other.to_dense_pmf()
        assert mine._lower_loss == other._lower_loss
        assert mine._infinity_mass == other._infinity_mass
        assert mine._probs.tobytes() == other._probs.tobytes()


@pytest.mark.parametrize("adjacency", [AdjacencyType.ADD, AdjacencyType.REMOVE])
def test_a_single_loss_is_inverted_as_the_library_does(adjacency: AdjacencyType) -> None:
    moves, chances = binomial(0.2, 5, 2.0)
    ours, theirs = (
        kind(1.0, moves, chances, adjacency_type=adjacency) for kind in (MixtureLoss, MixtureGaussianPrivacyLoss)
    )
    for loss in (-0.3, 0.0, 0.001, 0.9):
        assert ours.inverse_privacy_loss(loss) == theirs.inverse_privacy_loss(loss)


def test_losses_that_floating_point_cannot_resolve_end_the_search() -> None:
    loss = MixtureLoss(1.0, [0.0, 1.0], [0.5, 0.5])
    with pytest.raises(OverflowError):
        loss._inverse_privacy_losses_with_range(np.array([0.1]), (1e300, 1.1e300))


def test_a_grid_that_is_a_whole_number_ends_with_the_same_price() -> None:
    moves, chances = [0.0, 1.0, 2.0], [0.5, 0.25, 0.25]
    whole, same = (mixture_distribution(moves, chances, grid) for grid in (1, 1.0))
    assert whole.get_epsilon_for_delta(1e-5) == same.get_epsilon_for_delta(1e-5)
