"""The privacy loss of a mixture of Gaussians, inverted at all grid points at once.

The library halves one interval after the other in Python, some fifty thousand times for a distribution; nearly all of
the time of a price went there. The same halvings for all points together end at the same numbers to the last bit.
"""

from collections.abc import Sequence

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def mixture_distribution(
    sensitivities: Sequence[float], probabilities: Sequence[float], grid: float
) -> pld.PrivacyLossDistribution:
    """What the library's `from_mixture_gaussian_mechanism` gives for noise of scale 1, sooner."""
    removed, added = (
        pld._create_pld_pmf_from_monotone_privacy_loss(
            MixtureLoss(1.0, sensitivities, probabilities, adjacency_type=adjacency),
            value_discretization_interval=float(grid),  # whole numbers would make whole points
            use_connect_dots=True,
        )
        for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD)
    )
    return pld.PrivacyLossDistribution(removed, added)


class MixtureLoss(MixtureGaussianPrivacyLoss):  # type: ignore[misc]
    """The library's privacy loss with another search for its inverse."""

    def _inverse_privacy_losses_with_range(
        self, privacy_losses: Numbers, bounds: tuple[float, float], precision: float = 1e-6
    ) -> Numbers:
        """For each loss the smallest x, up to the precision, at which the loss is at most that.

        Guarantee: the library's own x, bit for bit, so that ε stays the upper bound that the library shows.
        """
        if not np.isfinite(bounds).all():
            raise OverflowError("Losses are so large that floating point has no bound for their points.")
        low, high = (np.full(len(privacy_losses), bound, np.float64) for bound in bounds)
        while (wide := high - low > precision).any():
            middle = (low[wide] + high[wide]) / 2
            if ((middle == low[wide]) | (middle == high[wide]) | ~np.isfinite(middle)).any():
                raise OverflowError("Losses are so large that floating point cannot tell points apart.")
            above = privacy_losses[wide] < self._losses(middle)
            low[wide] = np.where(above, middle, low[wide])
            high[wide] = np.where(above, high[wide], middle)
        return np.asarray(np.floor(high / precision) * precision)

    def _losses(self, points: Numbers) -> Numbers:
        """`privacy_loss` at many points: the same sums in the same order."""
        shifts = self.sensitivities[:, None] * points / self._variance
        constants = self._precompute_privacy_loss_constants[:, None]
        if self.adjacency_type == AdjacencyType.ADD:
            return np.asarray(-np.logaddexp.reduce(constants + shifts, axis=0))
        return np.asarray(np.logaddexp.reduce(constants - shifts, axis=0))
