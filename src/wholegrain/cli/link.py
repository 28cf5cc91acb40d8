"""`link`: silos learn in how many of them each of their subjects is."""

from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import display

app = typer.Typer(no_args_is_help=True, help="In how many silos each subject is, without showing anybody an id.")

CharterFile = Annotated[Path, typer.Option("--charter", help="The silo's charter: silo.toml.")]
KeyFile = Annotated[Path, typer.Option("--key", help="The key that the silos share; whoever counts must not have it.")]


@app.callback()
def link() -> None:
    """In how many silos each subject is, without showing anybody an id."""


@app.command()
def key(
    out: Annotated[Path, typer.Argument(help="A new file, for the silos alone.")],
    rules: Annotated[
        list[str], typer.Option("--rule", help="How ids are written alike: strip, casefold, unaccent, alphanumeric …")
    ] = ["strip"],  # noqa: B006 (typer reads the default and never changes it)
) -> None:
    """Draw the key that silos share, with the rules by which all of them write ids."""
    from wholegrain.deploy.span_link import make_key

    make_key(rules, out)
    _say(f"Key: {out} (give it to the other silos over a channel that you trust, and to nobody else)")


@app.command()
def tokens(
    out: Annotated[Path, typer.Argument(help="A new file, for whoever counts.")],
    charter: CharterFile = Path("silo.toml"),
    key: KeyFile = Path("link.key"),
) -> None:
    """Write a token for each subject of this silo."""
    from wholegrain.deploy.charter import load_charter
    from wholegrain.deploy.span_link import write_tokens

    write_tokens(load_charter(charter), key, out)
    _say(f"Tokens: {out} (send it to whoever counts, who must not have the key; then delete it)")


@app.command()
def count(
    files: Annotated[list[Path], typer.Argument(help="The token files of all silos.")],
    out: Annotated[Path, typer.Option(help="The folder of the counts.")] = Path("counts"),
) -> None:
    """Count equal tokens over silos; this takes no key."""
    from wholegrain.deploy.span_link import count_tokens

    for silo, path in count_tokens(files, out).items():
        _say(f"Counts of '{silo}': {path} (send it back, then delete it and the tokens)")


@app.command()
def keep(
    counts: Annotated[Path, typer.Argument(help="The counts that came back.")],
    charter: CharterFile = Path("silo.toml"),
    key: KeyFile = Path("link.key"),
) -> None:
    """Keep the counts of this silo's subjects with its private state."""
    from wholegrain.deploy.charter import load_charter
    from wholegrain.deploy.span_link import keep_counts, spans_path

    made = load_charter(charter)
    found = keep_counts(made, key, counts)
    for span, subjects in sorted(found.items()):
        _say(f"{subjects} subjects in {span} silo{'s' * (span != 1)} (not private)")
    _say(f"Kept in {spans_path(made)}")


def _say(line: str) -> None:
    display.out.print(line, markup=False, soft_wrap=True)
