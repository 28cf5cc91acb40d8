"""How things look on a terminal: consoles, tables, and the rule that JSON goes alone to standard output.

Every command imports this module: it must not need torch or an accountant.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wholegrain.privacy.definitions import Guarantee, Standing

if TYPE_CHECKING:
    from wholegrain.runs.accounts import AccountState  # imports an accountant, which takes a second

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended."""

if TYPE_CHECKING:
    from wholegrain.federation.private_score import PrivateScore
    from wholegrain.federation.round_record import Score

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


def plain(value: object) -> object:
    """A figure with four significant digits; anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else value


def plural(count: int, what: str) -> str:
    """So many things, in the singular where it is one.

    >>> plural(1, "silo"), plural(1200, "round")
    ('1 silo', '1,200 rounds')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


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


SIMULATED = "PROVED is what a release of this run would have; a simulation protects nobody.\n"


def _with_caption(grid: Table, found: Iterable[Guarantee]) -> Table:
    """A simulation's table says under it what PROVED is worth there."""
    if any(g.simulation and g.standing is Standing.PROVED for g in found):
        grid.caption, grid.caption_justify, grid.caption_style = SIMULATED, "left", ""
    return grid


def guarantees(found: Iterable[Guarantee]) -> Table:
    """What is promised to whom."""
    found = list(found)
    title = "Guarantees" + max((g.mark for g in found), key=len, default="")
    rows = [(g.unit, number(g.epsilon), f"{g.delta:g}", standing(g.standing), g.accountant, g.because) for g in found]
    return _with_caption(table(title, ("unit", "ε", "δ", "standing", "accountant", "because"), rows), found)


def spent_table(found: Iterable[Guarantee], planned: Iterable[Guarantee]) -> Table:
    """What was promised to whom by what was released, beside what was planned."""
    pairs = list(zip(found, planned, strict=True))
    title = "Guarantees" + max((g.mark for pair in pairs for g in pair), key=len, default="")
    rows = [
        (g.unit, number(g.epsilon), number(p.epsilon), f"{g.delta:g}", standing(g.standing), g.accountant, g.because)
        for g, p in pairs
    ]
    heads = ("unit", "ε spent", "ε planned", "δ", "standing", "accountant", "because")
    return _with_caption(table(title, heads, rows), (g for g, _ in pairs))


SHOWN = ("auc", "rmse", "r2", "top_5", "perplexity")
"""Metrics that a terminal has room for, beside the headline and the loss; the summary has them all."""


def scores(found: Mapping[str, "Score"], constant: Mapping[str, "Score"], also: Sequence[str] = ()) -> Table:
    """Scores of each part, beside those of the best constant answer on it; with the metrics that were asked for."""
    first, loss, *others = next(iter(found.values())).facts()
    columns = [first, loss, *(name for name in others if name in (*SHOWN, *also))]
    rows = [
        (name, *(_score(score, column) for column in columns))
        for part, own in found.items()
        for name, score in ((part, own), ("  constant answer", constant.get(part)))
        if score is not None
    ]
    return table("Scores (not private)", ("items of", *columns), rows)


def private_scores(found: Mapping[str, "PrivateScore"]) -> Table:
    """Private scores of all silos together and of each, with 95 % intervals: for noise, and for the draw of people."""
    rows = [
        (place, name, f"{each.value:.4f}", f"± {each.noise:.4f}", f"± {each.both:.4f}")
        for place, score in found.items()
        for name, each in score.items()
    ]
    return table("Private scores (paid)", ("people of", "measure", "value", "noise", "noise and draw"), rows)


def _score(score: "Score", column: str) -> str:
    value = score.loss if column == "loss" else score.metrics.get(column, math.nan)
    return f"{value:.4f}"


def account(state: "AccountState") -> str:
    """Where an account stands that others spend from, too, and the data over all its budgets."""
    limit = "" if state.limit is None else f" of {state.limit:g}"
    return (
        f"Account '{state.account.budget}' of the data '{state.account.data}': ε = {number(state.price.epsilon)}{limit}"
        f" spent (by {state.price.way}; runs: {state.runs}). The data over all its budgets ({state.budgets}):"
        f" ε = {number(state.data.epsilon)} (by {state.data.way}). For each {state.unit}, δ = {state.delta:g}."
    )
