"""A benchmark's short cuts: clipped sums of a linear model by matrix products, and secure sums without masks.

The library computes every subject in a pass of its own, so that nobody's last bits depend on others; a simulation of
hundreds of runs can do without that. What is computed here is held against the library's own sum at the first batch.
Masks cancel to the bit (tests/federation/test_summed_runs.py), so the parts of a secure sum are added up in the open.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.subject_updates import LocalUpdate, SubjectUpdates
from wholegrain.engines.secure_sum_engine import SecureSums
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.federation.messages import Answer, Engine, RoundTask, SumUpdate
from wholegrain.federation.sum_scale import SumScale
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import in_process

CHECKED = set[object]()
"""What has been held against the library's own sum in this process."""


class LinearSum:
    """`ClippedSum` of `logistic`, with or without local steps."""

    def __init__(self, exact: ClippedSum, classes: int) -> None:
        self.exact, self.classes = exact, classes

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
        local: LocalUpdate | None = None,
    ) -> ClippedTotal:
        total = self._sum(vector, inputs, targets, groups, clip, local)
        if (clip.per, local) not in CHECKED and len(inputs):
            exact = self.exact if local is None else _Loop(self.exact, local)
            expected = exact(vector, inputs, targets, groups, clip, buckets).total.double()
            torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-4)
            CHECKED.add((clip.per, local))
        return ClippedTotal(total, 0)

    def _sum(
        self, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip, local: LocalUpdate | None
    ) -> Tensor:
        ones = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        features = inputs.shape[1]
        whole = torch.cat([vector[: -self.classes].view(self.classes, features), vector[-self.classes :, None]], 1)
        hot = torch.nn.functional.one_hot(targets, self.classes).to(inputs.dtype)
        if clip.per is ClipPer.NONE:
            return _flat(((ones @ whole.T).softmax(1) - hot).T @ ones)
        _, groups, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
        sizes, start = sizes[:, None, None], whole.expand(len(sizes), *whole.shape)
        moved, steps, rate = start, local.steps if local else 1, local.learning_rate if local else 1.0
        for step in range(steps):
            outputs = (moved[groups] @ ones[:, :, None]).squeeze(2) if step else ones @ whole.T
            error = outputs.softmax(1) - hot
            each = error[:, :, None] * ones[:, None, :]
            mean = torch.zeros_like(start).index_add_(0, groups, each) / (sizes if clip.pool is Pool.MEAN else 1)
            moved = moved - rate * mean
        update = ((start - moved) / rate).double()
        length = update.flatten(1).norm(dim=1).clamp(min=1e-30)
        return _flat((update * (clip.norm / length).clamp(max=1.0)[:, None, None]).sum(0))


class _Loop(SubjectUpdates):
    """The library's loop over subjects."""


def _flat(gradient: Tensor) -> Tensor:
    return torch.cat([gradient[:, :-1].reshape(-1), gradient[:, -1]]).double()


def with_short_cut(prepared: PreparedRun) -> PreparedRun:
    """The same run of a linear model, with its clipped sums and its subjects' local updates as matrix products."""
    SubjectUpdates.__call__ = _call  # type: ignore[method-assign]
    return replace(prepared, clipped_sum=LinearSum(prepared.clipped_sum, prepared.task.outputs))


_loop = SubjectUpdates.__call__


def _call(self: SubjectUpdates, *batch: object) -> ClippedTotal:
    if isinstance(self.gradients, LinearSum) and not isinstance(self, _Loop):
        return self.gradients(*batch, local=self.local)  # type: ignore[arg-type]
    return _loop(self, *batch)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class OpenSums:
    """An engine that adds up what silos would have masked."""

    masked: SecureSums

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """One sum over all silos."""
        silos, plan = self.masked.post, self.masked.plan
        assert isinstance(silos, SumSilos)
        parts = [
            silos.trainer.add_to_sum(silos.silos[name], plan.policy_for(name), task.vector, task.round)
            for name in task.silos
        ]
        scale = SumScale.of(plan.rows, task.vector.numel())
        total = torch.stack(parts).sum(0).numpy()
        yield SumUpdate(task.silos, scale.move(task.vector, total, plan.rows, self.masked.learning_rate))


def quick_engine(prepared: PreparedRun) -> Engine:
    """The engine of a run, without masks."""
    engine = in_process(prepared)
    return OpenSums(engine) if isinstance(engine, SecureSums) else engine
