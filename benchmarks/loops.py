"""Rounds, the steps within them, and plain steps on the very same batches."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from settings import LEARNING_RATE
from silos import Federated, Ready
from wholegrain.clipping.parameters import flatten
from wholegrain.engines.inprocess import InProcess
from wholegrain.federation.aggregation import Averaging, weights
from wholegrain.federation.messages import Engine, RoundTask, SiloFault, SiloUpdate
from wholegrain.federation.rounds import Aggregation, RoundResult, State, rounds
from wholegrain.policies.plan import Plan
from wholegrain.privacy.guard import Guard
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, RunOpened, TermsRecord
from wholegrain.silo import training as training_module
from wholegrain.silo.private_step import release

Clock = Callable[[], float]


@dataclass
class Stopwatch:
    """Seconds spent in something that is called again and again."""

    clock: Clock
    seconds: float = 0.0

    def timed(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted."""

        def counted(*arguments: Any, **named: Any) -> Any:
            started = self.clock()
            try:
                return act(*arguments, **named)
            finally:
                self.seconds += self.clock() - started

        return counted

    def read(self) -> float:
        """Seconds since the last reading."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@dataclass
class TimedEngine:
    """An engine whose training time is told apart from the loop around it."""

    engine: Engine
    watch: Stopwatch

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        """The engine's answers."""
        updates = self.engine.run(task)
        following = self.watch.timed(lambda: next(updates, None))
        while (update := following()) is not None:
            yield update


@dataclass
class TimedGuard:
    """A guard whose time, the ledger's included, is told apart."""

    guard: Guard
    watch: Stopwatch

    def __post_init__(self) -> None:
        self.reserve = self.watch.timed(self.guard.reserve)
        self.confirm = self.watch.timed(self.guard.confirm)


@dataclass(frozen=True)
class Parts:
    """Where a round's seconds went: `steps` are clipped sums, releases and moves, `plain` steps without privacy."""

    round: float
    pricing: float
    training: float
    steps: float
    plain: float


def play(federated: Federated) -> Iterator[RoundResult]:
    """wholegrain's rounds, as a run plays them."""
    engine = InProcess(federated.silos, federated.plan, federated.trainer)
    return _play(federated, engine, open_guard(federated.plan, federated.trainer.noise.identity))


def _play(federated: Federated, engine: Engine, guard: Any) -> Iterator[RoundResult]:
    shares = weights([silo.facts for silo in federated.silos.values()], Averaging.PLAIN)
    return rounds(State(0, flatten(federated.model)), federated.plan.horizon, engine, guard, Aggregation(shares))


def open_guard(plan: Plan, stream: str) -> Guard:
    """The guard of a run that keeps nothing."""
    account = Account(data="benchmark")
    opening = RunOpened(
        run="benchmark", account=account, spec="", policy=plan.policy, noise=stream, terms=TermsRecord.of(plan.terms)
    )
    limit = None if plan.budget is None else plan.budget.epsilon
    budget = BudgetOpened(account=account, unit=plan.unit, epsilon=limit, delta=plan.delta, runs="one")
    return Guard.open(Ledger.in_memory(), opening, budget, plan.horizon.releases(), stream, plan.accountant)


def measure(federated: Federated, clock: Clock) -> Iterator[Parts]:
    """Each round in turn, and after it plain steps on the same batches.

    The steps are timed inside the round: a loop that costs a few per cent is lost in the noise between two timings.
    """
    whole, pricing, training, steps = (Stopwatch(clock) for _ in range(4))
    trainer = replace(federated.trainer, clipped_sum=steps.timed(federated.trainer.clipped_sum))
    training_module.release = steps.timed(release)
    engine = TimedEngine(InProcess(federated.silos, federated.plan, trainer), training)
    guard = open_guard(federated.plan, trainer.noise.identity)
    loop = _play(federated, engine, TimedGuard(guard, pricing))
    plain = Plain(federated.setting.build())
    vector = flatten(federated.model)
    move = vector.clone().zero_()
    following = whole.timed(lambda: next(loop))
    for number in range(federated.plan.horizon.rounds):
        following()
        batches = list(federated.ready(number))
        for _ in batches:  # the move, which cannot be timed inside the loop: the same operation on vectors as long
            steps.timed(vector.sub_)(move)
        bare = plain.seconds(batches, clock)
        yield Parts(whole.read(), pricing.read(), training.read(), steps.read(), bare)


class Plain:
    """Forward, backward and torch's SGD on ready batches and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def seconds(self, batches: Iterable[Ready], clock: Clock) -> float:
        """Time of one step on each batch."""
        started = clock()
        for ready in batches:
            self._step(ready.inputs, ready.targets)
        return clock() - started

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()
