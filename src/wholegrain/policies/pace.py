"""How far and how fast a linear model should go, from public facts: sizes, the noise, and declared bounds of features.

Gradient descent at learning rate η for T steps takes a *time* t = η·T: what has curvature λ is learnt when λ·t > 1.
Momentum β multiplies it by 1/(1 − β). Two terms make the predicted excess loss, in nats:

    SHORTFALL / (t·L)          what a run of this time has not learnt yet
    KEPT · ¼ · s²/T · t · d    what noise of standard deviation s in each step leaves, d = Σ min(1, λ·t)

L is the largest curvature that the declared bounds allow, so that 1/L never diverges (Nesterov 2004, §2.1). The second
term is the stationary loss of noisy gradient descent in each direction that is learnt, of which a learning rate that
falls to zero keeps a part. Noise that a budget pays for has s² ~ T, so that the number of steps cancels: time is what
costs. Directions that are not learnt cost little, and so thousands of rare categories do not make a run shorter.

For cross-entropy, curvature is at most ½ of the square of the input (Böhning 1992), the model's constant included.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from wholegrain.data.feature_scale import FeatureScale

SHORTFALL = 6.0
KEPT = 1 / 8
"""Both measured on five tables (docs/defaults.md); the optimum depends on the square root of their ratio."""
FASTEST = 3.0
"""Of 1/L. Momentum bears 2·(1 + β)/L (Polyak 1964), nearly 4, and L itself is a bound that no data reaches."""
TIMES = np.geomspace(10.0, 1e5, 161)
"""What is weighed, in units of 1/L."""


LOSSES: Mapping[str, Callable[[int], tuple[float, float]]] = {
    "cross_entropy": lambda outputs: (1 / 2, math.sqrt(1 - 1 / outputs)),
    "binary_cross_entropy": lambda outputs: (1 / 4 / outputs, 1 / 2 / math.sqrt(outputs)),
    "squared_error": lambda outputs: (1.0, 1 / 2),
    "huber": lambda outputs: (1.0, 1 / 2),
}
"""By the outputs of a linear model, for an input of length 1: the most curvature, and the first gradient's length."""


@dataclass(frozen=True)
class Steepness:
    """What declared bounds say of a loss's curvature in a linear model."""

    scale: FeatureScale
    outputs: int
    loss: str = "cross_entropy"

    @property
    def longest(self) -> float:
        """The length of the longest input, the model's constant included."""
        return math.sqrt(self.scale.longest + 1)

    @property
    def curvature(self) -> float:
        """L: the most that any direction can have."""
        return self.longest**2 * LOSSES[self.loss](self.outputs)[0]

    @property
    def first_gradient(self) -> float:
        """The longest gradient of one item where nothing is known yet (of a number: where it is half way off)."""
        return self.longest * LOSSES[self.loss](self.outputs)[1]

    def learnt(self, times: np.ndarray) -> np.ndarray:
        """[time] how many directions are learnt in this time, in units of 1/L; each output has its own."""
        curvatures = np.append(self.scale.squares, 1.0) / self.longest**2
        values, counts = np.unique(curvatures.round(12), return_counts=True)
        shares = np.minimum(1.0, times[:, None] * values)
        return self.outputs * np.asarray((shares * counts).sum(1))


@dataclass(frozen=True)
class Forecast:
    """The best time, in units of 1/L, and the excess loss that is predicted of it in nats."""

    time: float
    excess: float


def forecast(steepness: Steepness, variance: float, longest_time: float = math.inf) -> Forecast:
    """The time with the least predicted excess loss. `variance` is s²/T, of one value in the silos' mean.

    Noise shortens a run:

    >>> from wholegrain.data.feature_scale import scale_of_numbers
    >>> steepness = Steepness(scale_of_numbers(20), outputs=2)
    >>> quiet, loud = forecast(steepness, 1e-8), forecast(steepness, 1e-4)
    >>> loud.time < quiet.time, loud.excess > quiet.excess
    (True, True)
    """
    times = TIMES[longest_time >= TIMES] if longest_time > TIMES[0] else TIMES[:1]
    noise = KEPT / 4 * variance * times / steepness.curvature * steepness.learnt(times)
    excess = SHORTFALL / times + noise
    least = int(excess.argmin())
    return Forecast(float(times[least]), float(excess[least]))
