"""What dp_accounting does with privacy loss distributions, without its detours: the same numbers, sooner.

A guard prices every round. Of that time the library spends a third on moments of the one step that all rounds repeat,
and another third on a loop over losses in Python. Here the moments are kept, and the loop is one operation on arrays.
Where a distribution is not of the usual kind, the library is asked. `tests/privacy/test_loss_composition.py` compares.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf, SparsePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy import fft, signal, special

TRUNCATED = 1e-15
"""The mass of the tails that the library cuts off in a repetition, and counts as an infinite loss."""
MOST_LOSS = 690.0
"""Up to here e^−loss is a normal number."""
LOG_NOTHING = -800.0
"""e to this is far below the smallest number."""
FIRST_LOSSES = 1 << 12
"""So many of the largest are looked at first, or a third of all, then four times as many: the answer mostly lies among
them."""
FEW_LOSSES = 1000
"""Up to so many losses the library keeps a repetition as a list of them, and multiplies one by one."""


def repeat_distribution(distribution: PrivacyLossDistribution, times: int) -> PrivacyLossDistribution:
    """The distribution of so many repetitions; the library's, up to the rounding of sums."""
    removed = _repeat(distribution._pmf_remove, times)
    if distribution._symmetric:
        return PrivacyLossDistribution(removed)
    return PrivacyLossDistribution(removed, _repeat(distribution._pmf_add, times))


def find_epsilon(distribution: PrivacyLossDistribution, delta: float) -> float:
    """The smallest ε at δ; the library's, up to the rounding of sums.

    Guarantee: δ(ε) ≤ δ, up to that rounding.
    """
    return max(_find_epsilon(each, delta) for each in _directions(distribution))


def delta_curve(distribution: PrivacyLossDistribution) -> Callable[[float], float]:
    """δ(ε), for whoever asks at many ε: all losses are laid out once."""
    curves = [_delta_curve(each) for each in _directions(distribution)]
    return lambda epsilon: max(curve(epsilon) for curve in curves)


def _directions(distribution: PrivacyLossDistribution) -> list[PLDPmf]:
    removed = distribution._pmf_remove
    return [removed] if distribution._symmetric else [removed, distribution._pmf_add]


def _delta_curve(losses_of: PLDPmf) -> Callable[[float], float]:
    """Σ max(0, 1 − e^(ε − loss))·p, over one direction.

    Where many losses are above ε, it is P − e^(ε − l)·E, with l the first of them, P the chance of all of them and
    E = Σ e^(l − loss)·p; P and E are computed for every l at once, when they are first asked for.
    """
    if type(losses_of) is not DensePLDPmf:
        return lambda epsilon: float(losses_of.get_delta_for_epsilon(epsilon))
    losses = (np.arange(losses_of.size) + losses_of._lower_loss) * losses_of._discretization
    chances, infinite = losses_of._probs, losses_of._infinity_mass
    tails = cache(lambda: _tails(chances, math.exp(-losses_of._discretization)))

    def curve(epsilon: float) -> float:
        above = int(np.searchsorted(losses, epsilon, side="right"))
        if len(losses) - above <= FEW_LOSSES:
            return float(infinite + np.dot(-np.expm1(epsilon - losses[above:]), chances[above:]))
        beyond, decayed = tails()
        return float(infinite + beyond[above] - math.exp(epsilon - losses[above]) * decayed[above])

    return curve


def _tails(chances: NDArray[np.float64], decay: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From each loss on: the sum of chances, and of chances that count `decay` times as much at every further loss."""
    backwards = chances[::-1]
    return np.cumsum(backwards)[::-1], signal.lfilter([1.0], [1.0, -decay], backwards)[::-1]


def _repeat(step: PLDPmf, times: int) -> PLDPmf:
    """As the library's `self_compose`, with what is known of a step kept from one number of repetitions to the next."""
    if isinstance(step, SparsePLDPmf) and (times == 1 or step.size ** min(times, 10) <= FEW_LOSSES):
        return step.self_compose(times)
    if step not in _DENSE:
        _DENSE[step] = DenseStep.of(step.to_dense_pmf())
    dense = _DENSE[step]
    low, high = dense.bounds(times)
    length = high - low + 1
    fast = fft.next_fast_len(max(length, len(dense.chances)), real=True)
    circular = fft.irfft(_raise(fft.rfft(dense.chances, fast), times), fast)
    infinite = TRUNCATED - math.expm1(times * math.log1p(-step._infinity_mass))
    return DensePLDPmf(
        step._discretization,
        dense.lowest * times + low,
        np.roll(circular, -low)[:length],
        infinite,
        step._pessimistic_estimate,
    )


def _raise(values: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """Values within the unit circle to a power. Those whose power is below every number are zero, and are not asked.

    Of many repetitions nearly all are: a characteristic function falls, and a complex power takes 100 ns.
    """
    counted = np.abs(values) > math.exp(LOG_NOTHING / times)
    found = np.zeros_like(values)
    found[counted] = values[counted] ** times
    return found


@dataclass(frozen=True, eq=False)
class DenseStep:
    """The losses of one step, and the logarithm of their moment generating function at the orders of the library."""

    lowest: int
    chances: NDArray[np.float64]
    orders: NDArray[np.float64]
    log_moments: NDArray[np.float64]

    @staticmethod
    def of(step: DensePLDPmf) -> "DenseStep":
        """Of a distribution on a grid, all of it."""
        chances, size = step._probs, len(step._probs)
        orders = np.concatenate((np.arange(-20, 0), np.arange(1, 21))) / size
        moments = np.array([special.logsumexp(np.arange(size) * order, b=chances) for order in orders])
        return DenseStep(step._lower_loss, chances, orders, moments)

    def bounds(self, times: int) -> tuple[int, int]:
        """Outside of these, so many repetitions have less mass than `TRUNCATED`, by Chernoff's bound at every order."""
        found = (times * self.log_moments + math.log(2 / TRUNCATED)) / self.orders
        above, below = found[(self.orders > 0) & np.isfinite(found)], found[(self.orders < 0) & np.isfinite(found)]
        most = (len(self.chances) - 1) * times
        return math.floor(below.max(initial=0.0)), min(most, math.ceil(above.min(initial=float(most))))


_DENSE: "WeakKeyDictionary[PLDPmf, DenseStep]" = WeakKeyDictionary()


def _find_epsilon(losses_of: PLDPmf, delta: float) -> float:
    """The smallest ε for which Σ max(0, 1 − e^(ε − loss))·p ≤ δ, over one direction.

    With the largest k losses counted, ε_k = log((upper_k − δ) / lower_k). The answer is the first ε_k that is not below
    the next loss; from there on further losses count nothing.
    """
    if type(losses_of) is not DensePLDPmf:
        return float(losses_of.get_epsilon_for_delta(delta))
    size, grid, infinite = losses_of.size, losses_of._discretization, losses_of._infinity_mass
    largest = (losses_of._lower_loss + size - 1) * grid
    if infinite > delta or not largest < MOST_LOSS:
        return float(losses_of.get_epsilon_for_delta(delta))
    counted, upper, lower = 0, infinite, 0.0
    while counted < size:
        counted = min(size, max(FIRST_LOSSES, size // 3, 4 * counted))
        chances = losses_of._probs[-1 : -counted - 1 : -1]
        last, upper, lower = _count_losses(largest - grid * np.arange(counted), chances, infinite, delta)
        if last < counted:
            break
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)


def _count_losses(
    losses: NDArray[np.float64], chances: NDArray[np.float64], infinite: float, delta: float
) -> tuple[int, float, float]:
    """How many of the largest losses count, all of these at most, and their two sums."""
    upper = np.cumsum(np.concatenate([[infinite], chances]))
    lower = np.cumsum(np.concatenate([[0.0], np.exp(-losses) * chances]))
    with np.errstate(all="ignore"):
        epsilons = np.log((upper[:-1] - delta) / lower[:-1])
    ends = np.flatnonzero((upper[:-1] > delta) & (lower[:-1] > 0) & (epsilons >= losses))
    last = int(ends[0]) if len(ends) else len(losses)
    return last, float(upper[last]), float(lower[last])
