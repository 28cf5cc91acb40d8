"""Faults that were planted are found, each by the attack that is meant for it; the same audit without them is content.

An audit of a right run errs with a probability of 5 % at most; seeds are fixed, so that it does so always or never.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from planted_faults import (
    Halved,
    LyingDivisor,
    SameEveryRound,
    SameEveryStep,
    audited,
    findings,
    forgets,
    prepared,
    with_rows,
)
from wholegrain.audit.findings import Audit, AuditVerdict
from wholegrain.data.sampling import PoissonItems
from wholegrain.data.subjects import SubjectData
from wholegrain.runs.prepared_run import PreparedRun

NOISE, MOVE, LEAVES = (
    "noise where nothing else is",
    "how far one subject moves the sum",
    "one subject leaves the file: sums",
)


@cache
def verdict(right: PreparedRun, **how: Any) -> AuditVerdict:
    """Of a run without a fault, which several faults are held against."""
    return audited(right, **how).verdict


def found_out(right: PreparedRun, wrong: PreparedRun | None = None, **how: Any) -> Audit:
    """The audit of what is wrong: a violation, where the same audit of what is right is consistent."""
    usual = {name: value for name, value in how.items() if name != "fault"}
    assert verdict(right, **usual) is AuditVerdict.CONSISTENT
    found = audited(wrong or right, **how)
    assert found.verdict is AuditVerdict.VIOLATION
    return found


@pytest.mark.slow
def test_half_the_noise() -> None:
    found = found_out(prepared("subject_dp"), canaries=1500, fault=Halved)
    assert min(findings(found, "crowd", "level")) > found.proved.epsilon
    assert found.failed == (NOISE,)


@pytest.mark.slow
def test_half_the_noise_where_canaries_cannot_crowd() -> None:
    found = found_out(prepared("user_ldp"), runs=40, fault=Halved)
    assert min(findings(found, "alone", "level")) > found.proved.epsilon
    assert found.failed == (NOISE,)


@pytest.mark.parametrize("parameter", ["1.weight", "3.weight"])
@pytest.mark.slow
def test_a_layer_that_is_not_clipped(parameter: str) -> None:
    right = prepared("subject_dp", "mlp", rate=1.0, noise=3.0, clip_norm=0.2, clinics=1)
    found = found_out(right, forgets(right, parameter), runs=120)
    assert findings(found, "input")
    assert not findings(found, "crowd") + findings(found, "alone")
    assert found.failed == (MOVE, LEAVES)


@pytest.mark.slow
def test_a_bias_that_is_not_clipped() -> None:
    """Too short to be found in noise, but not without it."""
    right = prepared("higradavg_dp", "mlp")
    assert found_out(right, forgets(right, "3.bias")).failed == (MOVE, LEAVES)


@pytest.mark.slow
def test_noise_used_again_in_every_round() -> None:
    found = found_out(prepared("subject_dp"), fault=SameEveryRound)
    assert findings(found, "crowd", "spread")
    assert found.failed == (NOISE,)


@pytest.mark.slow
def test_noise_used_again_in_every_step() -> None:
    """The server sees the sum of the steps only, in which such noise hides even more; it is not what was priced."""
    found = found_out(prepared("subject_dp", steps=3), fault=SameEveryStep)
    assert found.failed == (NOISE,)
    assert not findings(found)


@pytest.mark.slow
def test_a_cap_on_a_subjects_items_that_is_not_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepared("higradavg_dp", visits=1, noise=0.4)
    assert audited(run, runs=25).verdict is AuditVerdict.CONSISTENT
    monkeypatch.setattr(SubjectData, "cap_subjects", lambda self, most, coins: self)
    found = audited(run, runs=25)
    assert found.verdict is AuditVerdict.VIOLATION
    assert findings(found, "alone", "level")


@pytest.mark.slow
def test_a_cap_on_a_subjects_items_in_a_batch_that_is_not_enforced() -> None:
    right = prepared("local_group_dp", visits=4)
    loose = with_rows(right, lambda policy: replace(policy, sampling=PoissonItems(policy.sampling.rate)))  # type: ignore[union-attr]
    assert findings(found_out(right, loose, canaries=1500), "crowd", "level")


@pytest.mark.slow
def test_a_divisor_from_the_batch() -> None:
    right = prepared("higradavg_dp", rate=0.8, noise=2.0)
    lying = with_rows(right, lambda row: replace(row, divisor=LyingDivisor(row.divisor.value)))  # type: ignore[union-attr]
    assert findings(found_out(right, lying, runs=16), "alone", "quieter")
