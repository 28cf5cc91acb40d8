"""What a canary does to its own coordinate, by public facts: the likelihoods that the best attack compares.

In a silo's update the coordinate holds the sum of T releases. Without the canary that is N(0, σ²T); with it, the number
of moves is added, a random one. Both are the laws that were priced, so that a score made of them is the best there is,
and any other law of the real releases shows in how often it is right.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from numpy.typing import NDArray

from wholegrain.clipping.clipping import ClipPer
from wholegrain.data.sampling import FixedItems
from wholegrain.policies.guarantees import obstacles, shares_its_coin, step_event
from wholegrain.policies.policy import FixedNoise, Policy, SiloFacts
from wholegrain.privacy.definitions import Unit

Values = NDArray[np.float64]

# Numbers of moves that are less likely than this are left out of a score.
NEGLIGIBLE = 1e-10


@dataclass(frozen=True)
class Law:
    """Each of `steps` steps adds j moves with probability `chances[j]`, and noise of so many moves.

    A move is `unit` clip norms long. Without moves the coordinate lies at `base` clip norms a step: where others in the
    batch pull it the other way.
    """

    chances: tuple[float, ...]
    noise: float
    steps: int
    unit: float = 1.0
    base: float = 0.0

    def log_ratio(self, values: Values) -> Values:
        """Log P(value | in) − log P(value | out) for sums of releases in clip norms, whatever their shape.

        >>> Law(chances=(0.0, 1.0), noise=1.0, steps=1).log_ratio(np.array([0.5, 2.0]))
        array([0. , 1.5])
        """
        moved = (values - self.base * self.steps) / self.unit
        variance = self.noise**2 * self.steps
        result = np.full_like(moved, -np.inf)
        for moves, chance in self._sums:
            np.logaddexp(result, np.log(chance) + moves * (moved - moves / 2) / variance, out=result)
        return result

    @cached_property
    def _sums(self) -> list[tuple[int, float]]:
        """The moves of all steps together, and how likely they are."""
        law = np.ones(1)
        for _ in range(self.steps):
            law = np.convolve(law, self.chances)
            law = law[: int(np.flatnonzero(law > NEGLIGIBLE)[-1]) + 1]
        return [(moves, float(chance)) for moves, chance in enumerate(law) if chance > NEGLIGIBLE]


def canary_law(policy: Policy, silo: SiloFacts, unit: Unit, steps: int) -> Law | None:
    """The law by which the canary of a unit was priced in this silo; None where it was priced otherwise."""
    if obstacles(policy, unit) or isinstance(policy.sampling, FixedItems):
        return None
    if unit is Unit.ITEM and (policy.clip.per is ClipPer.SUBJECT or shares_its_coin(policy, silo)):
        return None
    if not isinstance(policy.noise, FixedNoise) or policy.noise.multiplier == 0:
        return None
    moves = _moves(step_event(policy, silo, unit))
    if moves is None:
        return None
    chances, noise = moves
    base = -1.0 if policy.clip.per is ClipPer.BATCH else 0.0
    return Law(chances, noise, steps, unit=policy.noise.multiplier / noise, base=base)


def _moves(event: DpEvent) -> tuple[tuple[float, ...], float] | None:
    """Chances of 0, 1, 2, … moves in one step, and its noise in moves."""
    if isinstance(event, GaussianDpEvent):
        return (0.0, 1.0), event.noise_multiplier
    if isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent):
        chance = event.sampling_probability
        return (1 - chance, chance), event.event.noise_multiplier
    if isinstance(event, MixtureOfGaussiansDpEvent) and all(move == int(move) for move in event.sensitivities):
        chances = np.zeros(int(max(event.sensitivities)) + 1)
        chances[[int(move) for move in event.sensitivities]] = event.sampling_probs
        return tuple(chances.tolist()), event.standard_deviation
    return None
