"""Plans and runs as plain mappings, for JSON and for whoever prints them."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from wholegrain.federation.messages import SiloFault
from wholegrain.policies.plan import Plan, rounds_allowed
from wholegrain.policies.policy import FixedNoise, NoiseByLargestGroup, Policy
from wholegrain.privacy.definitions import Guarantee
from wholegrain.runs.accounts import AccountState
from wholegrain.runs.evaluation import Score
from wholegrain.runs.json_numbers import finite, or_infinity
from wholegrain.runs.observers import RoundDone
from wholegrain.runs.runner import Run


def guarantee_facts(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee in words and numbers."""
    return {
        "unit": str(guarantee.unit),
        "neighbouring": str(guarantee.neighbouring),
        "epsilon": finite(guarantee.epsilon),
        "delta": guarantee.delta,
        "standing": str(guarantee.standing),
        "accountant": guarantee.accountant,
        "because": guarantee.because,
        "simulation": guarantee.simulation,
        "counted_sizes": guarantee.counted_sizes,
    }


def account_facts(spent: AccountState) -> dict[str, Any]:
    """Where a run's account stands, and its data over all budgets."""
    return {
        "data": spent.account.data,
        "budget": spent.account.budget,
        "unit": str(spent.unit),
        "epsilon": spent.limit,
        "delta": spent.delta,
        "runs": spent.runs,
        "spent": finite(spent.price.epsilon),
        "accountant": spent.price.way,
        "budgets_of_the_data": spent.budgets,
        "spent_of_the_data": finite(spent.data.epsilon),
        "accountant_of_the_data": spent.data.way,
    }


def plan_facts(plan: Plan) -> dict[str, Any]:
    """A plan before any training: per silo, and as a whole."""
    releases = plan.horizon.releases()
    return {
        "policy": plan.policy,
        "unit": str(plan.unit),
        "rounds": plan.horizon.rounds,
        "steps_per_round": plan.horizon.steps,
        "cohort": plan.horizon.cohort_count,
        "span": plan.span,
        "rounds_allowed": rounds_allowed(plan),
        "guarantees": [guarantee_facts(guarantee) for guarantee in plan.guarantees],
        "silos": [
            {
                "name": facts.name,
                "items": facts.items,
                "subjects": facts.subjects,
                "items_per_subject": facts.items_per_subject,
                "steps": releases.get(facts.name, 0),
                **policy_facts(policy),
            }
            for policy, facts in plan.rows
        ],
    }


def policy_facts(policy: Policy) -> dict[str, Any]:
    """How a silo samples and how much noise it adds: the least and the most where its batches decide."""
    noise: float | list[float] | None = None
    if isinstance(policy.noise, FixedNoise):
        noise = policy.noise.multiplier
    elif isinstance(policy.noise, NoiseByLargestGroup):
        noise = [policy.noise.by_size(1), policy.noise.by_size(policy.noise.largest)]
    return {
        "sampling": {"kind": type(policy.sampling).__name__, **asdict(policy.sampling)},
        "clip_per": str(policy.clip.per),
        "clip_norm": policy.clip.norm,
        "noise_multiplier": noise,
    }


def round_facts(done: RoundDone) -> dict[str, Any]:
    """One line of a run's record; scores are marked for what they are."""
    return {
        "round": done.round,
        "cohort": list(done.cohort),
        "epsilon": finite(done.epsilon),
        "seconds": round(done.seconds, 6),
        "failed": done.failed,
        "moved": done.moved,
        "noise": done.noise,
        "faults": [asdict(fault) for fault in done.faults],
        "scores (not private)": _scores(done),
    }


def read_round(facts: Mapping[str, Any]) -> RoundDone:
    """The round that a line of a run's record tells of."""
    scores = facts["scores (not private)"].items()
    return RoundDone(
        round=facts["round"],
        cohort=tuple(facts["cohort"]),
        epsilon=or_infinity(facts["epsilon"]),
        seconds=facts["seconds"],
        scores={name: _score_of(score) for name, score in scores},
        faults=tuple(SiloFault(**fault) for fault in facts["faults"]),
        failed=facts["failed"],
        moved=facts["moved"],
        noise=facts["noise"],
    )


def run_facts(run: Run) -> dict[str, Any]:
    """A finished run in one mapping."""
    return {
        "policy": run.plan.policy,
        "spent": [guarantee_facts(guarantee) for guarantee in run.guarantees],
        "planned": [guarantee_facts(guarantee) for guarantee in run.plan.guarantees],
        "account": account_facts(run.account),
        "noise": run.noise,
        "rounds": len(run.rounds),
        "rounds_planned": run.plan.horizon.rounds,
        "failed_rounds": sum(done.failed for done in run.rounds),
        "seconds": round(run.seconds, 3),
        "scores (not private)": _scores(run.rounds[-1]),
    }


def _scores(done: RoundDone) -> Mapping[str, Any]:
    return {
        name: {
            "accuracy": round(score.accuracy, 6),
            "loss": finite(round(score.loss, 6)),
            **{metric: finite(round(value, 6)) for metric, value in score.further.items()},
        }
        for name, score in done.scores.items()
    }


def _score_of(facts: Mapping[str, Any]) -> Score:
    further = {name: math.nan if value is None else value for name, value in facts.items()}
    del further["loss"], further["accuracy"]
    return Score(or_infinity(facts["loss"]), facts["accuracy"], further)
