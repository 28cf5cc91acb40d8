"""Where a promise is about something else than a subject, or falls short: an audit shows it."""

import pytest

from planted_faults import prepared
from wholegrain.audit.attacks import attack_crowd
from wholegrain.audit.auditing import TRIALS, AuditSettings, audit
from wholegrain.audit.estimators import AttackEvidence, one_run_bound
from wholegrain.audit.findings import AuditVerdict
from wholegrain.audit.simulate import noise_like
from wholegrain.data.clinics import clinics
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec


@pytest.mark.slow
def test_what_an_item_is_promised_does_not_hide_a_subject_with_many() -> None:
    """By a bound that leans on no curve."""
    run = prepared("local_item_dp", visits=6, noise=1.2)
    item, subject = (run.plan.guarantee(unit) for unit in (Unit.ITEM, Unit.SUBJECT))
    assert item.standing is subject.standing is Standing.PROVED
    bounds = {}
    for unit in (Unit.ITEM, Unit.SUBJECT):
        found = attack_crowd(run, noise_like(run), unit, 2000, seed=0)
        bounds[unit] = one_run_bound(AttackEvidence(found.coins, found.scores["level"], item.delta), 0.05).epsilon
    assert 3.0 < item.epsilon < 4.0
    assert 0 < bounds[Unit.ITEM] < item.epsilon < bounds[Unit.SUBJECT] < subject.epsilon


@pytest.mark.slow
def test_local_group_dp_as_printed_gives_away_more_than_it_claims() -> None:
    """Its noise is looked up by the largest group of the batch, and shows who is in it."""
    spec = RunSpec.of(
        {
            "policy": {"name": "local_group_dp", "batch_size": 30, "as_printed": True},
            "privacy": {"epsilon": 0.5},
            "rounds": {"count": 2, "steps": 1},
        }
    )
    dataset = clinics(patients=20, clinics=1, span=1, visits=3)
    found = audit(prepare(spec, dataset=dataset), dataset, AuditSettings(runs=150))
    assert found.proved.standing is Standing.NONE
    assert found.claimed is not None
    assert found.claimed.epsilon == 0.5
    assert found.verdict is AuditVerdict.CLAIM_REFUTED
    best = max(found.findings, key=lambda each: each.epsilon)
    assert (best.attack, best.method) == ("alone: louder", TRIALS)


def test_fedavg_promises_nothing_and_keeps_it() -> None:
    spec = RunSpec.of({"policy": {"name": "fedavg", "rate": 0.5}, "rounds": {"count": 2}})
    dataset = clinics(patients=80, clinics=4, span=1, visits=2)
    found = audit(prepare(spec, dataset=dataset), dataset, AuditSettings(canaries=1000, runs=4))
    assert found.verdict is AuditVerdict.NOTHING_PROMISED
    assert found.epsilon > 3.0
