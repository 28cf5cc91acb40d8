"""What a model predicts for new rows: a table in, a table of the same library out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from wholegrain.data.dataset import Dataset
from wholegrain.data.frames import is_table, to_polars
from wholegrain.data.schema import TableLayout
from wholegrain.data.table import encode_features
from wholegrain.data.tasks import Columns, Outputs, Task
from wholegrain.data.tensors import as_inputs
from wholegrain.errors import DataError
from wholegrain.models.model_inputs import values

CHUNK = 512


def predict(model: nn.Module, task: Task, layout: TableLayout | None, rows: Any) -> Any:
    """Predictions for rows, as a table with a row for each.

    Rows are a table with the columns of the features, where the model was trained on one; else inputs, or a data set.
    A table of predictions is of the same library as the rows; of polars where they are no table.
    """
    if isinstance(rows, Dataset):
        return pl.DataFrame(_columns(task, compute_outputs(model, rows.data.inputs)))
    if layout is not None and isinstance(rows, Mapping):
        raise DataError("The model predicts for the rows of a table; make one, as in pandas.DataFrame(rows).")
    if not is_table(rows):
        return pl.DataFrame(_columns(task, compute_outputs(model, as_inputs(rows))))
    if layout is None:
        raise DataError("The model was not trained on a table; give inputs, as a tensor [item, …].")
    frame = to_polars(rows, tuple(layout.features))
    return _like(rows, _columns(task, compute_outputs(model, encode_features(frame, layout))))


def compute_outputs(model: nn.Module, inputs: np.ndarray[Any, Any]) -> Outputs:
    """[item, output] what the model puts out for inputs [item, …] as data sets store them."""
    stored = torch.from_numpy(np.ascontiguousarray(inputs))
    try:
        with torch.no_grad():
            parts = [model(values(some)).double() for some in torch.split(stored, CHUNK)]
    except RuntimeError as error:  # torch names the shapes that do not fit
        kind = str(stored.dtype).removeprefix("torch.")
        raise DataError(
            f"The model cannot take inputs of shape {list(stored.shape)} and type {kind}: it was trained on others."
        ) from error
    return torch.cat(parts).numpy() if parts else np.zeros((0, 1))


def _columns(task: Task, outputs: Outputs) -> Columns:
    return task.predictions(outputs)


def _like(rows: Any, columns: Columns) -> Any:
    """The columns as a table of the library that the rows come from, pandas with their index."""
    if hasattr(rows, "iloc"):
        return type(rows)(columns, index=rows.index)
    table = pl.DataFrame({name: column.tolist() for name, column in columns.items()})
    return table if isinstance(rows, pl.DataFrame | pl.LazyFrame) else table.to_arrow()
