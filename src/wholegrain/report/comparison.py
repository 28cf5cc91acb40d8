"""Several runs side by side: one row each, and what those on the same data cost together."""

import math
from collections.abc import Iterable, Iterator

from wholegrain.report.glance import constant_score, headline_score, score_text
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import number, standing_words

HEADS = (
    "run",
    "noise",
    "policy",
    "score (not private)",
    "constant answer",
    "unit",
    "ε spent",
    "ε planned",
    "ε claimed",
    "δ",
    "standing",
    "trust",
    "rounds",
)
TOTAL_HEADS = ("data", "runs compared", "unit", "ε together", "by", "limit", "left")
Rows = Iterator[tuple[object, ...]]


def comparison_rows(runs: Iterable[RunRecord]) -> Rows:
    """One row for each run that is compared."""
    for run in runs:
        found, constant = headline_score(run), constant_score(run)
        yield (
            run.name,
            "seeded (simulation)" if run.simulation else "secure (release)",
            run.plan.policy,
            "–" if found is None else f"{found[0]} {score_text(*found)}",
            "–" if found is None or constant is None else score_text(found[0], constant),
            run.plan.unit,
            number(run.promise.epsilon),
            number(run.plan.promise.epsilon),
            number(run.plan.claim.epsilon) if run.plan.claim else "–",
            f"{run.promise.delta:g}",
            standing_words(run.promise),
            "local" if run.promise.trust is None else "secure sum",
            f"{len(run.rounds)} of {run.plan.rounds}",
        )


def total_rows(runs: Iterable[RunRecord]) -> Rows:
    """What runs on the same data and for the same unit cost together: by their ledger, or added up."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.data, run.plan.unit), []).append(run)
    for (data, unit), members in groups.items():
        if len(members) > 1:
            yield (data, ", ".join(run.name for run in members), unit, *_together(members))


def _together(members: list[RunRecord]) -> tuple[str, str, str, str]:
    """ε of all of them, how it was found, the limit and what is left of it."""
    accounts = {(run.ledger.identity, run.account.account) for run in members if run.account}
    state = members[0].account
    if state is not None and all(run.account for run in members) and len({ledger for ledger, _ in accounts}) == 1:
        total = state.price if len(accounts) == 1 else state.data
        limit = state.limit if len(accounts) == 1 else None
        left = "–" if limit is None else f"{max(0.0, limit - total.epsilon):.3g}"
        return number(total.epsilon), f"their ledger ({total.way})", "–" if limit is None else f"{limit:g}", left
    total_epsilon = math.fsum(run.promise.epsilon for run in members)
    total_delta = math.fsum(run.promise.delta for run in members)
    return number(total_epsilon), f"basic composition, δ = {total_delta:g}: each has a ledger of its own", "–", "–"
