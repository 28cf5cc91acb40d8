"""Silos in this process, one after the other."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wholegrain import _check
from wholegrain.errors import LostProcessError
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate
from wholegrain.policies.plan import Plan
from wholegrain.silo.training import Silo, Trainer

log = logging.getLogger("wholegrain.silo")


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
        except LostProcessError:
            raise
        except Exception as error:  # whatever a silo dies of, in a deployment, too
            # What it says may hold private values: it is for whoever holds the data, and not for the record.
            log.warning("silo '%s' failed: %s", name, _check.reason(error))
            return SiloFault(name, type(error).__name__)
        return SiloUpdate(name, vector)
