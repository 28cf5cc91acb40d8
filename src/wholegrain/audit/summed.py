"""The audit of secure sums: the attacker sees the opened sum and knows the parts of all colluding silos.

Only as many silos answer as a sum needs, and as many of them collude as may. Canaries are made-up subjects with a
coordinate each and gradients far longer than the clip norm. They are in one silo, in two, and in as many as anybody may
be. Everything between a subject's rows and the opened sum is the run's own: sampling, weights by span, clip, grid,
noise, masks, opening.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain.audit.attacks import secret_coins
from wholegrain.audit.estimators import AttackEvidence
from wholegrain.audit.simulate import NoiseOf
from wholegrain.clipping.engine import BookKeeping
from wholegrain.data.subjects import SubjectData
from wholegrain.engines.secure_sum_engine import MaskRequest, SecureSums
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.errors import RunError
from wholegrain.federation.messages import RoundTask, SumUpdate
from wholegrain.federation.sum_scale import SumScale
from wholegrain.policies.plan import Plan
from wholegrain.policies.policy import SHARE_STEPS, PublicDivisor
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import iterate_cases
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.silo.training import Silo, Trainer

LENGTH = 1e4
"""Of a canary's gradient, in units in which clip norms are about 1."""


@dataclass(eq=False)
class SpyingSilos(SumSilos):
    """Silos of which some show the server what they added."""

    colluding: frozenset[str] = frozenset()
    shown: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """The parts of colluding silos in the last round, noise included."""

    def _part(self, name: str, request: MaskRequest) -> NDArray[np.int64]:
        part = super()._part(name, request)
        if name in self.colluding:
            self.shown[name] = part.copy()
        return part


@dataclass(frozen=True, eq=False)
class SumAttack:
    """Canaries in `span` silos of a run's worst case."""

    prepared: PreparedRun
    span: int
    coins: NDArray[np.bool_]

    @property
    def plan(self) -> Plan:
        """The run's plan."""
        return self.prepared.plan

    def scores(self, noise: NoiseOf) -> NDArray[np.float64]:
        """[canary] how far the opened sums of all rounds have moved along its coordinate, in clip norms."""
        trust = self.plan.trust
        assert trust is not None
        names = [facts.name for _, facts in self.plan.rows][: trust.answers]
        honest, colluding = names[: trust.honest], frozenset(names[trust.honest :])
        size = len(self.coins)
        model = nn.Sequential(nn.Embedding(size, 1), nn.Flatten()).double()
        trainer = Trainer(
            clipped_sum=BookKeeping(model, lambda outputs, targets: LENGTH * outputs.mean()),
            noise=noise(-1),
            learning_rate=1.0,
        )
        silos = {name: self._silo(name, name in honest[: self.span]) for name in names}
        spies = SpyingSilos(silos, self.plan, trainer, trust, colluding=colluding)
        engine = SecureSums(spies, self.plan, trust, 1.0)
        seen = np.zeros(size)
        for round in range(self.plan.horizon.rounds):
            seen += self._open_sum(engine, spies, round, torch.zeros(size, dtype=torch.float64))
        return seen / self.plan.rows[0][0].clip.norm

    def _open_sum(self, engine: SecureSums, spies: SpyingSilos, round: int, start: Tensor) -> NDArray[np.float64]:
        """The sum of a round without the parts of colluding silos."""
        everybody = tuple(facts.name for _, facts in self.plan.rows)
        answers = [each for each in engine.run(RoundTask(round, everybody, 1, start)) if isinstance(each, SumUpdate)]
        if not answers:
            raise RunError(f"The sum of round {round} of the audit was not opened.")
        rows = [row for row in self.plan.rows if row[1].name in answers[0].silos]
        divisor = sum(policy.divisor.value for policy, _ in rows if isinstance(policy.divisor, PublicDivisor))
        step = SumScale.of(self.plan.rows, len(start)).step
        return (start - answers[0].vector).numpy() * divisor - step * sum(spies.shown.values())

    def _silo(self, name: str, home: bool) -> Silo:
        """A silo that holds the canaries that are in, if it is one of their homes, and otherwise nobody."""
        facts = next(facts for _, facts in self.plan.rows if facts.name == name)
        present = np.flatnonzero(self.coins) if home else np.zeros(0, np.int64)
        codes = np.repeat(present, facts.items_per_subject or 1)
        data = SubjectData(codes[:, None], np.zeros(len(codes), np.int64), codes)
        steps = SHARE_STEPS if self.plan.rows[0][0].by_share else 1
        return Silo(facts, data, spans=np.full(len(codes), steps * self.span))


def attack_sums(
    prepared: PreparedRun, noise: NoiseOf, canaries: int, seed: int
) -> Iterator[tuple[str, AttackEvidence]]:
    """Evidence of canaries in one silo, in two, and in as many as anybody may be."""
    plan, proved = prepared.plan, prepared.plan.guarantee(Unit.SUBJECT)
    cases = [] if proved.event is None else list(iterate_cases(proved.event))
    for span in sorted({1, min(2, plan.span), plan.span}):
        coins = secret_coins(seed, f"sum over {span}", canaries)
        scores = SumAttack(prepared, span, coins).scores(noise)
        event = cases[0] if len(cases) == 1 else None
        # Where everybody is in every step, half way between the worlds is known beforehand.
        line = plan.horizon.rounds * _move(plan, span) / 2 if event is not None else None
        yield f"sum: in {span} silo{'s' * (span > 1)}", AttackEvidence(coins, scores, proved.delta, event, line)


def _move(plan: Plan, span: int) -> float:
    """How far a canary in `span` silos, all of them honest, should move the sum in a step, in clip norms."""
    assert plan.trust is not None
    homes = min(span, plan.trust.honest)
    return homes / span if plan.rows[0][0].by_span else float(homes)
