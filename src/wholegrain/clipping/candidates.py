"""The backends that may run a model, from fast to slow: layer rules, vmap, one item at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wholegrain.clipping.backends import Program, Slots
from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.chain_backend import Chain
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.graph_backend import Graph
from wholegrain.clipping.parameters import Layout, Slot
from wholegrain.clipping.reference import Loss, batch_gradient
from wholegrain.clipping.vmap_gradients import item_gradients
from wholegrain.clipping.workspace import Workspace


@dataclass(frozen=True, eq=False)
class Candidate:
    """A program, how it is told its parameters, and what to say of it where it is slow."""

    program: Program
    attach: Callable[[Tensor], None]
    notice: Callable[[], str | None]
    """Asked after a first pass: what a program meets, it sees then."""
    workspace: Workspace = field(default_factory=Workspace)


MakeCandidate = Callable[[nn.Module, Layout], Candidate]


def use_aligned_rules(model: nn.Module, layout: Layout) -> Candidate:
    """The same with rows that all begin alike in memory: for odd widths, whose products are else not steady."""
    return use_rules(model, layout, aligned=True)


def use_rules(model: nn.Module, layout: Layout, aligned: bool = False) -> Candidate:
    """Rules for layers, on a shadow of the model whose parameters are views of the vector."""
    shadow = _copy_model(model)
    slots, workspace = Slots(shadow), Workspace(aligned)
    parameters = [p for p in shadow.parameters() if p.requires_grad]
    place: int | None = None

    def attach(vector: Tensor) -> None:
        nonlocal place
        if shadow.training is not model.training:
            shadow.train(model.training)
        # What is attached stays in memory, so that no other vector can come to lie at its place.
        if vector.data_ptr() == place and vector.is_contiguous():
            return
        place = vector.data_ptr() if vector.is_contiguous() else None
        for p, view in zip(parameters, layout.views(vector.detach()).values(), strict=True):
            p.data = view

    chain = Chain.of(shadow, slots, workspace)
    if chain is not None:
        return Candidate(chain, attach, lambda: None, workspace)
    graph = Graph(shadow, model, slots, workspace)
    return Candidate(graph, attach, lambda: _name_modules_without_rule(graph.unruled), workspace)


def _name_modules_without_rule(unruled: Mapping[str, str]) -> str | None:
    """Which modules have no rule, and why."""
    if not unruled:
        return None
    names = "; ".join(f"{name}: {reason}" for name, reason in unruled.items())
    return f"There is no gradient rule for {names}. Its own parameters go item by item with vmap, which is slower."


def _copy_model(model: nn.Module) -> nn.Module:
    """A copy with forwards of its own; buffers and frozen parameters are the model's, and may change with it.

    Trainable parameters are objects of their own, which are pointed at a vector before anything is computed: their
    values need no copy.
    """
    shared: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for p in model.parameters():
        shared[id(p)] = nn.Parameter(p.detach()) if p.requires_grad else p
    return deepcopy(model, shared)


def use_vmap(model: nn.Module, layout: Layout) -> Candidate:
    """The whole model by vmap."""
    program = WholeModel(model, layout)
    notice = "The model's gradients go item by item with vmap, which is slower."
    return Candidate(program, program.attach, lambda: notice)


def play_one_by_one(model: nn.Module, layout: Layout) -> Candidate:
    """The whole model, one item after the other, as the reference does it."""
    program = WholeModel(model, layout, vectorises=False)
    notice = "The model's gradients go one item after the other, which is much slower."
    return Candidate(program, program.attach, lambda: notice)


class WholeModel:
    """A program that forms each item's whole gradient: for models that no rule fits."""

    mode: Callable[[], AbstractContextManager[Any]] = torch.no_grad

    def __init__(self, model: nn.Module, layout: Layout, vectorises: bool = True) -> None:
        self._model, self._layout, self.vectorises = model, layout, vectorises
        self._vector = torch.zeros(0)

    def attach(self, vector: Tensor) -> None:
        """Use these parameters from now on."""
        self._vector = vector

    def run(self, loss: Loss, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """One share with the rows of all parameters."""
        rows = units.pool(torch.stack(list(self._rows(loss, inputs, targets))))
        views = self._layout.views(rows[0])
        sizes = [view.numel() for view in views.values()]
        return [Rows([(Slot(name), part) for name, part in zip(views, torch.split(rows, sizes, 1), strict=True)])]

    def _rows(self, loss: Loss, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        if not self.vectorises:
            for x, y in zip(inputs, targets, strict=True):
                yield batch_gradient(self._model, loss, self._layout, self._vector, x[None], y[None])
            return
        yield from item_gradients(self._model, loss, self._layout, self._vector, inputs, targets)
