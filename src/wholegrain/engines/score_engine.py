"""Private scores of silos in this process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wholegrain.data.subjects import SubjectData
from wholegrain.federation.messages import ScoreTask, SiloFault, SiloScore
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.silo.score_release import ScoreMaker


@dataclass(frozen=True, eq=False)
class ScoresInProcess:
    """Every silo's people who are held out, scored one silo after the other."""

    held_out: Mapping[str, SubjectData]
    form: ScoreForm
    maker: ScoreMaker

    def score(self, task: ScoreTask) -> Iterator[SiloScore | SiloFault]:
        """A noisy sum of each silo, also of one in which nobody is held out."""
        for silo in task.silos:
            found = self.maker.score(silo, self.held_out.get(silo), self.form, task.vector, task.round)
            yield SiloScore(silo, found.numpy())
