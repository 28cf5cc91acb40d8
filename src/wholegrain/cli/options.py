"""Options that several commands share."""

from typing import Annotated

import typer

Changes = Annotated[
    list[str],
    typer.Option(
        "--set", help="Change the spec: section.key=value. May be repeated. A path counts from the working directory."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
