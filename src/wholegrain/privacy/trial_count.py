"""How many trials a private selection makes: a random number, from a law that has a price.

A fixed number of trials has no good price: the best of k is worth almost k releases. A random number that nobody is
told hides how hard the selection tried [Liu & Talwar 2019; Papernot & Steinke 2022].
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property

from scipy import optimize, stats

from wholegrain import _check
from wholegrain.errors import SpecError

MOST_TRIALS = 1000.0
LARGEST_SHAPE = 100.0

_FORM = re.compile(r"\s*(?P<law>[a-z_]+)\s*\((?P<arguments>[^()]*)\)\s*")


@dataclass(frozen=True)
class TrialCount:
    """A law of the number of trials: Poisson where `shape` is infinite, else a truncated negative binomial.

    The truncated negative binomial has P[k] proportional to Γ(k+η)/k!·(1−γ)^k for k ≥ 1: shape 1 is the geometric law.
    `mean` is the mean number of trials, of either law.

    >>> TrialCount.parse("poisson(10)")
    TrialCount(mean=10.0, shape=inf)
    >>> print(TrialCount.parse("negative_binomial(mean=10, shape=1)"))
    negative_binomial(mean=10, shape=1)
    """

    mean: float
    shape: float = math.inf

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= MOST_TRIALS:
            raise SpecError(f"A mean of {self.mean:g} trials is not between 1 and {MOST_TRIALS:g}.")
        if not self.is_poisson and not 0 < self.shape <= LARGEST_SHAPE:
            raise SpecError(f"A shape of {self.shape:g} is not above 0 and at most {LARGEST_SHAPE:g}.")
        if not self.is_poisson and self.mean == 1:
            raise SpecError("A negative binomial number of trials has a mean above 1; with one trial, use `run`.")

    @staticmethod
    def parse(text: str) -> "TrialCount":
        """The law that was written as `poisson(10)` or `negative_binomial(mean=10, shape=1)`."""
        found = _FORM.fullmatch(text)
        known = {"poisson": ("mean",), "negative_binomial": ("mean", "shape")}
        if found is None or found["law"] not in known:
            raise SpecError(
                f"'{text}' is no law of a number of trials; write \"poisson(10)\" or"
                ' "negative_binomial(mean=10, shape=1)".'
            )
        names = known[found["law"]]
        values: dict[str, float] = {}
        for place, argument in enumerate(filter(str.strip, found["arguments"].split(","))):
            name, equals, number = argument.rpartition("=")
            key = name.strip() if equals else dict(enumerate(names)).get(place, "")
            if key not in names or key in values:
                raise SpecError(f"'{argument.strip()}' in '{text}' is none of {', '.join(names)}.")
            values[key] = _read_number(f"{key} in '{text}'", number)
        if set(values) != set(names):
            raise SpecError(f"'{text}' needs {' and '.join(names)}.")
        return TrialCount(**values)

    def __str__(self) -> str:
        if self.is_poisson:
            return f"poisson({self.mean:g})"
        return f"negative_binomial(mean={self.mean:g}, shape={self.shape:g})"

    @property
    def is_poisson(self) -> bool:
        """Whether there may be no trial at all."""
        return math.isinf(self.shape)

    @cached_property
    def parameter(self) -> float:
        """γ of the truncated negative binomial of this mean, rounded down: a smaller γ has the larger price."""

        def excess(log_odds: float) -> float:
            chance = 1 / (1 + math.exp(-log_odds))
            return math.log(self._mean_of(chance)) - math.log(self.mean)

        found = float(optimize.brentq(excess, -30.0, 30.0, xtol=1e-13))
        return (1 - 1e-9) / (1 + math.exp(-found))

    def _mean_of(self, chance: float) -> float:
        return self.shape * (1 - chance) / (chance * -math.expm1(self.shape * math.log1p(chance - 1)))

    def count_at(self, uniform: float) -> int:
        """The number of trials at this quantile: a uniform number between 0 and 1 becomes one of the law.

        >>> TrialCount(10.0).count_at(0.5), TrialCount(10.0, 1.0).count_at(0.5)
        (10, 7)
        """
        if self.is_poisson:
            return int(stats.poisson.ppf(uniform, self.mean))
        none = float(stats.nbinom.pmf(0, self.shape, self.parameter))
        return max(1, int(stats.nbinom.ppf(none + uniform * (1 - none), self.shape, self.parameter)))


def _read_number(name: str, text: str) -> float:
    try:
        return _check.positive(name, float(text))
    except ValueError as error:
        raise SpecError(f"{name} must be a number above 0, not {text.strip()}.") from error
