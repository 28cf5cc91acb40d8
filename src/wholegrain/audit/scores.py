"""What an attacker makes of the updates: one number for each canary, the higher the surer that it was in.

level      how likely its coordinate is with it and without it, over all rounds and silos      server's view
spread     how much its coordinate varies from one update to another: noise used twice cancels  server's view
final      its coordinate in the last model                                                    final model
louder     how strong the noise is where nothing else is: private facts that set its scale     server's view
quieter    the same, weaker                                                                    server's view
"""

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from wholegrain.audit.canaries import Design
from wholegrain.audit.likelihoods import Law, canary_law
from wholegrain.audit.simulate import ObservedUpdate
from wholegrain.clipping.rounding import SLACK
from wholegrain.policies.policy import FixedNoise, Policy, PublicDivisor, SiloFacts
from wholegrain.privacy.definitions import Unit
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.secure_noise import MARGIN, SecureNoise

Values = NDArray[np.float64]

TOLERANCE = 1e-3
"""How far off the noise's variance may be: noise on a grid is a little stronger, on purpose."""


@dataclass(frozen=True)
class NoiseLaw:
    """Whether coordinates that only noise reaches hold the noise that was priced: as strong, and fresh each time.

    Squares of `values` values, in units of what they should be; and squares of the sums of all updates of a run, over
    the number of updates, `sums` of them from runs that have several.
    """

    values: int = 0
    squares: float = 0.0
    sums: int = 0
    squared_sums: float = 0.0

    @staticmethod
    def of(updates: int, squares: float, total: Values) -> "NoiseLaw":
        """From one run's noise: how many updates, the squares of all values, and the updates' sum [coordinate]."""
        several = updates > 1
        return NoiseLaw(
            updates * len(total), squares, several * len(total), several * float(total @ total) / max(1, updates)
        )

    def __add__(self, other: "NoiseLaw") -> "NoiseLaw":
        """Both runs' together."""
        return NoiseLaw(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def strength(self) -> float:
        """Measured standard deviation, in units of what it should be."""
        return float(np.sqrt(self.squares / self.values)) if self.values else 1.0

    @property
    def repetition(self) -> float:
        """Variance of the sum of all updates, in units of what independent noise of this strength gives."""
        return self.squared_sums / (self.sums * self.strength**2) if self.sums else 1.0

    def p_value(self) -> float:
        """How likely noise as it was priced looks as far off as this, in strength or in repetition."""
        chances = []
        if self.values:
            low = stats.chi2.cdf(self.squares / (1 - TOLERANCE), self.values)
            high = stats.chi2.sf(self.squares / (1 + TOLERANCE), self.values)
            chances.append(2 * min(low, high))
        if self.sums:
            law = stats.beta(self.sums / 2, (self.values - self.sums) / 2)
            share = self.squared_sums / self.squares
            chances.append(2 * min(law.cdf(share), law.sf(share)))
        return float(min(1.0, len(chances) * min(chances))) if chances else 1.0


@lru_cache
def known_law(policy: Policy, silo: SiloFacts, unit: Unit, steps: int) -> Law | None:
    """`canary_law`, remembered."""
    return canary_law(policy, silo, unit, steps)


def stronger(noise: NoiseSource) -> float:
    """How much stronger than was priced a source makes its noise, to pay for what rounding does to sums."""
    return (1 + SLACK) * (1 + MARGIN) if isinstance(noise, SecureNoise) else 1.0


class Sheet:
    """A watcher that keeps scores of all canaries of a run, in memory that does not grow with its length."""

    def __init__(self, design: Design) -> None:
        self._design, self._steps = design, design.prepared.plan.horizon.steps
        self._stronger = stronger(design.prepared.noise)
        count, homes = design.block.canaries, len(design.homes)
        self.level, self._sum, self._squares, self._count = (np.zeros(count) for _ in range(4))
        self._strengths: list[list[float]] = [[] for _ in range(homes)]
        self._updates, self._noise_squares, self._noise_sum = 0, 0.0, np.zeros(design.block.spare)

    def __call__(self, seen: ObservedUpdate) -> None:
        """Take in one update."""
        policy, silo = seen.row
        block, home = self._design.block, self._design.home_of.get(silo.name)
        values = seen.in_clip_norms(seen.moved[-block.size :]).to(torch.float64).numpy()
        unused = values[block.unused]
        strength = float(np.sqrt(np.mean(unused**2))) or 1.0  # where there is no noise at all
        self._check(unused, policy)
        if home is not None:
            # Not in clip norms: where a divisor is not what it says, this is what silos have in common.
            divisor = policy.divisor.value if isinstance(policy.divisor, PublicDivisor) else 1.0
            self._strengths[home].append(np.log(strength / divisor))
            law = known_law(policy, silo, self._design.unit, self._steps)
            self._score(slice(home, block.canaries, len(self._design.homes)), values, strength, law)

    def _check(self, unused: Values, policy: Policy) -> None:
        if isinstance(policy.noise, FixedNoise) and isinstance(policy.divisor, PublicDivisor):
            expected = policy.noise.multiplier * self._stronger * np.sqrt(self._steps)
            if expected:
                noise = unused / expected
                self._updates += 1
                self._noise_squares += float(noise @ noise)
                self._noise_sum += noise

    def _score(self, residents: slice, values: Values, strength: float, law: Law | None) -> None:
        values = values[residents]
        known = values / strength
        self._sum[residents] += known
        self._squares[residents] += known**2
        self._count[residents] += 1
        self.level[residents] += known if law is None else law.log_ratio(values)

    @property
    def noise(self) -> NoiseLaw:
        """What the noise looked like, as far as its law is public."""
        return NoiseLaw.of(self._updates, self._noise_squares, self._noise_sum)

    @property
    def spread(self) -> Values:
        """Variance of each canary's coordinate from update to update."""
        count = np.maximum(self._count, 1)
        spread: Values = self._squares / count - (self._sum / count) ** 2
        return spread

    @property
    def strength(self) -> Values:
        """Mean log strength of the noise in each home [home]."""
        return np.array([np.mean(each) if each else 0.0 for each in self._strengths])

    def final(self, vector: Tensor) -> Values:
        """Each canary's coordinate in the last model, by the sign in which a canary moves it."""
        block = self._design.block
        values: Values = -vector[-block.size :][: block.canaries].to(torch.float64).numpy()
        return values
