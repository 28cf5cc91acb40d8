"""A benchmark's short cut for FedAvg with everybody in every step: gradient descent on all silos' records together.

One step per round and a mean by size make a round one step of the pooled records' mean gradient, up to rounding. A
short run is held against the library's own.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import execute, open_guard


def descend(prepared: PreparedRun) -> Iterator[Tensor]:
    """The parameters [class, feature + 1] of a linear model after each round, the constant's last."""
    rounds, server = prepared.spec.rounds, prepared.spec.server
    assert (prepared.spec.policy.rate, rounds.steps, rounds.averaging) == (1, 1, "items")
    assert (server.step, server.schedule, server.learning_rate) == ("momentum", "constant", 1.0)
    inputs = torch.from_numpy(np.concatenate([silo.data.inputs for silo in prepared.silos.values()]))
    targets = torch.from_numpy(np.concatenate([silo.data.targets for silo in prepared.silos.values()]))
    inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
    hot = torch.nn.functional.one_hot(targets, prepared.task.outputs).to(inputs.dtype)
    weights, speed = torch.zeros(prepared.task.outputs, inputs.shape[1]), torch.zeros(())
    for _ in range(rounds.count):
        gradient = ((inputs @ weights.T).softmax(1) - hot).T @ inputs / len(inputs)
        speed = speed * server.momentum - rounds.learning_rate * gradient
        weights = weights + speed
        yield weights


def require_same(prepared: PreparedRun) -> None:
    """The library's own rounds come to the same parameters."""
    with open_guard(prepared, "benchmark") as guard:
        layer = execute(prepared, guard).model[1]  # type: ignore[index]
    own = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
    *_, found = descend(prepared)
    torch.testing.assert_close(found, own, rtol=1e-3, atol=1e-5)
