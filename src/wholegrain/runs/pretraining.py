"""Ordinary training on public data, before any private run: no clip, no noise, no guarantee, and nobody to protect.

Whoever writes the spec vouches in a sentence of their own that the data is public; the sentence stays with the backbone
and stands in the report of every run that starts from it.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain._random import Purpose, generator
from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import Loss
from wholegrain.data import partition
from wholegrain.data.cache import digest
from wholegrain.data.dataset import Dataset
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Task
from wholegrain.errors import ModelError, SpecError
from wholegrain.models import model_catalog
from wholegrain.models.backbone import Backbone
from wholegrain.models.fixed_layers import Whiten
from wholegrain.models.gate_directions import fit_spare, spare_at_rest
from wholegrain.models.images import one_view
from wholegrain.models.model_inputs import are_tokens, values
from wholegrain.models.text import score_positions
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.section_files import Section, change_tree, explain_fault, read_tree, refuse_blanks, resolve
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import DataSpec, ModelSpec
from wholegrain.silo.views import apply_view

WARM_UP = 100
FITTED = 20_000
"""Items that whitening is fitted to, at most."""

Observer = Callable[[int, int, float], None]
"""Told of the steps done, all steps, and the latest mean loss."""


class TrainingSpec(Section):
    """AdamW with a cosine schedule, for `passes` passes over the data."""

    passes: Annotated[float, Field(gt=0, le=1000)] = 1.0
    batch_size: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.02
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.05
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The share of subjects on which accuracy is measured."""


class PretrainSpec(Section):
    """A whole pretraining: the model, the data, and why that data is public."""

    public: Annotated[str, Field(min_length=10)]
    seed: int = 0
    data: DataSpec
    model: ModelSpec = ModelSpec(name="upright_cnn")
    training: TrainingSpec = TrainingSpec()


def load_pretraining(path: Path, changes: tuple[str, ...] = ()) -> PretrainSpec:
    """Read the spec of a pretraining, as `load` reads that of a run."""
    tree = read_tree(path)
    change_tree(tree, changes, path, _resolve_paths)
    refuse_blanks(tree, path)
    if "public" not in tree:
        raise SpecError(
            f"The spec '{path}' is none of wholegrain pretrain: it has no `public`, the sentence that says why its data"
            " is public; add one, or give the spec to wholegrain run."
        )
    try:
        spec = PretrainSpec.model_validate(tree)
    except ValidationError as error:
        raise SpecError(explain_fault(error, PretrainSpec)) from error
    if spec.model.start is not None or spec.model.train != "all":
        raise SpecError("A backbone is trained whole and from the beginning: leave out model.start and model.train.")
    if any(options.get("every_position") for options in (spec.data.options, spec.model.options)):
        raise SpecError(
            "A backbone of text learns from every position anyway: leave out every_position, in data.options and in"
            " model.options."
        )
    return spec


def _resolve_paths(tree: Mapping[str, Any], folder: Path) -> None:
    """Take relative paths of the data from this folder."""
    data = tree.get("data")
    for section in (data.get("table"), data.get("options")) if isinstance(data, dict) else ():
        resolve(section, "path", folder)


def pretrain(spec: PretrainSpec, observe: Observer = lambda done, steps, loss: None) -> Backbone:
    """Train on public data, and describe what came of it."""
    dataset = load_dataset(RunSpec(data=spec.data, seed=spec.seed))
    model_catalog.require_reader(spec.model.name, are_tokens(dataset.data.inputs.dtype))
    kept, held_out = partition.split_by_subject(
        dataset.data, spec.training.held_out, Coins.seeded(spec.seed), "pretraining"
    )
    _require_both(dataset.data, held_out)
    model = model_catalog.build(spec.model.name, dataset.features, dataset.task.outputs, spec.seed, spec.model.options)
    with one_view(model), spare_at_rest(model):
        _fit(model, _pretraining_loss(dataset.task, spec), dataset.data.take(kept), spec, observe)
    if not bool(torch.isfinite(flatten(model)).all()):
        raise ModelError("The parameters are not all finite after pretraining; lower training.learning_rate.")
    shown = dataset.data.take(kept[:FITTED])
    _whiten(model, shown)
    fit_spare(model, torch.from_numpy(shown.inputs), torch.from_numpy(shown.targets))
    scorer = Scorer.of(dataset.task, find_loss(None, dataset.task))
    name, value = scorer.score(model, flatten(model), dataset.data.take(held_out)).headline
    facts = {
        "public": spec.public.strip().rstrip("."),
        "model": spec.model.name,
        "options": spec.model.options,
        "features": dataset.features,
        "classes": dataset.task.outputs,
        **_origin(dataset, spec),
        "training": spec.training.model_dump(),
        "seed": spec.seed,
        name: round(value, 6),
    }
    return Backbone({name: tensor.clone() for name, tensor in model.state_dict().items()}, facts)


def _require_both(data: SubjectData, held_out: NDArray[np.int64]) -> None:
    """Refuse data of so few subjects that nobody is left to train on, or to measure on."""
    away = len(np.unique(data.subjects[held_out]))
    if 0 < away < data.subject_count:
        return
    change = "lower training.held_out" if away else "raise training.held_out"
    raise SpecError(
        f"Of the public data, {away} of {data.subject_count} subjects are held out, and some must be on either side;"
        f" {change}, or take more data."
    )


def _origin(dataset: Dataset, spec: PretrainSpec) -> Mapping[str, Any]:
    data = dataset.data
    arrays = {"inputs": data.inputs, "targets": data.targets, "subjects": data.subjects}
    return {
        "data": dataset.name,
        "data_options": spec.data.options,
        "data_digest": digest(dataset.name, arrays),
        "items": data.items,
        "subjects": data.subject_count,
    }


def _pretraining_loss(task: Task, spec: PretrainSpec) -> Loss:
    """The task's usual loss; of classes, with smoothed labels."""
    if task.loss != "cross_entropy":
        return find_loss(None, task)
    return partial(cross_entropy, label_smoothing=spec.training.smoothing)


def _fit(model: nn.Module, loss_of: Loss, data: SubjectData, spec: PretrainSpec, observe: Observer) -> None:
    """Batches in an order drawn from the seed, pass after pass."""
    settings = spec.training
    batch = min(settings.batch_size, data.items)
    steps = max(1, math.ceil(settings.passes * data.items / batch))
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    moved = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(moved, lr=settings.learning_rate, weight_decay=settings.weight_decay, foreach=False)
    order = torch.empty(0, dtype=torch.int64)
    draws = generator(spec.seed, Purpose.PRETRAINING, "order")
    smoothed = 0.0
    for step in range(steps):
        if len(order) < batch:
            order = torch.from_numpy(draws.permutation(data.items))
        some, order = order[:batch], order[batch:]
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, steps)
        optimiser.zero_grad()
        loss = _loss(model, loss_of, values(inputs[some]), targets[some])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        smoothed += (float(loss.detach()) - smoothed) / min(step + 1, 100)
        observe(step + 1, steps, smoothed)


def _loss(model: nn.Module, loss_of: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss; a model of text learns from every position of a window where it can score them all."""
    scores = score_positions(model, inputs)
    if scores is None:
        return loss_of(model(inputs), targets)
    following = torch.cat([inputs[:, 1:], targets[:, None]], 1)
    return loss_of(scores.flatten(0, 1), following.flatten())


def _schedule(step: int, steps: int) -> float:
    """Up over the first steps, then down along a cosine."""
    return min(1.0, (step + 1) / min(WARM_UP, steps)) * (1 + math.cos(math.pi * step / steps)) / 2


def _whiten(model: nn.Module, data: SubjectData) -> None:
    """Fit a model's whitening to public features, and let the layer after it undo that: the scores stay the same."""
    layers = list(model) if type(model) is nn.Sequential else []
    for k, layer in enumerate(layers):
        after = layers[k + 1] if k + 1 < len(layers) else None
        if not isinstance(layer, Whiten) or not isinstance(after, nn.Linear):
            continue
        before = nn.Sequential(*layers[:k])
        with torch.no_grad():
            layer.fit(apply_view(torch.from_numpy(data.inputs), before, data.subjects))
            _undo(layer, after)


def _undo(whitening: Whiten, head: nn.Linear) -> None:
    weight: Tensor = head.weight.double()
    head.bias.add_((weight @ whitening.mean.double()).to(head.bias.dtype))
    head.weight.copy_((weight @ torch.linalg.inv(whitening.matrix.double())).to(head.weight.dtype))
