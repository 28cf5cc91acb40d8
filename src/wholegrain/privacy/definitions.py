"""Who is protected, what counts as a neighbour, how much may be spent, and on what authority.

These are values: frozen, without behaviour beyond checking themselves. Nothing in `privacy` reads data or imports
torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from wholegrain import _check
from wholegrain._html import html_table
from wholegrain._json_numbers import finite, or_infinity
from wholegrain.privacy.trust import SecureSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent  # takes more than a second to import, and is not needed to state a budget


class Unit(StrEnum):
    """What one unit of privacy protection covers."""

    ITEM = "item"
    SUBJECT = "subject"
    SILO = "silo"


class Neighbouring(StrEnum):
    """Which pairs of federations must be hard to tell apart."""

    ITEM = "one item added or removed in one silo"
    SUBJECT = "all items of one subject added or removed, in every silo"
    SILO = "any two data sets of one silo"


NEIGHBOURING = {
    Unit.ITEM: Neighbouring.ITEM,
    Unit.SUBJECT: Neighbouring.SUBJECT,
    Unit.SILO: Neighbouring.SILO,
}


class Standing(StrEnum):
    """On what authority a guarantee is given."""

    PROVED = "PROVED"
    """The event dominates the mechanism that runs, and the accountant's ε is an upper bound."""
    CLAIMED = "CLAIMED"
    """The paper says so; what can be proved of it is reported beside it."""
    NONE = "NONE"
    """Nothing is promised."""


@dataclass(frozen=True)
class Budget:
    """What may be spent in all: ε and δ.

    >>> Budget(epsilon=4.0, delta=1e-5)
    Budget(epsilon=4.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check.positive("epsilon", self.epsilon)
        _check.fraction("delta", self.delta)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What is promised, for which unit, on what authority, and why.

    `event` is what the accountant priced; it is None where nothing could be (standing NONE), where the paper's own
    arithmetic was followed (standing CLAIMED), or where `because` names another way to the bound. `epsilon` is
    infinite where nothing is promised. A `simulation` shows what a run with secure noise would promise; its own noise
    can be taken away by whoever knows the seed. With `counted_sizes`, rate, divisor and noise follow from how many
    items and subjects the data has, which is a private fact; a release uses declared sizes. With `trust`, the promise
    holds against whoever sees sums over silos, alone or with that many colluding silos; without, against whoever sees
    each silo's releases.
    """

    unit: Unit
    standing: Standing
    epsilon: float
    delta: float
    accountant: str
    because: str
    event: "DpEvent | None" = None
    simulation: bool = False
    counted_sizes: bool = False
    trust: SecureSum | None = None

    @property
    def neighbouring(self) -> Neighbouring:
        """The neighbouring relation that belongs to the unit."""
        return NEIGHBOURING[self.unit]

    def facts(self) -> dict[str, Any]:
        """The guarantee as JSON has it; its event is not among them."""
        return {
            "unit": str(self.unit),
            "neighbouring": str(self.neighbouring),
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "standing": str(self.standing),
            "accountant": self.accountant,
            "because": self.because,
            "simulation": self.simulation,
            "counted_sizes": self.counted_sizes,
            **({} if self.trust is None else {"trust": self.trust.facts}),
        }

    @staticmethod
    def read(facts: Mapping[str, Any]) -> "Guarantee":
        """The guarantee that `facts` wrote. Runs of 0.1.0 do not say whether sizes were counted: theirs were."""
        return Guarantee(
            unit=Unit(facts["unit"]),
            standing=Standing(facts["standing"]),
            epsilon=or_infinity(facts["epsilon"]),
            delta=facts["delta"],
            accountant=facts["accountant"],
            because=facts["because"],
            simulation=facts.get("simulation", False),
            counted_sizes=facts.get("counted_sizes", True),
            trust=SecureSum(**facts["trust"]) if facts.get("trust") else None,
        )

    def __str__(self) -> str:
        if self.standing is Standing.NONE:
            return f"{self.unit}: no guarantee ({self.because})"
        size = "∞" if math.isinf(self.epsilon) else f"{self.epsilon:.4g}"
        sums = "" if self.trust is None else " under secure sums"
        return f"{self.unit}: ε = {size}, δ = {self.delta:g}, {self.standing} by {self.accountant}{sums}{self.mark}"

    def _repr_html_(self) -> str:
        size = "∞" if math.isinf(self.epsilon) else f"{self.epsilon:.4g}"
        row = (self.unit, size, f"{self.delta:g}", self.standing, self.accountant, self.because)
        heads = ("protects", "ε", "δ", "standing", "accountant", "because")
        return html_table("Guarantee", heads, [row], self.mark.strip(" ()"))

    @property
    def mark(self) -> str:
        """What a simulation says of itself, in brackets; nothing for a release."""
        if not self.simulation:
            return ""
        sizes = ", sizes read off the data" if self.counted_sizes else ""
        return f" (simulation: seeded noise{sizes})"
