"""How far one subject moves the sum, at parameters, inputs and clip norms that somebody chose, and among many others.

Faults that were planted again, each by what the code once did: products of squares in single precision, clip factors
that are rounded up, and sums of everybody in single precision.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from effort import amount
from planted_faults import POLICIES, SinglePrecision, audited, prepared
from wholegrain.audit import sensitivity
from wholegrain.audit.findings import AuditVerdict
from wholegrain.audit.sensitivity import extreme_vectors, largest_move, move_among_many, scaled_vector
from wholegrain.audit.sums import allowed_move, noised_sum_input
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.rounding import SLACK
from wholegrain.policies.policy import SiloFacts
from wholegrain.runs.prepared_run import PreparedRun

MOVE = "how far one subject moves the sum"
MANY = 1_000_000


def in_single_precision(run: PreparedRun) -> PreparedRun:
    return replace(run, clipped_sum=SinglePrecision(run.model, cross_entropy))


@pytest.mark.parametrize("model", ["logistic", pytest.param("mlp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_parameters_let_anybody_through(policy: str, model: str) -> None:
    assert 0.75 < largest_move(prepared(policy, model), seed=0) <= 1 + SLACK


@pytest.mark.slow
def test_squares_that_underflow_let_raw_features_through() -> None:
    run = in_single_precision(prepared("subject_dp"))
    assert largest_move(run, seed=0) > 1e3
    found = audited(run)
    assert found.verdict is AuditVerdict.VIOLATION
    assert found.failed == (MOVE,)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "policy",
    ["subject_dp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("local_item_dp", "higradavg_dp"))],
)
def test_one_of_many_moves_a_sum_no_further(policy: str) -> None:
    many = amount(MANY, quick=MANY // 10)
    assert 0.98 < move_among_many(prepared(policy).plan.rows[0][0], 0, many) <= 1 + SLACK


@pytest.mark.slow
def test_sums_in_single_precision_are_off_by_more_than_a_subject_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "BookKeeping", SinglePrecision)
    policy = prepared("subject_dp").plan.rows[0][0]
    assert move_among_many(policy, 0, MANY) > 1 + SLACK
    assert move_among_many(policy, 0, 1000) == pytest.approx(1.0, abs=1e-3)  # it takes many


@pytest.mark.slow
def test_the_verdict_is_a_violation_where_sums_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "BookKeeping", SinglePrecision)
    found = audited(prepared("subject_dp"), subjects=MANY)
    assert found.verdict is AuditVerdict.VIOLATION
    assert found.failed == ("the same, one of 1,000,000 subjects",)


def test_extreme_parameters_are_finite_and_many() -> None:
    run = prepared("subject_dp", "mlp")
    layout = Layout.of(run.model)
    found = list(extreme_vectors(layout, run.first))
    assert all(bool(torch.isfinite(vector).all()) for vector, _ in found)
    sizes = torch.stack([vector.abs().max() for vector, _ in found])
    assert sizes.max() > 2.0**110
    assert sum(certain for _, certain in found) > len(found) / 2
    scaled = layout.views(scaled_vector(layout, run.first, 3, -2))
    first = layout.views(run.first)
    assert torch.equal(scaled["1.weight"], first["1.weight"] * 8)
    assert torch.equal(scaled["3.bias"], first["3.bias"] / 4)


SILO = SiloFacts(name="a", items=10, subjects=5, items_per_subject=6)


@pytest.mark.parametrize(
    ("policy", "changes", "norms"),
    [
        ("local_item_dp", {}, 6.0),
        pytest.param("local_group_dp", {"group_cap": 4}, 4.0, marks=pytest.mark.slow),
        ("higradavg_dp", {}, 1.0),
        ("user_ldp", {}, 2.0),
        ("subject_dp", {}, 1.0),
    ],
)
def test_what_is_allowed_is_what_was_priced(policy: str, changes: dict[str, Any], norms: float) -> None:
    row = prepared(policy, clip_norm=0.5, **changes).plan.rows[0][0]
    assert allowed_move(row, SILO) == 0.5 * norms
    assert allowed_move(replace(row, clip=Clip(ClipPer.NONE, Pool.SUM, 0.5)), SILO) is None


def test_what_is_handed_over_is_the_sum_before_noise() -> None:
    run = prepared("higradavg_dp")
    name, silo = next(iter(run.silos.items()))
    policy = run.plan.policy_for(name)
    groups = torch.unique(silo.targets.new_tensor(silo.data.subjects), return_inverse=True)[1]
    expected = run.clipped_sum(run.first, silo.inputs, silo.targets, groups, policy.clip).total.double()
    torch.testing.assert_close(noised_sum_input(run.clipped_sum, silo, policy, run.first), expected, rtol=0, atol=1e-5)
