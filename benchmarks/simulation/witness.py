"""Who reads every message of a simulated federation, and tells the oracle what it means."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from simulation import pieces
from simulation.oracle import Oracle, most_information, require
from simulation.sums import SumOracle
from simulation.world import World
from wholegrain.deploy.public_reasons import public_reason
from wholegrain.engines import wire
from wholegrain.errors import RefusalError
from wholegrain.federation.rounds import digest

SHARE_OF_GAUSSIANS = 1 / 3
"""Of δ: what a silo's filter has for Gaussian steps, so that a refusal can be told to be due."""

GRID_ERROR = 0.04
"""By how much the program's price of Σ steps/σ² may be too high: it computes on a grid, and rounds up."""

SUM_REFUSAL = public_reason(RefusalError("secure_sum", ""))


def task_of(message: Message) -> wire.SiloTask | None:
    """What a message asks; None where it asks only who is there."""
    kind, _, action = message.metadata.message_type.partition(".")
    if kind == "query":
        return None
    return wire.read_sum_task(message).task if action else wire.read_task(message)


def price(task: wire.SiloTask, purpose: str) -> float:
    """1/σ² of what a task asks for, in units of what one subject can move, who is in one silo."""
    if purpose == "scores":
        return 1 / task.scores.noise_multiplier**2
    trust = task.settings.trust
    honest = 1 if trust is None else trust.answers - trust.colluding
    return task.steps / (task.noise_multiplier**2 * honest)


def _least_room(epsilon: float, scores: bool) -> float:
    """Σ 1/σ² that a budget must pay for. With scores a Rényi filter prices, which is less tight [Mironov 2017]."""
    delta = pieces.DELTA * SHARE_OF_GAUSSIANS
    if not scores:
        return most_information(epsilon, delta)
    tail = math.log(1 / delta)
    return 2 * (math.sqrt(epsilon + tail) - math.sqrt(tail)) ** 2


@dataclass(eq=False)
class Witness:
    """Of one federation."""

    world: World
    oracle: Oracle
    sums: SumOracle | None
    """Of secure sums, where silos take part in them."""
    seeded: bool
    epsilons: Mapping[str, float]
    last_lack: float = -1.0
    """When a silo last refused what its budget could not pay for."""

    def on_read(self, silo: str, round: int, start: str, noise: str, purpose: str) -> None:
        """A silo is about to read its data."""
        process = self.world.current
        assert process is not None
        self.oracle.on_training(silo, (process.task.run, round, start, purpose), noise)

    def on_part(self, silo: str, round: int, part: Any) -> None:
        """A silo has computed what it adds to a sum."""
        process = self.world.current
        assert process is not None
        assert self.sums is not None
        self.sums.on_part(silo, (process.task.run, round), part)

    def on_reply(self, silo: str, task: wire.SiloTask, message: Message, reply: Message) -> None:
        """A silo has answered."""
        facts = wire.read_answer(reply)
        kind, _, action = message.metadata.message_type.partition(".")
        purpose = "scores" if kind == "evaluate" else "training"
        if "refused" in facts:
            self._on_refusal(silo, task, purpose, facts["refused"])
            return
        if action:
            assert self.sums is not None
            self.sums.on_reply(silo, (task.run, task.round), message, reply)
            self.world.happened[f"answers to '{action}'"] += 1
        if action in ("", "mask"):
            release = (task.run, task.round, digest(wire.read_vector(message)), purpose)
            content = wire.read_masked(reply) if action else wire.read_vector(reply).numpy().tobytes()
            self.oracle.on_release(silo, release, content, price(task, purpose))
            self.world.happened["scores"] += purpose == "scores"

    def _on_refusal(self, silo: str, task: wire.SiloTask, purpose: str, why: str) -> None:
        if self.sums is not None and why == SUM_REFUSAL:
            self.world.happened["messages of sums refused"] += 1
            return
        if "answered before" in why:
            self.world.happened["copies refused"] += 1
            return
        require("limit.epsilon" in why, f"{silo} refuses: {why}")
        self.world.happened["refusals"] += 1
        self.last_lack = self.world.now
        view = self.oracle.silos[silo].ledger
        view.look()
        room = _least_room(self.epsilons[silo], task.scores is not None) * (1 - GRID_ERROR)
        asked = price(task, purpose)
        if task.run not in view.spending.by_run:  # a run is opened only where a round of it can be paid for
            asked = max(asked, price(task, "training"))
        needed = view.spending.with_one_more(task.run, purpose, asked)
        require(needed > room, f"{silo} refuses what its budget could pay for: {needed:.4g} of {room:.4g}")

    def on_task(self, silo: str, ledger: Path, message: Message) -> None:
        """A server is about to ask a silo for something that costs."""
        kind, _, action = message.metadata.message_type.partition(".")
        process, task = self.world.current, task_of(message)
        if task is None or action not in ("", "mask"):
            return
        assert process is not None
        key = (task.run, task.round, silo, "scores" if kind == "evaluate" else "training")
        self.oracle.on_task(ledger, process.machine, key, id(process), self.seeded)

    def on_opened(self, survivors: tuple[str, ...], round: int, total: Any) -> None:
        """A server has opened a sum."""
        assert self.sums is not None
        self.sums.on_opened(survivors, round, np.asarray(total))
        self.world.happened["sums opened"] += 1
