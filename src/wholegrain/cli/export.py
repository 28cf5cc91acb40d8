"""`export`: a trained model in a form that other programs read."""

from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import display
from wholegrain.errors import SpecError
from wholegrain.runs.model_file import Predictor
from wholegrain.runs.onnx_file import require_onnx, write_onnx


def export(
    model: Annotated[Path, typer.Argument(help="The folder of a finished run, or its model.safetensors.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="Where to write the model as ONNX.")],
    own: Annotated[str | None, typer.Option("--model", help="Your own model's module:factory.")] = None,
) -> None:
    """Write a trained model as ONNX, with its columns, bounds, classes and guarantees in the metadata."""
    if onnx.suffix.lower() != ".onnx":
        raise SpecError(f"An ONNX file is called .onnx, and '{onnx}' is not.")
    require_onnx()
    write_onnx(Predictor.open(model, own), onnx)
    display.out.print(f"Written: {onnx}", markup=False, soft_wrap=True)
