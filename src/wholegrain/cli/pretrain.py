"""`pretrain`: a backbone from public data, for private runs to start from."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from wholegrain.cli import display
from wholegrain.cli.options import Changes, Json
from wholegrain.errors import RunError
from wholegrain.models.backbone import Backbone
from wholegrain.runs.pretraining import load_pretraining
from wholegrain.runs.pretraining import pretrain as train


def pretrain(
    spec: Annotated[Path, typer.Argument(help="A spec in TOML: public, data, model and training.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("backbone.safetensors"),
    changes: Changes = [],  # noqa: B006 (typer reads the default and never changes it)
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Train a model on public data, without any privacy, as a start for private runs."""
    asked = load_pretraining(spec, tuple(changes))
    if out.exists():
        raise RunError(f"'{out}' already exists; remove it, or name another file with --out.")
    if not out.absolute().parent.is_dir():
        raise RunError(f"There is no folder '{out.parent}' to write the backbone into.")
    with Progress(console=display.err, disable=quiet or json, transient=True) as progress:
        task = progress.add_task("public data")
        backbone = train(asked, lambda done, steps, loss: progress.update(task, completed=done, total=steps))
    backbone.write(out)
    if json:
        display.as_json({"file": str(out), "digest": backbone.digest, **backbone.facts})
    else:
        _report(backbone, out)


HEADLINES = ("accuracy", "mae")


def _report(backbone: Backbone, out: Path) -> None:
    facts = backbone.facts
    rows = [
        ("model", facts["model"]),
        ("data", f"{facts['data']}: {facts['items']:,} items of {facts['subjects']:,} subjects"),
        ("public because", facts["public"]),
        *((name, f"{facts[name]:.4f} on its own subjects that were held out") for name in HEADLINES if name in facts),
        ("digest", backbone.digest),
        ("file", out),
    ]
    display.out.print(display.table("Backbone (no privacy: its data is public)", ("", ""), rows))
