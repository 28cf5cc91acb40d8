"""What a finished run says of itself in the end. It reads and writes its own file form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wholegrain.federation.private_score import PrivateScore, private_score_facts, read_private_scores
from wholegrain.federation.round_record import PRIVATE, SCORES, Score, score_facts
from wholegrain.privacy.definitions import Guarantee
from wholegrain.runs.run_result import RunResult

CONSTANT = "constant answer (not private)"
WARNINGS = "warnings (not private)"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A finished run: what was planned, what was spent by the ledger, and the scores after the last round."""

    policy: str
    spent: tuple[Guarantee, ...]
    planned: tuple[Guarantee, ...]
    account: Mapping[str, Any] | None
    """Where the account stood at the end, as `AccountState.facts` says it."""
    noise: str
    rounds: int
    rounds_planned: int
    failed_rounds: int
    seconds: float
    scores: Mapping[str, Score]
    constant: Mapping[str, Score] = field(default_factory=dict)
    """What the best constant answer would score on each part."""
    warnings: tuple[str, ...] = ()
    """Bad news about the model, in sentences."""
    private: Mapping[str, PrivateScore] = field(default_factory=dict)
    """Private scores of the final model."""

    @staticmethod
    def of(run: RunResult) -> "RunSummary":
        """The summary of a run."""
        return RunSummary(
            policy=run.plan.policy,
            spent=run.guarantees,
            planned=run.plan.guarantees,
            account=run.account.facts(),
            noise=run.noise,
            rounds=len(run.rounds),
            rounds_planned=run.plan.horizon.rounds,
            failed_rounds=sum(done.failed for done in run.rounds),
            seconds=run.seconds,
            scores=run.scores,
            constant=run.constant,
            warnings=run.warnings,
            private=run.private,
        )

    def facts(self) -> dict[str, Any]:
        """The summary as JSON has it."""
        return {
            "policy": self.policy,
            "spent": [guarantee.facts() for guarantee in self.spent],
            "planned": [guarantee.facts() for guarantee in self.planned],
            "account": self.account,
            "noise": self.noise,
            "rounds": self.rounds,
            "rounds_planned": self.rounds_planned,
            "failed_rounds": self.failed_rounds,
            "seconds": round(self.seconds, 3),
            SCORES: score_facts(self.scores),
            CONSTANT: score_facts(self.constant),
            WARNINGS: list(self.warnings),
            **({PRIVATE: private_score_facts(self.private)} if self.private else {}),
        }

    @staticmethod
    def read(facts: Mapping[str, Any]) -> "RunSummary":
        """The summary that `facts` wrote. Runs of 0.1.0 tell their plan's guarantees alone."""
        content = {"spent": (), "account": None, **facts}
        for key, kept in (("scores", SCORES), ("constant", CONSTANT)):
            content[key] = {part: Score.read(score) for part, score in content.pop(kept, {}).items()}
        content["private"] = read_private_scores(content.pop(PRIVATE, {}))
        content["warnings"] = tuple(content.pop(WARNINGS, ()))
        planned = content.pop("guarantees", None)
        for key, found in (("spent", content["spent"]), ("planned", planned or content["planned"])):
            content[key] = tuple(Guarantee.read(each) for each in found)
        return RunSummary(**content)
