"""Silos in this process, one after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wholegrain.federation.messages import RoundTask, SiloUpdate
from wholegrain.policies.plan import Plan
from wholegrain.silo.training import Silo, Trainer


@dataclass(frozen=True, eq=False)
class InProcess:
    """An engine for simulation on one machine."""

    silos: Mapping[str, Silo]
    plan: Plan
    trainer: Trainer

    def run(self, task: RoundTask) -> Iterator[SiloUpdate]:
        """Train each silo of the task in turn."""
        for name in task.silos:
            vector = self.trainer.train(
                self.silos[name], self.plan.policy_for(name), task.vector, task.round, task.steps
            )
            yield SiloUpdate(name, vector)
