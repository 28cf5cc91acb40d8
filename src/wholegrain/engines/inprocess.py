"""Silos in this process, one after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wholegrain import _check
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate
from wholegrain.policies.plan import Plan
from wholegrain.silo.training import Silo, Trainer


@dataclass(frozen=True, eq=False)
class InProcess:
    """An engine for simulation on one machine."""

    silos: Mapping[str, Silo]
    plan: Plan
    trainer: Trainer

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        """Train each silo of the task in turn; one that fails does not stop the others."""
        for name in task.silos:
            yield self.answer(name, task)

    def answer(self, name: str, task: RoundTask) -> SiloUpdate | SiloFault:
        """Train one silo."""
        policy = self.plan.policy_for(name)
        try:
            vector = self.trainer.train(self.silos[name], policy, task.vector, task.round, task.steps)
        except Exception as error:  # whatever a silo dies of, in a deployment, too
            return SiloFault(name, f"{type(error).__name__}: {_check.reason(error)}")
        return SiloUpdate(name, vector)
