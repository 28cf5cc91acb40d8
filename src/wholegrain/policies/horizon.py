"""How long a run is and who trains when: public, and known before the first round, so that it can be priced.

It lives beside the plan rather than in `federation`, because accounting counts each silo's steps from it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from wholegrain import _check
from wholegrain._random import Purpose, generator
from wholegrain.errors import SpecError

MOST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """`rounds` rounds of `steps` steps in each silo of the round's cohort.

    >>> Horizon(silos=("a", "b", "c"), rounds=2, steps=5).releases()
    Counter({'a': 10, 'b': 10, 'c': 10})
    """

    silos: tuple[str, ...]
    rounds: int
    steps: int
    cohort_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("rounds", self.rounds), ("steps", self.steps)):
            if _check.count(name, value) > MOST:
                raise SpecError(f"{name} = {value} is more than the {MOST:,} that can be planned for.")
        if self.cohort_size is not None and _check.count("cohort", self.cohort_size) > len(self.silos):
            raise SpecError(
                f"A cohort of {self.cohort_size} silos cannot be drawn from {len(self.silos)}; lower rounds.cohort."
            )

    @property
    def cohort_count(self) -> int:
        """Silos that train in a round: the paper's s."""
        return self.cohort_size or len(self.silos)

    def cohort(self, round: int) -> tuple[str, ...]:
        """The silos that train in this round: a pure function of seed and round."""
        if self.cohort_size is None:
            return self.silos
        draws = generator(self.seed, Purpose.COHORT, round)
        chosen = draws.choice(len(self.silos), self.cohort_size, replace=False)
        return tuple(self.silos[number] for number in sorted(chosen))

    def releases(self, rounds: int | None = None) -> Mapping[str, int]:
        """Steps that each silo releases over the first `rounds` rounds (all of them by default)."""
        steps: Counter[str] = Counter()
        rounds = self.rounds if rounds is None else rounds
        if self.cohort_size is None:
            return Counter(dict.fromkeys(self.silos, rounds * self.steps))
        for number in range(rounds):
            for silo in self.cohort(number):
                steps[silo] += self.steps
        return steps
