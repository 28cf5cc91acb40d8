"""`wholegrain reproduce`: its arguments. What they set off is imported when the command is called."""

from pathlib import Path
from typing import Annotated

import typer

from wholegrain_reproduction.scales import Part, Scale


def reproduce(
    what: Annotated[Part, typer.Argument(help="fig1, fig2, fig3, or claims: all of them and the table of claims.")],
    data: Annotated[
        list[str],
        typer.Option(
            help="A folder with the usual files, NAME or NAME=PATH (femnist, mnist_writers, glyphs; shakespeare,"
            " gutenberg_shakespeare, plays, babble). Without it: WHOLEGRAIN_DATA, then what is synthetic. May be"
            " repeated."
        ),
    ] = [],  # noqa: B006 (typer reads the default and never changes it)
    scale: Annotated[
        Scale, typer.Option(help="smoke: a minute or two; small: under 40 on two cores; medium: two hours; full.")
    ] = Scale.SMALL,
    out: Annotated[Path, typer.Option(help="Folder for runs, figures and page.")] = Path("runs/reproduction"),
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time; as many as there are cores by default.")
    ] = None,
    recipes: Annotated[Path | None, typer.Option(help="A folder of recipes of your own.")] = None,
) -> None:
    """Run the paper's evaluation again: what is finished is not done again, what was interrupted goes on."""
    from wholegrain_reproduction import console

    console.reproduce(what, data, scale, out, processes, recipes)
