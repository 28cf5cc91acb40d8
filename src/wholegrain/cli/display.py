"""How things look on a terminal: consoles, tables, and the rule that JSON goes alone to standard output.

Every command imports this module: it must not need torch or an accountant.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wholegrain.privacy.definitions import Guarantee, Standing
from wholegrain.runs.json_numbers import or_infinity

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
    whole = or_infinity(facts["spent_of_the_data"])
    return (
        f"Account '{facts['budget']}' of the data '{facts['data']}': ε = {number(or_infinity(facts['spent']))}{limit}"
        f" spent (by {facts['accountant']}; runs: {facts['runs']}). The data over all its budgets"
        f" ({facts['budgets_of_the_data']}): ε = {number(whole)} (by {facts['accountant_of_the_data']}). For each"
        f" {facts['unit']}, δ = {facts['delta']:g}."
    )
