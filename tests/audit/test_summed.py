"""The audit of secure sums: findings stay below what was proved, and faults in noise or weights are found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from wholegrain.audit.auditing import AuditSettings, audit
from wholegrain.audit.findings import Audit, AuditVerdict
from wholegrain.data.clinics import clinics
from wholegrain.errors import SpecError
from wholegrain.policies.policy import Policy
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo import training
from wholegrain.silo.secure_noise import SecureNoise

SETTINGS = AuditSettings(canaries=2000, runs=10)


def prepared(by_span: bool = True, rate: float = 1.0, noise: float = 1.2, **policy: Any) -> PreparedRun:
    spec = {
        "data": {"source": "clinics"},
        "silos": {"items_per_subject": 2, "span": 4, "sizes": {"*": {"items": 2000, "subjects": 1000}}},
        "policy": {"name": "subject_dp", "rate": rate, "by_span": by_span, **policy},
        "privacy": {"noise_multiplier": noise},
        "trust": {"model": "secure_sum", "answers": 5},
        "rounds": {"count": 2},
    }
    return prepare(RunSpec.of(spec), dataset=clinics(patients=60, clinics=6, span=3, visits=2))


def found(run: PreparedRun, settings: AuditSettings = SETTINGS) -> Audit:
    return audit(run, clinics(patients=60, clinics=6, span=3, visits=2), settings, noise=lambda _: SecureNoise())


@pytest.mark.slow
@pytest.mark.parametrize("by_span", [True, False])
def test_what_is_found_is_below_what_was_proved_and_not_far(by_span: bool) -> None:
    run = prepared(by_span, noise=1.2 if by_span else 4.8)
    result = found(run)
    assert result.verdict is AuditVerdict.CONSISTENT
    assert [each.attack for each in result.findings[::2]] == ["sum: in 1 silo", "sum: in 2 silos", "sum: in 4 silos"]
    assert 0.5 * result.proved.epsilon < result.epsilon <= result.proved.epsilon


@pytest.mark.slow
def test_sampling_is_audited_without_a_curve() -> None:
    result = found(prepared(rate=0.5, noise=0.8))
    assert result.verdict is AuditVerdict.CONSISTENT
    assert {each.method for each in result.findings} == {"trials"}
    assert result.epsilon > 0.1


def with_noise_of_all_silos(run: PreparedRun) -> PreparedRun:
    """Each silo adds its part of what all six would make together, and not five of which one colludes."""
    rows = tuple(
        (replace(policy, noise=replace(policy.noise, multiplier=1.2 / 6**0.5)), s) for policy, s in run.plan.rows
    )
    return replace(run, plan=replace(run.plan, rows=rows))


@pytest.mark.slow
def test_noise_that_counts_on_colluding_and_absent_silos_is_found() -> None:
    settings = replace(SETTINGS, canaries=6000)
    assert found(with_noise_of_all_silos(prepared()), settings).verdict is AuditVerdict.VIOLATION


@pytest.mark.slow
@pytest.mark.parametrize(
    "weight", [lambda self, span: self.clip.norm, lambda self, span: self.clip.norm / span**0.5], ids=["none", "root"]
)
def test_weights_that_add_up_to_more_than_one_are_found(
    weight: Callable[[Policy, int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared()
    monkeypatch.setattr(Policy, "norm_for", weight)
    assert found(run).verdict is AuditVerdict.VIOLATION


@pytest.mark.slow
def test_a_sum_before_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepared()
    honest = training.release_to_sum

    def weak(total: Any, batch: Any, policy: Policy, noise: Any) -> Any:
        return honest(total, batch, replace(policy, noise=replace(policy.noise, multiplier=0.1)), noise)

    monkeypatch.setattr(training, "release_to_sum", weak)
    assert found(run, replace(SETTINGS, canaries=200)).verdict is AuditVerdict.VIOLATION


def test_items_are_not_planted_in_sums() -> None:
    run = prepared()
    with pytest.raises(SpecError, match="plants subjects"):
        audit(run, clinics(patients=60, clinics=6, span=3, visits=2), replace(SETTINGS, unit=Unit.ITEM))
