"""The model that a run trains: built, started from public parameters, and divided into frozen and trained."""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from wholegrain import _check
from wholegrain.clipping.parameters import Layout
from wholegrain.data.every_token import EveryToken
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Task
from wholegrain.errors import ModelError, SpecError
from wholegrain.models import model_catalog
from wholegrain.models.backbone import PublicStart, read_backbone
from wholegrain.models.dropout import with_item_coins
from wholegrain.models.gate_directions import require_scales
from wholegrain.models.trainable_part import split_model, train_part
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import FederationSpec, ModelSpec
from wholegrain.silo.training import Silo
from wholegrain.silo.views import apply_view

MOST_FEATURES = 10**7
"""Of an item that nobody has shown; more is a slip of whoever wrote the spec."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, its frozen beginning (None where there is none), the rest, and what of it was public before the run.

    The rest's trainable parameters are the model's, in the same order: one vector serves both.
    """

    model: nn.Module
    frozen: nn.Module | None
    trained: nn.Module
    public: PublicStart | None = None

    def silos(self, silos: Mapping[str, Silo]) -> dict[str, Silo]:
        """Silos whose items are shown to the trained part as the frozen one sees them.

        Training, deployment and audit all take their silos from here.
        """
        return {name: replace(silo, view=self.frozen) for name, silo in silos.items()}

    def apply_frozen(self, data: SubjectData) -> SubjectData:
        """Items as the trained part sees them."""
        if self.frozen is None:
            return data
        inputs = apply_view(torch.from_numpy(data.inputs), self.frozen, data.subjects).numpy()
        return data.shown_as(np.ascontiguousarray(inputs))


def build_trained_model(spec: ModelSpec, features: int, task: Task, seed: int) -> TrainedModel:
    """The learner that a spec asks for."""
    _require_positions(spec, task)
    model = model_catalog.build(spec.name, features, task.outputs, seed, spec.options)
    if spec.start is None:
        if spec.train != "all":
            raise SpecError(
                f"model.train = {spec.written_train} needs model.start: without it, what is frozen is random."
            )
        return TrainedModel(model, None, with_item_coins(model))
    backbone = read_backbone(Path(spec.start))
    backbone.load_into(model, spec.name)
    require_scales(model)
    train_part(model, spec.train, spec.rank, spec.prefix, seed)
    public = PublicStart(
        digest=backbone.digest,
        train=spec.train,
        rank=spec.used_rank,
        prefix=spec.used_prefix,
        trained_parameters=Layout.of(model).size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        backbone=dict(backbone.facts),
    )
    frozen, trained = split_model(model)
    return TrainedModel(model, frozen, with_item_coins(trained), public)


def federation_model(spec: RunSpec, federation: FederationSpec) -> TrainedModel:
    """The learner of a server, which knows the shape of an input and holds none."""
    features = math.prod(federation.shape)
    if features > MOST_FEATURES:
        raise SpecError(f"federation.shape says {features:,} numbers for an item; {MOST_FEATURES:,} are the most.")
    return build_trained_model(spec.model, features, federation.task, spec.seed)


def own_model(model: nn.Module, spec: ModelSpec, seed: int) -> TrainedModel:
    """The caller's own module, trained as it is; or a copy of it, of which what the spec says is trained."""
    elsewhere = {str(p.device) for p in model.parameters() if p.device.type != "cpu"}
    if elsewhere:
        raise ModelError(
            f"The net is on {elsewhere.pop()}: give it on the CPU (net.cpu()), and say with compute.device where"
            " gradients are computed."
        )
    if spec.train != "all":
        model = train_part(deepcopy(model), spec.train, spec.rank, spec.prefix, seed)
    frozen, trained = split_model(model_catalog.check_model(model))
    return TrainedModel(model, frozen, with_item_coins(trained))


def _require_positions(spec: ModelSpec, task: Task) -> None:
    """Refuse a catalogue model that takes the scores of all positions for those of as many more classes."""
    if ":" in spec.name:  # a model of one's own has options of its own
        return
    wanted = isinstance(task, EveryToken)
    given = _check.flag("model.options.every_position", spec.options.get("every_position", False))
    if wanted == given:
        return
    if wanted:
        raise SpecError(
            f"The data has every_position = true, and the model '{spec.name}' scores one position: take whitened_lstm"
            " or causal_transformer with model.options.every_position = true, or leave it out of data.options."
        )
    raise SpecError(
        "model.options.every_position = true needs data with every position: set data.options.every_position = true."
    )
