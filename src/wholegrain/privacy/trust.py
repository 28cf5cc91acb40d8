"""Who sees what: each silo's release, or only the sum over silos.

Under *local* trust (the default, written as None) the server sees every silo's noisy release, so each silo adds all the
noise that its subjects need. Under a *secure sum* [Bonawitz et al. 2017] nobody sees less than a sum over many silos,
and the noise of all of them hides each subject: every silo adds a part of it.
"""

import math
from dataclasses import asdict, dataclass

from wholegrain import _check
from wholegrain.errors import SpecError

MOST_SILOS = 256
"""In one secure sum: pairs of silos exchange masks, and shares of them."""


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """A sum over `silos` silos, opened with at least `answers` of them, of which `colluding` may work with the server.

    Guarantee: whoever drops out and whoever colludes, an opened sum holds the noise of at least `honest` silos that
    nobody else knows.

    >>> SecureSum.over(12)
    SecureSum(silos=12, answers=10, colluding=1)
    >>> SecureSum.over(12).honest, SecureSum.over(12).threshold
    (9, 7)
    """

    silos: int
    answers: int
    colluding: int

    @staticmethod
    def over(silos: int, answers: int | None = None, colluding: int = 1) -> "SecureSum":
        """A sum over so many silos; by default five sixths of them must answer."""
        return SecureSum(
            silos=silos, answers=math.ceil(5 * silos / 6) if answers is None else answers, colluding=colluding
        )

    def __post_init__(self) -> None:
        if not 2 <= self.silos <= MOST_SILOS:
            raise SpecError(f"A secure sum is over 2 to {MOST_SILOS} silos, and there are {self.silos}.")
        _check.count("trust.answers", self.answers)
        if self.colluding < 0:
            raise SpecError(f"trust.colluding = {self.colluding} must not be negative.")
        if not self.threshold <= self.answers <= self.silos:
            raise SpecError(
                f"trust.answers = {self.answers} must lie between {self.threshold} (more than half of the {self.silos}"
                f" silos and the {self.colluding} that may collude) and {self.silos}."
            )
        if 2 * self.honest < self.silos:
            raise SpecError(
                f"With trust.answers = {self.answers} and trust.colluding = {self.colluding}, only {self.honest} of"
                f" {self.silos} silos are sure to add noise that nobody else knows; at least half of them must."
            )

    @property
    def facts(self) -> dict[str, int]:
        """As JSON: what the constructor takes."""
        return asdict(self)

    @property
    def honest(self) -> int:
        """Silos in every opened sum whose noise nobody else knows."""
        return self.answers - self.colluding

    @property
    def threshold(self) -> int:
        """Silos that must help to open a sum: more than (silos + colluding)/2, so that no two sets of survivors can
        both be opened in one round.
        """
        return (self.silos + self.colluding) // 2 + 1

    @property
    def surplus(self) -> float:
        """How much more variance the sum has than was needed, when every silo answers: the price of dropouts."""
        return self.silos / self.honest

    def sum_noise(self, of_a_silo: float) -> float:
        """The noise of the honest sum, from that of each silo."""
        return of_a_silo * math.sqrt(self.honest)

    def silo_noise(self, of_the_sum: float) -> float:
        """The noise that each silo adds, from what the honest sum needs."""
        return of_the_sum / math.sqrt(self.honest)
