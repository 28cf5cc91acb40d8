"""A model file: parameters, and in its metadata all that it takes to use them on rows of a table.

The metadata is public: declared columns, what is predicted, the model's name and options, guarantees and versions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

import wholegrain
from wholegrain import _check
from wholegrain._files import write_whole
from wholegrain.data.declarations import read_features, read_value, write_feature, write_target
from wholegrain.data.flags import MANY, SHARED, many_flags
from wholegrain.data.frames import to_polars
from wholegrain.data.schema import Feature, TableLayout, Target
from wholegrain.data.table import encode_features
from wholegrain.data.table_files import TextFormat, read
from wholegrain.data.task_facts import read_task
from wholegrain.data.tasks import Task
from wholegrain.data.text_feature import Text, write_text
from wholegrain.data.tokenization import carry_content
from wholegrain.errors import DataError, ModelError, RunError
from wholegrain.models import model_catalog
from wholegrain.models.model_inputs import values
from wholegrain.models.trainable_part import with_adapters
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.spec import GIVEN

KEY = "wholegrain"
FORMAT = 1
CHUNK = 512
MODEL = "model.safetensors"


def write_model(path: Path, run: RunResult, tensors: Mapping[str, Tensor]) -> None:
    """Put the run's parameters in place, whole, with their metadata."""
    about = json.dumps(model_facts(run), ensure_ascii=False)
    write_whole(path, save(dict(tensors), metadata={KEY: about}))


def model_facts(run: RunResult) -> dict[str, Any]:
    """What the file says of its model. Public: nothing here was counted."""
    spec = run.spec.model
    return {
        "format": FORMAT,
        "wholegrain": wholegrain.__version__,
        "torch": torch.__version__,
        "task": run.task.facts(),
        "model": {"name": spec.name, "options": spec.options, "features": run.features},
        "rank": spec.used_rank,
        "prefix": spec.used_prefix,
        "table": None if run.layout is None else layout_facts(run.layout),
        "guarantees": [guarantee.facts() for guarantee in run.guarantees],
        "simulation": run.spec.privacy.noise == "seeded",
    }


def layout_facts(layout: TableLayout) -> dict[str, Any]:
    """The declared columns as plain values; `read_layout` reads them."""
    return {
        "subject": layout.subject,
        "target": write_target(layout.target),
        "features": {name: _feature_facts(feature) for name, feature in layout.features.items()},
        "missing_values": list(layout.missing_values),
        "recode": {name: dict(recoded) for name, recoded in layout.recode.items()},
    } | ({"flags": SHARED} if many_flags(layout) else {})


def _feature_facts(feature: Feature) -> dict[str, Any]:
    """With its tokenizer, so that the model can be used where that file is not."""
    if isinstance(feature, Text):
        return write_text(carry_content(feature), with_content=True)
    return write_feature(feature)


def read_layout(facts: Mapping[str, Any]) -> TableLayout:
    """The columns that `layout_facts` wrote."""
    layout = TableLayout(
        subject=facts["subject"],
        target=read_value(Target, "the model's target", facts["target"]),
        features=read_features(facts["features"]),
        missing_values=tuple(facts["missing_values"]),
        recode=facts["recode"],
    )
    if facts.get("flags") != (SHARED if many_flags(layout) else None):
        raise RunError(
            f"The model has more than {MANY} columns of 0 and 1, which another version encoded in another way; train it"
            " again, or predict with the version that trained it."
        )
    return layout


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model with what it takes to use it on a table."""

    model: nn.Module
    task: Task
    layout: TableLayout | None
    facts: Mapping[str, Any]

    @staticmethod
    def open(path: Path, model: nn.Module | str | None = None) -> "Predictor":
        """The model of a file, or of a run's folder.

        A model that is the caller's own code is given as a module, or as the `module:factory` that it was trained with:
        a name that stands in a file is never imported.
        """
        tensors, facts = read_model(path / MODEL if path.is_dir() else path)
        try:
            layout = None if facts["table"] is None else read_layout(facts["table"])
            net, task = _build(facts, model), read_task(facts["task"])
        except (KeyError, TypeError) as error:
            raise RunError(f"The model file '{path}' is damaged: {_check.reason(error)}.") from error
        own = net.state_dict()
        for name, value in tensors.items():
            if name not in own or own[name].shape != value.shape:
                raise ModelError(f"The model does not fit the file '{path}': its parameter '{name}' is another one.")
        net.load_state_dict(tensors, strict=False)
        return Predictor(net.eval(), task, layout, facts)

    def predict(
        self,
        table: Any,
        text: TextFormat = TextFormat(),  # noqa: B008 (frozen)
        keep: Sequence[str] = (),
    ) -> pl.DataFrame:
        """Predictions for the rows of a table (pandas, polars, pyarrow) or of a file, in the rows' order.

        `text` says how a CSV is stored. Columns of the table that `keep` names stand before the predictions.
        """
        if self.layout is None:
            raise DataError("The model was not trained on a table, so that no columns are declared; use its module.")
        columns = tuple(self.layout.features)
        if isinstance(table, str | Path):
            table = read(Path(table), self.layout.names | {*keep} - {*columns}, text)
        frame = to_polars(table, columns)
        if frame.is_empty():
            raise DataError("The table has no rows to predict.")
        found = pl.DataFrame(self.task.predictions(self.outputs(encode_features(frame, self.layout))))
        return _beside(to_polars(table, tuple(dict.fromkeys(keep))), found)

    def outputs(self, inputs: np.ndarray) -> np.ndarray:
        """[item, output] what the model puts out for encoded inputs."""
        with torch.no_grad():
            pieces = [self.model(values(each)) for each in torch.split(torch.from_numpy(inputs), CHUNK)]
        return np.asarray(torch.cat(pieces).numpy())


def _beside(kept: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Columns of the table, and after them what was predicted."""
    if taken := set(kept.columns) & set(found.columns):
        name = min(taken)
        raise DataError(f"The column '{name}' cannot be kept: a column of the predictions is called so; rename it.")
    return pl.concat([kept, found], how="horizontal") if kept.columns else found


def _build(facts: Mapping[str, Any], model: nn.Module | str | None) -> nn.Module:
    """The module that the parameters belong to."""
    if isinstance(model, nn.Module):
        return with_adapters(model, facts["rank"], facts.get("prefix"))
    named, task = facts["model"], read_task(facts["task"])
    name = named["name"]
    if name == GIVEN or (":" in name and model != name):
        raise ModelError(
            f"The model is its owner's own code ({name}); give it: the module itself in Python, or"
            f" --model {name if ':' in name else 'module:factory'}."
        )
    net = model_catalog.build(name, named["features"], task.outputs, 0, named["options"])
    return with_adapters(net, facts["rank"], facts.get("prefix"))


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Parameters by name, and what the file says of its model."""
    try:
        with safe_open(path, framework="pt") as content:
            facts = json.loads((content.metadata() or {}).get(KEY, "null"))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError as error:
        raise RunError(f"There is no model '{path}'; name a run's folder or its {MODEL}.") from error
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"'{path}' cannot be read as a model: {_check.reason(error)}.") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise RunError(f"The model '{path}' does not say how it is used: it was written by another version.")
    return tensors, facts
