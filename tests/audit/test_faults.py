"""Faults that were planted must be found, by an attack that exceeds what was proved, and each by the right one."""

from dataclasses import replace

import pytest

from audit.planted import (
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
from wholegrain.audit.auditing import Verdict
from wholegrain.data.sampling import PoissonItems
from wholegrain.data.subjects import SubjectData


def failed(found: object) -> set[str]:
    return {check.name for check in found.checks if not check.passed}  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["subject_dp", "higradavg_dp"])
def test_half_the_noise(policy: str) -> None:
    found = audited(prepared(policy), canaries=1500, fault=Halved)
    assert found.verdict is Verdict.VIOLATION
    assert min(findings(found, "crowd", "level")) > found.proved.epsilon
    assert failed(found) == {"noise where nothing else is"}


def test_half_the_noise_where_canaries_cannot_crowd() -> None:
    found = audited(prepared("user_ldp"), runs=40, fault=Halved)
    assert found.verdict is Verdict.VIOLATION
    assert min(findings(found, "alone", "level")) > found.proved.epsilon


@pytest.mark.parametrize("parameter", ["1.weight", "3.weight"])
def test_a_layer_that_is_not_clipped(parameter: str) -> None:
    run = forgets(prepared("subject_dp", "mlp", clip_norm=0.2), parameter)
    found = audited(run, runs=30)
    assert found.verdict is Verdict.VIOLATION
    assert findings(found, "input canary")
    assert failed(found) == {"how far one subject moves the sum"}
    assert not findings(found, "gradient canar")


def test_a_bias_that_is_not_clipped() -> None:
    """Too short to be found in noise, but not without it."""
    assert failed(audited(forgets(prepared("higradavg_dp", "mlp"), "3.bias"))) == {"how far one subject moves the sum"}


def test_noise_used_again_in_every_round() -> None:
    found = audited(prepared("subject_dp"), fault=SameEveryRound)
    assert found.verdict is Verdict.VIOLATION
    assert findings(found, "crowd", "spread")
    assert "noise where nothing else is" in failed(found)


def test_noise_used_again_in_every_step() -> None:
    """The server sees the sum of the steps only, in which such noise hides even more; it is not what was priced."""
    found = audited(prepared("subject_dp", steps=3, rounds=2), fault=SameEveryStep)
    assert found.verdict is Verdict.VIOLATION
    assert failed(found) == {"noise where nothing else is"}
    assert not findings(found)


def test_a_cap_on_a_subjects_items_that_is_not_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepared("higradavg_dp", visits=1)
    assert audited(run, runs=60).verdict is Verdict.CONSISTENT
    monkeypatch.setattr(SubjectData, "capped", lambda self, most, generator: self)
    found = audited(run, runs=60)
    assert found.verdict is Verdict.VIOLATION
    assert findings(found, "alone", "level")


def test_a_cap_on_a_subjects_items_in_a_batch_that_is_not_enforced() -> None:
    run = prepared("local_group_dp", visits=4)
    loose = with_rows(run, lambda policy: replace(policy, sampling=PoissonItems(policy.sampling.rate)))  # type: ignore[union-attr]
    found = audited(loose, canaries=1500)
    assert found.verdict is Verdict.VIOLATION
    assert findings(found, "crowd", "level")


@pytest.mark.parametrize("policy", ["subject_dp", "higradavg_dp"])
def test_a_divisor_from_the_batch(policy: str) -> None:
    run = with_rows(prepared(policy), lambda row: replace(row, divisor=LyingDivisor(row.divisor.value)))  # type: ignore[union-attr]
    found = audited(run, runs=25)
    assert found.verdict is Verdict.VIOLATION
    assert findings(found, "alone", "quieter")
