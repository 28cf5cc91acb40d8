"""`reproduce`: the paper's figures and claims, run again."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from wholegrain import _check
from wholegrain.cli import display
from wholegrain.cli.run_commands import INTERRUPTED
from wholegrain_reproduction.claims import Verdict, all_claims
from wholegrain_reproduction.data_choice import choose
from wholegrain_reproduction.experiment import PAGE, Order, What, planned
from wholegrain_reproduction.experiment import reproduce as reproduce_all
from wholegrain_reproduction.recipes import Scale
from wholegrain_reproduction.results_page import Made
from wholegrain_reproduction.run_trials import Outcome


def reproduce(
    what: Annotated[What, typer.Argument(help="fig1, fig2, fig3, or claims: all of them and the table of claims.")],
    data: Annotated[
        list[str],
        typer.Option(
            help="A folder with the usual files, NAME or NAME=PATH (femnist, mnist_writers, glyphs; shakespeare, plays,"
            " babble). Without it: WHOLEGRAIN_DATA, then what is synthetic. May be repeated."
        ),
    ] = [],  # noqa: B006 (typer reads the default and never changes it)
    scale: Annotated[
        Scale, typer.Option(help="smoke: a minute or two; small: under 40 on two cores; full.")
    ] = Scale.SMALL,
    out: Annotated[Path, typer.Option(help="Folder for runs, figures and page.")] = Path("runs/reproduction"),
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time; as many as there are cores by default.")
    ] = None,
    recipes: Annotated[Path | None, typer.Option(help="A folder of recipes of your own.")] = None,
) -> None:
    """Run the paper's evaluation again: what is finished is not done again, what was interrupted goes on."""
    count = _check.count("--processes", processes) if processes is not None else len(os.sched_getaffinity(0))
    order = Order(
        what=what,
        scale=scale,
        chosen=choose(data),
        out=out,
        processes=count,
        command=shlex.join(["wholegrain", *sys.argv[1:]]),
        where=recipes,
    )
    total, seen = len(planned(order)[1]), 0

    def tell(outcome: Outcome) -> None:
        nonlocal seen
        seen += 1
        error = f": {outcome.error}" if outcome.error else ""
        display.err.print(f"{seen}/{total} {outcome.trial.label}: {outcome.done}{error}", markup=False, soft_wrap=True)

    try:
        made = reproduce_all(order, tell)
    except KeyboardInterrupt:
        display.err.print("Stopped. The same command goes on.")
        raise typer.Exit(INTERRUPTED) from None
    _report(order, made)
    if any(outcome.error for outcome in made.outcomes):
        raise typer.Exit(1)


def _report(order: Order, made: Made) -> None:
    display.out.print(
        f"Images: {made.chosen.images.words}. Text: {made.chosen.text.words}.", markup=False, soft_wrap=True
    )
    if order.what is What.CLAIMS:
        found = [claim.over_seeds(made.evidence).verdict for claim in all_claims()]
        counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in Verdict)
        display.out.print(f"{len(found)} claims: {counts}.")
    display.out.print(f"Page: {order.runs / PAGE}", markup=False, soft_wrap=True)
