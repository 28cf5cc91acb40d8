"""Every proved policy, on two models: nothing exceeds what was proved, and half of it is found."""

import pytest

from planted_faults import POLICIES, audited, prepared
from wholegrain.audit.findings import AuditVerdict
from wholegrain.privacy.definitions import Standing

QUICK = ("subject_dp",)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic", pytest.param("mlp", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "policy", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES]
)
def test_what_was_proved_holds_and_half_of_it_is_in_use(policy: str, model: str) -> None:
    run = prepared(policy, model)
    found = audited(run, canaries=5000, runs=60 if policy == "user_ldp" else 8)
    assert found.proved.standing is Standing.PROVED
    assert 2.0 < found.proved.epsilon < 8.0
    assert found.verdict is AuditVerdict.CONSISTENT
    assert 0.5 * found.proved.epsilon <= found.epsilon <= found.proved.epsilon
    assert all(check.passed for check in found.checks)
