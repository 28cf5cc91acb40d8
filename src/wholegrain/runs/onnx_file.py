"""A trained model as an ONNX file, for runtimes without Python: parameters, and the pipeline in its metadata.

The graph takes encoded inputs [row, value], as `data.table` makes them, and gives the model's outputs [row, output].
Its metadata say which column and category each value stands for and how outputs are read, as in `model.safetensors`.
"""

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from wholegrain import _check
from wholegrain._files import write_whole
from wholegrain.data.table import value_names
from wholegrain.errors import ModelError, RunError
from wholegrain.runs.model_file import KEY, Predictor

NEEDED = ("onnx", "onnxscript")
INPUTS, OUTPUTS = "inputs", "outputs"


def require_onnx() -> None:
    """Refuse to begin without the packages that torch writes ONNX with."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"To write ONNX, {missing[0]} is needed; install the extra: pip install 'wholegrain[onnx]'.")


def write_onnx(predictor: Predictor, path: Path) -> None:
    """Write the model and its pipeline; a model that torch cannot trace is refused in a sentence."""
    require_onnx()
    features = predictor.facts["model"]["features"]
    try:
        with _quiet():
            program = torch.onnx.export(
                predictor.model,
                (torch.zeros(2, features),),
                dynamo=True,
                input_names=[INPUTS],
                output_names=[OUTPUTS],
                dynamic_shapes=({0: torch.export.Dim("rows")},),
                verbose=False,
            )
            assert program is not None
            program.model.metadata_props.update(_metadata(predictor))
            content = io.BytesIO()
            program.save(content)  # type: ignore[arg-type]
    except Exception as error:  # the model may be the user's own code, and torch says what it cannot trace
        raise ModelError(f"The model cannot be written as ONNX: {_check.reason(error)}.") from error
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}.") from error


def _metadata(predictor: Predictor) -> dict[str, str]:
    """What the file says of its model, and the name of each value of an input."""
    names: list[Any] = [] if predictor.layout is None else value_names(predictor.layout)
    return {KEY: json.dumps(dict(predictor.facts) | {"inputs": names}, ensure_ascii=False)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on its own progress."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
