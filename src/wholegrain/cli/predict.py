"""`predict`: a trained model and a table in, a table of predictions out."""

import os
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from wholegrain import _check
from wholegrain.cli import display
from wholegrain.data.table_files import TextFormat
from wholegrain.errors import RunError
from wholegrain.runs.model_file import Predictor


def predict(
    model: Annotated[Path, typer.Argument(help="The folder of a finished run, or its model.safetensors.")],
    table: Annotated[Path, typer.Argument(help="A table with the features that the model was trained on.")],
    out: Annotated[Path, typer.Option(help="Where to write the predictions: .csv or .parquet.")],
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to copy beside the predictions, as an id; may be repeated.")
    ] = None,
    own: Annotated[str | None, typer.Option("--model", help="Your own model's module:factory.")] = None,
    encoding: Annotated[str, typer.Option(help="How a CSV stores characters: utf-8, latin-1, cp1252 …")] = "utf-8",
    decimal: Annotated[str | None, typer.Option(help="A comma, where a CSV writes 3,5 for three and a half.")] = None,
) -> None:
    """Predict the rows of a table with a trained model."""
    _check.one_of("table format", out.suffix.lower(), [".csv", ".parquet"])
    if out.exists():
        raise RunError(f"'{out}' already exists; remove it, or name another file with --out.")
    predictor = Predictor.open(model, own)
    found = predictor.predict(table, TextFormat(encoding, decimal), keep or ())
    _write(found, out)
    display.out.print(f"{found.height} rows: {', '.join(found.columns)}", markup=False, soft_wrap=True)
    display.out.print(f"Written: {out}", markup=False, soft_wrap=True)


def _write(found: pl.DataFrame, out: Path) -> None:
    """The table, whole or not at all."""
    draft = out.with_name(f".{out.name}.part")
    try:
        if out.suffix.lower() == ".csv":
            found.write_csv(draft)
        else:
            found.write_parquet(draft)
        os.replace(draft, out)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RunError(f"'{out}' cannot be written: {error.strerror}.") from error
