"""Silos in this process, one after the other."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wholegrain import _check
from wholegrain.errors import LostProcessError
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate
from wholegrain.policies.plan import Plan
from wholegrain.silo.training import AHEAD, LocalSteps, Silo, Trainer

log = logging.getLogger("wholegrain.silo")

MOST_AHEAD = 64
"""Silos that are begun at a time, however small they are."""

Begun = tuple[str, RoundTask, LocalSteps | None]


@dataclass(frozen=True, eq=False)
class InProcess:
    """An engine for simulation on one machine."""

    silos: Mapping[str, Silo]
    plan: Plan
    trainer: Trainer

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        """Train each silo of the task in turn; one that fails does not stop the others."""
        for begun in self._begin_some(task):
            while begun:
                yield self.answer(*begun.popleft())

    def _begin_some(self, task: RoundTask) -> Iterator[deque[Begun]]:
        """Silos whose first batches are drawn, some at a time: as many as take little memory, by what is public."""
        some, held = deque[Begun](), 0.0
        for name in task.silos:
            local = self._begin(name, task)
            some.append((name, task, local))
            held += 0.0 if local is None else local.expected_bytes
            if held >= AHEAD or len(some) >= MOST_AHEAD:
                yield some
                some, held = deque(), 0.0
        yield some

    def _begin(self, name: str, task: RoundTask) -> LocalSteps | None:
        """None where that fails: the silo fails when it is its turn."""
        try:
            return self.trainer.begin(self.silos[name], self.plan.policy_for(name), task.round, task.steps)
        except LostProcessError:
            raise
        except Exception:
            return None

    def answer(self, name: str, task: RoundTask, begun: LocalSteps | None = None) -> SiloUpdate | SiloFault:
        """Train one silo, with the batches that it has begun with."""
        policy = self.plan.policy_for(name)
        try:
            vector = self.trainer.train(self.silos[name], policy, task.vector, task.round, task.steps, begun)
        except LostProcessError:
            raise
        except Exception as error:  # whatever a silo dies of, in a deployment, too
            # What it says may hold private values: it is for whoever holds the data, and not for the record.
            log.warning("silo '%s' failed: %s", name, _check.reason(error))
            return SiloFault(name, type(error).__name__)
        return SiloUpdate(name, vector)
