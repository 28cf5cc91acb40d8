"""A run before its first round: all that it needs, as a value."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain.clipping.devices import USUAL, Compute
from wholegrain.clipping.reference import ClippedSum, Loss
from wholegrain.data.schema import TableLayout
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Task
from wholegrain.federation.round_record import Score
from wholegrain.federation.server_optimiser import Server
from wholegrain.models.backbone import PublicStart
from wholegrain.policies.plan import Plan
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.setting_origins import Origins
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.trained_model import TrainedModel
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.training import Silo


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedRun:
    """All that a run needs, checked and priced; nothing has been released or written yet."""

    spec: RunSpec
    data: str
    """The name under which the data's owner keeps its account."""
    plan: Plan
    silos: Mapping[str, Silo]
    scored: Mapping[str, SubjectData]
    groups: Mapping[str, SubjectData]
    """Parts of what is scored, of which only the final model's scores are told."""
    learner: TrainedModel
    """The model; silos and scored items are seen through its frozen beginning, where it has one."""
    first: Tensor
    """The parameters before round 0: runs leave their own in the model."""
    task: Task
    features: int
    """Number of values in one input."""
    loss: Loss
    clipped_sum: ClippedSum
    compute: Compute = USUAL
    """Where its gradients are computed, and in which precision."""
    noise: NoiseSource
    server: Server
    layout: TableLayout | None = None
    held_out: Mapping[str, SubjectData] = field(default_factory=dict)
    """Whom each silo holds out to be scored privately."""
    held_out_spans: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """In how many silos the subjects of these items are, where scores count them by that [item]."""
    origins: Origins = field(default_factory=dict)
    """Where each setting comes from."""

    @property
    def model(self) -> nn.Module:
        """The whole model, which takes items as they are stored."""
        return self.learner.model

    @property
    def public(self) -> PublicStart | None:
        """What the run starts from that is public: nothing, or a backbone."""
        return self.learner.public

    def scorer(self, metrics: Iterable[str] = ()) -> Scorer:
        """With the task's headline, these metrics, and those that the spec names."""
        return Scorer.of(self.task, self.loss, [*metrics, *self.spec.evaluation.metrics])

    def score(self, vector: Tensor, scorer: Scorer) -> Mapping[str, Score]:
        """Scores of these parameters on every part that is scored in each round. Not private."""
        return {name: scorer.score(self.learner.trained, vector, data) for name, data in self.scored.items()}
