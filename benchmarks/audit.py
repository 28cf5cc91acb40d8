"""How much of each proved ε an audit finds, and where a guarantee is about something else: see docs/audit.md.

Run: python benchmarks/audit.py [policies] [item] [printed] [membership]
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from wholegrain.audit.auditing import Audit, Settings, audit
from wholegrain.audit.membership import membership
from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec

POLICIES: dict[str, dict[str, Any]] = {
    "local_item_dp": {},
    "local_group_dp": {"group_cap": 2},
    "higradavg_dp": {},
    "user_ldp": {},
    "subject_dp": {},
}


def eight_clinics() -> Dataset:
    return clinics(patients=2000, clinics=8, span=1, visits=4)


def spec(policy: str, model: str, **changes: Any) -> RunSpec:
    settings = {"rate": 0.5, **POLICIES.get(policy, {}), **changes}
    privacy = {"epsilon": settings.pop("epsilon", 4.0), "unit": settings.pop("unit", "subject")}
    return RunSpec.of(
        {
            "silos": {"span": 1},
            "model": {"name": model},
            "policy": {"name": policy, **settings},
            "privacy": {} if policy == "fedavg" else privacy,
            "rounds": {"count": 10, "steps": 1, "learning_rate": 1.0},
        }
    )


def best(found: Audit, *words: str) -> str:
    """The highest bound of those findings whose words are all there."""
    bounds = [
        each.epsilon for each in found.findings if all(word in (each.attack, each.view, each.method) for word in words)
    ]
    return f"{max(bounds):.2f}" if bounds else "–"


def policies() -> None:
    print(
        "| policy | model | proved ε | lower bound | of it | one run, any mechanism | final model | verdict | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for policy in POLICIES:
        for model in ("logistic", "mlp"):
            run = prepare(spec(policy, model), dataset=eight_clinics())
            started = time.perf_counter()
            found = audit(run, Settings(canaries=20_000, runs=400 if policy == "user_ldp" else 50))
            share = found.epsilon / found.proved.epsilon
            print(
                f"| {policy} | {model} | {found.proved.epsilon:.2f} | {found.epsilon:.2f} | {share:.0%}"
                f" | {best(found, 'one run')} | {best(found, 'final model')} | {found.verdict}"
                f" | {time.perf_counter() - started:.0f} |",
                flush=True,
            )


def item() -> None:
    """An item is promised ε = 4; what is a subject with twelve items told apart by?"""
    visits = clinics(patients=1500, clinics=4, span=1, visits=12)
    run = prepare(spec("local_item_dp", "logistic", unit="item", rate=0.2), dataset=visits)
    found = audit(run, Settings(canaries=10_000, runs=50))
    print(f"promised to an item: 4; proved for a subject: {found.proved.epsilon:.2f}")
    print(f"lower bound for a subject: {found.epsilon:.2f} by the curve, {best(found, 'one run')} for any mechanism")


def printed() -> None:
    """LocalGroupDP to the letter, with a claim of ε = 4."""
    hospital = clinics(patients=400, clinics=1, span=1, visits=20)
    run = prepare(
        spec("local_group_dp", "logistic", rate=None, group_cap=None, batch_size=300, as_printed=True),
        dataset=hospital,
    )
    found = audit(run, Settings(runs=1500))
    print(f"claimed: {found.claimed and found.claimed.epsilon}; lower bound: {found.epsilon:.2f}; {found.verdict}")
    for each in sorted(found.findings, key=lambda finding: -finding.epsilon):
        print(f"    {each.attack}: {each.epsilon:.2f} ({each.seen})")


def people() -> None:
    """Who was trained on, by policy."""
    data = clinics(patients=4000, clinics=4, span=1, visits=12)
    print("| policy | proved ε (subject) | AUC | TPR at 1 % FPR | TPR at 0.1 % FPR |")
    print("|---|---|---|---|---|")
    for policy in ("fedavg", "local_item_dp", "subject_dp"):
        for rounds in (30,):
            asked = spec(policy, "mlp", **({"unit": "item"} if policy == "local_item_dp" else {}))
            asked = asked.model_copy(update={"rounds": asked.rounds.model_copy(update={"count": rounds})})
            seen = membership(asked, data)
            low, high = seen.auc_interval
            rates = " | ".join(f"{r.true_positives:.4f} ({r.low:.4f}–{r.high:.4f})" for r in seen.rates)
            print(f"| {policy} | {seen.guarantee.epsilon:.2f} | {seen.auc:.3f} ({low:.3f}–{high:.3f}) | {rates} |")


SECTIONS: dict[str, Callable[[], None]] = {
    "policies": policies,
    "item": item,
    "printed": printed,
    "membership": people,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
