"""Private scores of a round: paid for, then asked for, then read. All private scores are made here."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.data.tasks import Task
from wholegrain.errors import BudgetError
from wholegrain.federation.messages import ScoreEngine, ScoreTask, SiloFault, SiloScore, SumScore
from wholegrain.federation.private_score import ALL, PrivateScore, ScoreReader
from wholegrain.federation.rounds import digest
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.privacy.guard import Reservation

log = logging.getLogger("wholegrain.federation")


@dataclass(frozen=True)
class ScoredRound:
    """Private scores by place, and the silos that gave none."""

    scores: Mapping[str, PrivateScore] = field(default_factory=dict)
    faults: tuple[SiloFault, ...] = ()


class ScorePayer(Protocol):
    """Who answers for scores: a `Guard`."""

    def reserve_scores(self, round: int, silos: Iterable[str], start: str) -> Reservation:
        """Pay for one score in each silo before it is computed, or refuse."""

    def confirm(self, reservation: Reservation, silos: Iterable[str]) -> None:
        """Note that the scores of these silos have left them."""


def score_round(
    plan: ScorePlan, task: Task, engine: ScoreEngine, guard: ScorePayer, round: int, vector: Tensor
) -> ScoredRound:
    """The private scores of these parameters.

    Guarantee: they are in the ledger before any silo is asked for one. Where the budget cannot pay for them, nobody is
    asked, and there are none.
    """
    silos = tuple(plan.sizes)
    try:
        reservation = guard.reserve_scores(round, silos, digest(vector))
    except BudgetError as error:
        log.warning("%s There is no score of this round.", error)
        return ScoredRound()
    reader = ScoreReader(plan.form, task)
    sums: dict[str, NDArray[np.float64]] = {}
    faults: list[SiloFault] = []
    for answer in engine.score(ScoreTask(round, silos, vector)):
        if isinstance(answer, SumScore):
            guard.confirm(reservation, answer.silos)
            people = sum(plan.sizes[silo] for silo in answer.silos)
            found = {ALL: reader.read(answer.sums, people, len(answer.silos))}
            return ScoredRound(found, tuple(faults))
        if isinstance(answer, SiloScore) and _is_usable(answer, plan.form.width):
            sums[answer.silo] = answer.sums
        else:
            why = answer.reason if isinstance(answer, SiloFault) else "its score is not of the agreed form"
            faults.append(SiloFault(answer.silo, why))
    guard.confirm(reservation, sums)
    return ScoredRound(reader.read_all(sums, plan.sizes), tuple(faults))


def _is_usable(answer: SiloScore, width: int) -> bool:
    return answer.sums.shape == (width,) and bool(np.isfinite(answer.sums).all())
