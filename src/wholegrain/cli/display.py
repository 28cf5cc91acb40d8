"""How things look on a terminal: consoles, tables, and the rule that JSON goes alone to standard output."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wholegrain.data.sampling import FixedItems, PoissonItems
from wholegrain.policies.plan import Plan, rounds_allowed
from wholegrain.policies.policy import NoiseByLargestGroup, Policy
from wholegrain.policies.policy_catalog import find
from wholegrain.privacy.definitions import Guarantee, Standing

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

STYLE = {Standing.PROVED: "green", Standing.CLAIMED: "yellow", Standing.NONE: "red"}


def as_json(content: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(content, indent=2, ensure_ascii=False))


def number(value: float) -> str:
    """Four significant digits, ∞ where there is no bound.

    >>> number(3.99912), number(float("inf"))
    ('3.999', '∞')
    """
    return f"{value:.4g}" if math.isfinite(value) else "∞"


def standing(value: Standing) -> Text:
    """The standing in its colour."""
    return Text(str(value), style=STYLE[value])


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table; every column but the first is right-aligned where it holds numbers."""
    grid = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")  # a digest that is cut short cannot be compared
    for row in rows:
        grid.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return grid


def guarantees(found: Iterable[Guarantee]) -> Table:
    """What is promised to whom."""
    found = list(found)
    title = "Guarantees" + max((g.mark for g in found), key=len, default="")
    rows = [(g.unit, number(g.epsilon), f"{g.delta:g}", standing(g.standing), g.accountant, g.because) for g in found]
    return table(title, ("unit", "ε", "δ", "standing", "accountant", "because"), rows)


def spent(found: Iterable[Guarantee], planned: Iterable[Guarantee]) -> Table:
    """What was promised to whom by what was released, beside what was planned."""
    pairs = list(zip(found, planned, strict=True))
    title = "Guarantees" + max((g.mark for pair in pairs for g in pair), key=len, default="")
    rows = [
        (g.unit, number(g.epsilon), number(p.epsilon), f"{g.delta:g}", standing(g.standing), g.accountant, g.because)
        for g, p in pairs
    ]
    return table(title, ("unit", "ε spent", "ε planned", "δ", "standing", "accountant", "because"), rows)


def account(facts: Mapping[str, Any]) -> str:
    """Where an account stands that others spend from, too, and the data over all its budgets."""
    limit = "" if facts["epsilon"] is None else f" of {facts['epsilon']:g}"
    whole = _or_infinity(facts["spent_of_the_data"])
    return (
        f"Account '{facts['budget']}' of the data '{facts['data']}': ε = {number(_or_infinity(facts['spent']))}{limit}"
        f" spent (by {facts['accountant']}; runs: {facts['runs']}). The data over all its budgets"
        f" ({facts['budgets_of_the_data']}): ε = {number(whole)} (by {facts['accountant_of_the_data']}). For each"
        f" {facts['unit']}, δ = {facts['delta']:g}."
    )


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value


def plan(planned: Plan) -> None:
    """The plan in full, before any training."""
    horizon = planned.horizon
    out.print(
        f"[bold]{planned.policy}[/bold]: {horizon.rounds} rounds of {horizon.steps} steps in"
        f" {horizon.cohort_count} of {len(planned.rows)} silos; a subject in {planned.span} silos at most"
    )
    out.print(f"Protects {find(planned.policy).protects}.")
    out.print(guarantees(planned.guarantees))
    releases = horizon.releases()
    rows = [
        (f.name, f.items, f.subjects, f.items_per_subject or "–", releases.get(f.name, 0), sampling(p), noise(p))
        for p, f in planned.rows
    ]
    columns = ("silo", "items", "subjects", "K", "steps", "sampling", "noise multiplier")
    out.print(table("Silos", columns, rows))
    allowed = rounds_allowed(planned)
    if allowed is not None:
        out.print(f"The budget allows {allowed} rounds with this noise.")


def start(public: Mapping[str, Any]) -> None:
    """The public parameters that a run would start from, if any."""
    if public:
        share = f"{public['trained_parameters']:,} of {public['parameters']:,} parameters"
        out.print(f"Starts from the backbone {public['digest']}", soft_wrap=True)
        out.print(f"and trains {share} ({public['train']}).")


def sampling(policy: Policy) -> str:
    """The sampler in one phrase."""
    drawn = policy.sampling
    if isinstance(drawn, FixedItems):
        return f"{drawn.size} items"
    if isinstance(drawn, PoissonItems):
        kept = f", {drawn.most_per_subject} a subject" if drawn.most_per_subject else ""
        return f"items, {drawn.rate:.4g}{kept}"
    kept = f", {drawn.items} items each" if drawn.items else ""
    return f"subjects, {drawn.rate:.4g}{kept}"


def noise(policy: Policy) -> str:
    """The noise multiplier, or the ends of the paper's table."""
    if policy.noise is None:
        return "–"
    if isinstance(policy.noise, NoiseByLargestGroup):
        least, most = policy.noise.by_size(1), policy.noise.by_size(policy.noise.largest)
        return f"{least:.4g} … {most:.4g} by largest group"
    return f"{policy.noise.multiplier:.4g}"
