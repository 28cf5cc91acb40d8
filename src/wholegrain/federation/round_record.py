"""What is on record of a round. A record writes itself as one line of JSON, and is read back from it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, SupportsFloat

from wholegrain._json_numbers import finite, or_infinity
from wholegrain.federation.messages import SiloFault
from wholegrain.federation.private_score import PrivateScore, private_score_facts, read_private_scores

SCORES = "scores (not private)"
"""The key of scores in a file, which says what they are."""
PRIVATE = "private scores"
"""The key of those that are paid for."""


@dataclass(frozen=True)
class Score:
    """Mean loss over items, and metrics by name, the task's headline first. Not private."""

    loss: float
    metrics: Mapping[str, float]

    @property
    def headline(self) -> tuple[str, float]:
        """The first metric's name and value."""
        return next(iter(self.metrics.items()))

    @property
    def accuracy(self) -> float:
        """The share of items that are told right; nan where a number is predicted."""
        return self.metrics.get("accuracy", math.nan)

    def facts(self) -> dict[str, float | None]:
        """The score as JSON has it: the headline, the loss, the other metrics."""
        first, *others = ((metric, finite(round(value, 6))) for metric, value in self.metrics.items())
        return dict([first, ("loss", finite(round(self.loss, 6))), *others])

    @staticmethod
    def read(facts: Mapping[str, Any]) -> "Score":
        """The score that `facts` wrote."""
        metrics = {name: math.nan if value is None else value for name, value in facts.items() if name != "loss"}
        return Score(or_infinity(facts["loss"]), metrics)


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """A finished round: who was to train, who failed, ε spent so far, how long it took, and the scores after it.

    A round in which too few silos answered has failed: it is paid for, and the parameters stay as they were.
    """

    round: int
    cohort: tuple[str, ...]
    spent: SupportsFloat
    """ε spent so far, which may be a number that is computed when somebody asks."""
    seconds: float
    failed: bool = False
    moved: float = 0.0
    """How far the parameters went, of which some is noise."""
    noise: float | None = None
    """How far noise alone would be expected to take them; None where private facts set the noise."""
    faults: tuple[SiloFault, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    private: Mapping[str, PrivateScore] = field(default_factory=dict)
    """Private scores of people who are held out, of all silos together and of each; they are paid for."""

    @property
    def epsilon(self) -> float:
        """ε spent so far."""
        return float(self.spent)

    def without_time(self) -> "RoundRecord":
        """The same, without how long it took: in a release that would tell how many items there are, without noise."""
        return replace(self, seconds=0.0)

    def line(self) -> str:
        """The record as a line of a file."""
        facts = {
            "round": self.round,
            "cohort": self.cohort,
            "epsilon": finite(self.epsilon),
            "seconds": round(self.seconds, 6),
            "failed": self.failed,
            "moved": self.moved,
            "noise": self.noise,
            "faults": [asdict(fault) for fault in self.faults],
            SCORES: score_facts(self.scores),
            **({PRIVATE: private_score_facts(self.private)} if self.private else {}),
        }
        return json.dumps(facts, ensure_ascii=False) + "\n"

    @staticmethod
    def read(line: str) -> "RoundRecord":
        """The record that `line` wrote; any other text is a `ValueError`."""
        try:
            facts = json.loads(line)
            facts["scores"] = {name: Score.read(score) for name, score in facts.pop(SCORES).items()}
            facts["private"] = read_private_scores(facts.pop(PRIVATE, {}))
            facts["faults"] = tuple(SiloFault(**fault) for fault in facts["faults"])
            facts |= {"cohort": tuple(facts["cohort"]), "spent": or_infinity(facts.pop("epsilon"))}
            return RoundRecord(**facts)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no record of a round ({type(error).__name__})") from error


def score_facts(scores: Mapping[str, Score]) -> dict[str, dict[str, float | None]]:
    """Scores by part, as JSON has them."""
    return {part: score.facts() for part, score in scores.items()}
