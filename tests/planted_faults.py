"""Small runs to audit, and faults to plant in them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from effort import coarse_grids
from wholegrain.audit.auditing import AuditSettings, audit
from wholegrain.audit.findings import Audit
from wholegrain.audit.simulate import NoiseOf, noise_like
from wholegrain.clipping.clipping import Clip, ClippedTotal
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import ClippedSum, Loss
from wholegrain.data.sampling import Batch
from wholegrain.policies.policy import Policy, PublicDivisor
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.noise import NoiseSource, NoiseStream

POLICIES: dict[str, dict[str, Any]] = {
    "local_item_dp": {"noise": 2.0},
    "local_group_dp": {"noise": 1.5, "group_cap": 1},
    "higradavg_dp": {"noise": 1.5},
    "user_ldp": {"noise": 1.6},
    "subject_dp": {"noise": 1.2},
}
"""Little noise in few rounds: what is proved of each lies between 4 and 8."""


@cache
def prepared(policy: str, model: str = "logistic", **changes: Any) -> PreparedRun:
    """A run over small clinics, nobody in more than one, nobody with more than two visits."""
    usual = {"rate": 0.5, "steps": 1, "rounds": 2, "clip_norm": 1.0, "visits": 2, "clinics": 8}
    settings = usual | POLICIES[policy] | changes
    options = {"patients": 20 * settings["clinics"], "clinics": settings["clinics"], "span": 1}
    spec = RunSpec.of(
        {
            "data": {"source": "clinics", "options": options | {"visits": settings["visits"]}},
            "silos": {"items_per_subject": settings["visits"], "span": 1},
            "model": {"name": model},
            "policy": {
                "name": policy,
                "rate": settings["rate"],
                "clip_norm": settings["clip_norm"],
                "group_cap": settings.get("group_cap"),
            },
            "privacy": {"noise_multiplier": settings["noise"]},
            "rounds": {"count": settings["rounds"], "steps": settings["steps"], "learning_rate": 1.0},
        }
    )
    with coarse_grids():
        return prepare(spec)


def short_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line's audits try a sum of 1,000 subjects; test_sensitivity.py has one of a million."""
    monkeypatch.setattr("wholegrain.cli.audit.AuditSettings", partial(AuditSettings, subjects=1000))


def findings(found: Audit, *words: str) -> list[float]:
    """Lower bounds of the attacks whose name has all of these words and that refute the proof."""
    return [each.epsilon for each in found.findings if each.refutes and all(word in each.attack for word in words)]


def audited(
    run: PreparedRun,
    *,
    canaries: int = 500,
    runs: int = 12,
    subjects: int = 1000,
    fault: Callable[[NoiseSource], NoiseSource] | None = None,
) -> Audit:
    """The audit, with a fault in the noise where one is given."""
    usual = noise_like(run)
    noise: NoiseOf = usual if fault is None else lambda number: fault(usual(number))
    settings = AuditSettings(canaries=canaries, runs=runs, subjects=subjects)
    return audit(run, load_dataset(run.spec), settings, noise=noise)


@dataclass(frozen=True)
class Noise:
    """A source that is as good as the one inside; the faulty ones differ by what they override."""

    inner: NoiseSource
    name: str = "faulty"
    identity: str = "faulty"
    repeats: bool = True

    def stream(self, round: int, silo: str) -> NoiseStream:
        return self.inner.stream(round, silo)

    def coins(self, round: int, silo: str) -> np.random.Generator:
        return self.inner.coins(round, silo)


class Halved(Noise):
    """Noise divided by two."""

    def stream(self, round: int, silo: str) -> NoiseStream:
        return _HalvedStream(super().stream(round, silo))


@dataclass(frozen=True)
class _HalvedStream:
    inner: NoiseStream

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        self.inner.add_to(total, multiplier / 2, clip_norm)


class SameEveryRound(Noise):
    """Noise of the first round in every round."""

    def stream(self, round: int, silo: str) -> NoiseStream:
        return super().stream(0, silo)


class SameEveryStep(Noise):
    """Noise of a round's first step in all its steps."""

    def stream(self, round: int, silo: str) -> NoiseStream:
        return _Repeating(lambda: self.inner.stream(round, silo))


@dataclass(frozen=True)
class _Repeating:
    start: Callable[[], NoiseStream]

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        self.start().add_to(total, multiplier, clip_norm)


@dataclass(frozen=True, eq=False)
class ForgetsALayer:
    """Gradients of one parameter are pooled as they are; those of the others are clipped."""

    inner: ClippedSum
    layout: Layout
    parameter: str

    def __call__(
        self, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip, *more: Any
    ) -> ClippedTotal:
        total = self.inner(vector, inputs, targets, groups, clip, *more).total.clone()
        raw = self.inner(vector, inputs, targets, groups, replace(clip, norm=1e6), *more).total
        self.layout.views(total)[self.parameter].copy_(self.layout.views(raw)[self.parameter])
        return ClippedTotal(total, 0)


def forgets(run: PreparedRun, parameter: str) -> PreparedRun:
    """The run with a layer that is not clipped."""
    return replace(run, clipped_sum=ForgetsALayer(run.clipped_sum, Layout.of(run.model), parameter))


@dataclass(frozen=True)
class LyingDivisor(PublicDivisor):
    """It says that it is a constant."""

    def divisor_for(self, batch: Batch) -> float:
        return float(max(batch.subjects, 1))


def with_rows(run: PreparedRun, change: Callable[[Policy], Policy]) -> PreparedRun:
    """The run with another policy than the one that was priced."""
    rows = tuple((change(policy), silo) for policy, silo in run.plan.rows)
    return replace(run, plan=replace(run.plan, rows=rows))


class SinglePrecision:
    """Gradients of one dense layer as they were once clipped and summed: all of it in single precision.

    The norm of δ ⊗ a is the product of two squares, which underflows; and everybody is added up in one sum.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self._right: ClippedSum = BookKeeping(model, loss)
        self._shape = Layout.of(model).shapes[0]

    def __call__(
        self, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip, *more: Any
    ) -> ClippedTotal:
        if len(torch.unique(groups)) < len(groups) or not len(groups):  # only somebody with one row is clipped wrongly
            return self._right(vector, inputs, targets, groups, clip, *more)
        outputs, features = self._shape
        weight, bias = vector[: outputs * features].view(self._shape), vector[outputs * features :]
        rows = inputs.flatten(1)
        outward = torch.softmax(rows @ weight.t() + bias, 1) - nn.functional.one_hot(targets, outputs)
        squares = outward.square().sum(1) * (rows.square().sum(1) + 1)
        outward = outward * squares.clamp(min=clip.norm**2).rsqrt().mul(clip.norm)[:, None]
        return ClippedTotal(torch.cat([(outward.t() @ rows).flatten(), outward.sum(0)]), 0)
