"""Several runs side by side: one row each, and what those on the same data cost together."""

import math
from collections.abc import Iterable, Iterator, Sequence

from wholegrain.federation.private_score import ALL as ALL_SILOS
from wholegrain.report.glance import constant_score, headline_score, score_text, within_text
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import number, standing_words

TOTAL_HEADS = ("data", "runs compared", "unit", "ε together", "by", "limit", "left")
Rows = Iterator[tuple[object, ...]]


def comparison_heads(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """What is told of each run; a paper's claim only where one of them has one."""
    return tuple(name for name, _ in next(_cells(runs)))


def comparison_rows(runs: Sequence[RunRecord]) -> Rows:
    """One row for each run that is compared."""
    for cells in _cells(runs):
        yield tuple(cell for _, cell in cells)


def _cells(runs: Sequence[RunRecord]) -> Iterator[list[tuple[str, object]]]:
    claims = any(run.plan.claim for run in runs)
    for run in runs:
        claim = number(run.plan.claim.epsilon) if run.plan.claim else "–"
        yield [
            ("run", run.name),
            ("noise", "seeded (simulation)" if run.simulation else "secure (release)"),
            ("policy", run.plan.policy),
            ("score", _score(run)),
            ("constant answer", _constant(run)),
            ("unit", run.plan.unit),
            ("ε spent", number(run.promise.epsilon)),
            ("ε planned", number(run.plan.promise.epsilon)),
            *([("ε claimed", claim)] if claims else []),
            ("δ", f"{run.promise.delta:g}"),
            ("standing", standing_words(run.promise)),
            ("trust", "local" if run.promise.trust is None else "secure sum"),
            ("rounds", f"{len(run.rounds)} of {run.plan.rounds}"),
        ]


def _score(run: RunRecord) -> str:
    """The headline: without noise, or else what was paid for."""
    if found := headline_score(run):
        return f"{found[0]} {score_text(*found)}"
    paid = (run.summary.private if run.summary else {}).get(ALL_SILOS, {})
    return next((f"{name} {within_text(name, found)} (private)" for name, found in paid.items()), "–")


def _constant(run: RunRecord) -> str:
    found, constant = headline_score(run), constant_score(run)
    return "–" if found is None or constant is None else score_text(found[0], constant)


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
