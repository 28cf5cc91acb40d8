"""A run after its last round: what it trained, scored and spent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from wholegrain.clipping.parameters import load
from wholegrain.data.schema import TableLayout
from wholegrain.data.tasks import Task
from wholegrain.federation.private_score import PrivateScore
from wholegrain.federation.round_record import RoundRecord, Score
from wholegrain.policies.plan import Plan
from wholegrain.privacy.definitions import Guarantee, Standing, Unit
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.accounts import AccountState, account_state, spent_guarantees
from wholegrain.runs.constant_answer import warn
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.spec import RunSpec


@dataclass(frozen=True, eq=False)
class PlayedRounds:
    """What a run's rounds left: their records, and the parameters that its server shows."""

    rounds: tuple[RoundRecord, ...]
    vector: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class RunResult:
    """A finished run: its plan, what was spent in the end, what each round gave, and the trained model."""

    spec: RunSpec
    plan: Plan
    guarantees: tuple[Guarantee, ...]
    """What the plan's guarantees have come to, by the ledger: rounds that were played again are counted again."""
    account: AccountState
    rounds: tuple[RoundRecord, ...]
    task: Task
    features: int
    layout: TableLayout | None
    """How columns of a table became inputs, if they did; kept with the model."""
    scores: Mapping[str, Score]
    """Scores of the final model by part, in all the usual metrics of the task. Not private."""
    constant: Mapping[str, Score]
    """What the best constant answer would score on each part. Not private."""
    vector: Tensor
    model: nn.Module
    noise: str
    seconds: float
    private: Mapping[str, PrivateScore] = field(default_factory=dict)
    """Private scores of the final model, of all silos together and of each; none where the spec asks for none."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Bad news about the model, in sentences: that it is no better than a constant answer, or has diverged."""
        return warn(self.scores, self.constant)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test part (or on whatever part was scored last)."""
        parts = self.scores
        return (parts.get("test") or list(parts.values())[-1]).accuracy if parts else float("nan")

    @property
    def guarantee(self) -> Guarantee:
        """What is proved for a subject, of what was released; `plan.guarantee()` is what was planned."""
        return self.spent(Unit.SUBJECT)

    def spent(self, unit: Unit) -> Guarantee:
        """What is proved for a unit, of what was released."""
        return next(g for g in self.guarantees if g.unit is unit and g.standing is not Standing.CLAIMED)


def make_result(prepared: PreparedRun, played: PlayedRounds, ledger: Ledger, run: str) -> RunResult:
    """The finished run, with what its ledger says of it."""
    load(prepared.model, played.vector)
    state, final = ledger.state, prepared.scorer(prepared.task.metrics)
    parts = {**prepared.scored, **prepared.groups}
    return RunResult(
        spec=prepared.spec,
        plan=prepared.plan,
        guarantees=spent_guarantees(prepared.plan, state.runs[run]),
        account=account_state(state, run, prepared.plan.accountant),
        rounds=played.rounds,
        task=prepared.task,
        features=prepared.features,
        layout=prepared.layout,
        scores={name: final.score(prepared.learner.trained, played.vector, data) for name, data in parts.items()},
        constant={name: final.constant(data) for name, data in parts.items()},
        vector=played.vector,
        model=prepared.model,
        noise=prepared.noise.name,
        seconds=sum(each.seconds for each in played.rounds),
        private=played.rounds[-1].private if played.rounds else {},
    )
