"""Private scores: of silos in this process, and of secure sums, wherever their silos are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wholegrain.engines.secure_sum_engine import MaskRequest, SecureSums
from wholegrain.federation.messages import ScoreTask, SiloFault, SiloScore, SumScore
from wholegrain.federation.sum_scale import SumScale
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.silo.score_release import STEPS, HeldOut, ScoreMaker


@dataclass(frozen=True, eq=False)
class ScoresInProcess:
    """Every silo's people who are held out, scored one silo after the other."""

    held_out: Mapping[str, HeldOut]
    form: ScoreForm
    maker: ScoreMaker

    def score(self, task: ScoreTask) -> Iterator[SiloScore | SiloFault]:
        """A noisy sum of each silo, also of one in which nobody is held out."""
        for silo in task.silos:
            data = self._held_by(silo).data
            yield SiloScore(silo, self.maker.score(silo, data, self.form, task.vector, task.round).numpy())

    def part_of_sum(self, silo: str, request: MaskRequest) -> NDArray[np.int64]:
        """A silo's part of a secure sum of scores.

        Private: the result; masked, it may leave the silo.
        """
        return self.maker.add_to_sum(silo, self._held_by(silo), self.form, request.vector, request.round)

    def _held_by(self, silo: str) -> HeldOut:
        return self.held_out.get(silo, HeldOut(None))


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Scores of a server that sees nothing but their sum over silos."""

    plan: ScorePlan
    sums: SecureSums = field(repr=False)

    def score(self, task: ScoreTask) -> Iterator[SumScore | SiloFault]:
        """One noisy sum over all silos that answered, and a fault for each that did not."""
        form = self.plan.form
        scale = SumScale.of_scores(self.plan)
        for answer in self.sums.open_sum(task, form.width, scale.bits):
            if isinstance(answer, SiloFault):
                yield answer
            else:
                yield SumScore(answer.silos, answer.numbers.astype(np.float64) / STEPS)
