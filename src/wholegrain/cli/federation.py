"""`federation init`: certificates, keys and templates for a federation of real silos."""

from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import display
from wholegrain.deploy.scaffold import FederationDraft, write_federation

app = typer.Typer(no_args_is_help=True, help="Federations of real silos.")


@app.callback()
def _group() -> None:
    """Federations of real silos."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    silos: Annotated[list[str], typer.Option("--silo", help="A silo's name; once for each.")],
    host: Annotated[str, typer.Option(help="Name or address under which silos reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the server.")] = 8443,
) -> None:
    """Write certificates, a key for each silo, and templates of the server's spec and of every silo.toml."""
    write_federation(FederationDraft(tuple(silos), host, port), folder)
    display.out.print(f"Server: {folder / 'server'} (fill in spec.toml)", soft_wrap=True)
    for silo in silos:
        display.out.print(f"Silo:   {folder / silo} (for its operator alone; fill in silo.toml)", soft_wrap=True)
