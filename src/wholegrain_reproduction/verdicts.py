"""A claim of the paper as a value, and what can become of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from wholegrain_reproduction.results import Results


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    SEED = "depends on the seed"
    OPEN = "not measured here"


@dataclass(frozen=True)
class Finding:
    """A verdict, what was measured, and why it came out so."""

    verdict: Verdict
    measured: str
    why: str = ""


NOT_MEASURED = Finding(Verdict.OPEN, "–", "its runs have not been made")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and how it is judged."""

    place: str
    says: str
    recipe: str
    judge: Callable[[Results], Finding]
    close: bool = False
    """Whether its runs come so close that other seeds are told even where they agree."""

    def over_seeds(self, results: Results) -> Finding:
        """The finding, judged once for every seed that some of its runs were made with."""
        first, *others = (self.judge(each) for each in results.per_seed())
        agreed = all(other.verdict is first.verdict for other in others)
        others = [other for other in others if other.measured != first.measured]
        if not others or (agreed and not self.close):
            return first
        told = "; ".join(other.measured for other in others)
        measured = f"{first.measured}; with other seeds {told}"
        return replace(first, verdict=first.verdict if agreed else Verdict.SEED, measured=measured)
