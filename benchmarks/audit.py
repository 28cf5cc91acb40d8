"""How much of each proved ε an audit finds, and where a guarantee is about something else: see docs/audit.md.

Run: python benchmarks/audit.py [policies] [steps] [many] [item] [printed] [membership]
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from wholegrain.audit.auditing import CURVE, FINAL, METHODS, SERVER, AuditSettings, audit
from wholegrain.audit.findings import Audit
from wholegrain.audit.membership_inference import membership
from wholegrain.data.clinics import clinics
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec

POLICIES: dict[str, dict[str, Any]] = {
    "local_item_dp": {},
    "local_group_dp": {"group_cap": 2},
    "higradavg_dp": {},
    "user_ldp": {},
    "subject_dp": {},
}


POLICY_HEADS = (
    "| policy | model | proved ε | lower bound | of it | without the curve | last model | verdict |\n"
    "|---|---|---|---|---|---|---|---|"
)


def spec(policy: dict[str, Any], privacy: dict[str, Any], **sections: dict[str, Any]) -> RunSpec:
    """Ten rounds of one step; nobody is in more than one silo."""
    usual = {"silos": {"span": 1}, "rounds": {"count": 10, "steps": 1}}
    return RunSpec.of({"policy": policy, "privacy": privacy, **usual, **sections})


def best(found: Audit, view: str, *, curve: bool) -> str:
    """The highest bound of the attacks with this view, with or without leaning on the event's curve."""
    bounds = [each.epsilon for each in found.findings if each.view == view and (each.method == CURVE) is curve]
    return f"{max(bounds):.2f}" if bounds else "–"


def policies() -> None:
    """Every proved policy at ε = 4 for a subject, on two models."""
    data = clinics(patients=2000, clinics=8, span=1, visits=4)
    print(POLICY_HEADS)
    for policy, settings in POLICIES.items():
        for model in ("logistic", "mlp"):
            asked = spec({"name": policy, "rate": 0.5, **settings}, {"epsilon": 4.0}, model={"name": model})
            crowded = policy != "user_ldp"
            found = audit(
                prepare(asked, dataset=data), data, AuditSettings(canaries=100_000, runs=20 if crowded else 400)
            )
            print(policy_row(policy, model, found), flush=True)


def policy_row(policy: str, model: str, found: Audit) -> str:
    """What an audit found of one policy, as a line of the table."""
    cells = (
        policy,
        model,
        f"{found.proved.epsilon:.2f}",
        f"{found.epsilon:.2f}",
        f"{found.epsilon / found.proved.epsilon:.0%}",
        best(found, SERVER, curve=False),
        best(found, FINAL, curve=True),
        found.verdict,
    )
    return f"| {' | '.join(cells)} |"


def local_steps() -> None:
    """The same of `uldp_avg`, where every subject takes its steps alone: fewer people, silos, canaries and others."""
    data = clinics(patients=200, clinics=2, span=1, visits=4)
    print(POLICY_HEADS)
    for model in ("logistic", "mlp"):
        asked = spec({"name": "uldp_avg", "rate": 0.5}, {"epsilon": 4.0}, model={"name": model})
        found = audit(prepare(asked, dataset=data), data, AuditSettings(canaries=4_000, runs=4, subjects=5_000))
        print(policy_row("uldp_avg", model, found), flush=True)


def many() -> None:
    """How far more canaries carry the bounds that lean on no curve."""
    data = clinics(patients=2000, clinics=8, span=1, visits=4)
    run = prepare(spec({"name": "subject_dp", "rate": 0.5}, {"epsilon": 4.0}), dataset=data)
    print("| canaries | one run | trials | curve |")
    print("|---|---|---|---|")
    for canaries in (1_000, 10_000, 100_000):
        found = audit(run, data, AuditSettings(canaries=canaries, runs=4))
        bounds = {each.method: each.epsilon for each in found.findings if each.attack == "crowd: level"}
        print(f"| {canaries:,} | {' | '.join(f'{bounds[method]:.2f}' for method in METHODS)} |", flush=True)


def item() -> None:
    """An item is promised ε = 4: what does that hide of a subject with twelve items?"""
    data = clinics(patients=1500, clinics=4, span=1, visits=12)
    asked = spec({"name": "local_item_dp", "rate": 0.2}, {"epsilon": 4.0, "unit": "item"})
    run = prepare(asked, dataset=data)
    print("| unit | proved ε | lower bound | without the curve | verdict |")
    print("|---|---|---|---|---|")
    for unit in (Unit.ITEM, Unit.SUBJECT):
        found = audit(run, data, AuditSettings(unit=unit, canaries=10_000, runs=20))
        without = best(found, SERVER, curve=False)
        print(
            f"| {unit} | {found.proved.epsilon:.2f} | {found.epsilon:.2f} | {without} | {found.verdict} |", flush=True
        )


def printed() -> None:
    """LocalGroupDP to the letter, with a claim of ε = 4."""
    data = clinics(patients=800, clinics=8, span=1, visits=20)
    policy = {"name": "local_group_dp", "batch_size": 128, "as_printed": True}
    asked = spec(policy, {"epsilon": 4.0}, rounds={"count": 4, "steps": 1})
    found = audit(prepare(asked, dataset=data), data, AuditSettings(runs=300))
    assert found.claimed is not None
    print(f"claimed {found.claimed.epsilon:.2f}; lower bound {found.epsilon:.2f}; {found.verdict}")
    for each in sorted(found.findings, key=lambda finding: -finding.epsilon):
        print(f"    {each.epsilon:5.2f}  {each.attack} ({each.method}): {each.seen}")


def people() -> None:
    """Who was trained on, by policy, where there are more features than people: a model learns people by heart."""
    data = clinics(patients=2000, clinics=1, span=1, visits=8, features=3000)
    print("| policy | proved ε of a subject | AUC | TPR at 1 % FPR | TPR at 0.1 % FPR |")
    print("|---|---|---|---|---|")
    promises = {"fedavg": {}, "local_item_dp": {"epsilon": 4.0, "unit": "item"}, "subject_dp": {"epsilon": 4.0}}
    for policy, privacy in promises.items():
        asked = spec({"name": policy, "rate": 1.0}, privacy, rounds={"count": 30, "learning_rate": 0.05})
        seen = membership(asked, data)
        low, high = seen.auc_interval
        rates = " | ".join(f"{r.true_positives:.4f} ({r.low:.4f}–{r.high:.4f})" for r in seen.rates)
        proved = f"{seen.guarantee.epsilon:.2f}"
        print(f"| {policy} | {proved} | {seen.auc:.3f} ({low:.3f}–{high:.3f}) | {rates} |", flush=True)


SECTIONS: dict[str, Callable[[], None]] = {
    "policies": policies,
    "steps": local_steps,
    "many": many,
    "item": item,
    "printed": printed,
    "membership": people,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
