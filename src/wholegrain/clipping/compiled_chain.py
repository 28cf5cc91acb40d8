"""Gradients of small dense models by a program in C (program/clipped_chain.c): one call for the clipped sum of a batch.

A step of a small model takes torch some thirty operations of a few microseconds each, of which most is the way into the
operation and out of it. The program has none of that. It is also the simplest case of the clip theorem: every item is
computed by itself in arithmetic that is defined to the last bit, so that nothing has to be tried of kernels.
"""

import ctypes
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.backends import Slots
from wholegrain.clipping.c_library import load_library
from wholegrain.clipping.chain_backend import Chain
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.compiled_batch import DONE, LOSSES, BatchPlaces, give_batch, place_of, require_agreement
from wholegrain.clipping.compiled_sum import CompiledSum, clip_facts
from wholegrain.clipping.dense_chain import Dense, find_layers
from wholegrain.clipping.layers.activations import InPlace, Relu, Sigmoid, Tanh
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.trial_items import TRIAL, make_items
from wholegrain.clipping.workspace import Workspace
from wholegrain.errors import ModelError

MOST_LAYERS = 16
FUNCTIONS: Mapping[type[InPlace] | None, int] = {None: 0, Relu: 1, Tanh: 2, Sigmoid: 3}
"""Numbers as in program/clipped_chain.c, and so is the structure below."""


class ChainFacts(ctypes.Structure):
    """What is public: shapes, functions before layers, loss, clip."""

    _fields_ = (
        ("layers", ctypes.c_int64),
        ("loss", ctypes.c_int64),
        ("widths", ctypes.c_int64 * (MOST_LAYERS + 1)),
        ("functions", ctypes.c_int64 * MOST_LAYERS),
        ("norm", ctypes.c_double),
        ("averages", ctypes.c_int64),
    )


class CompiledChain(CompiledSum):
    """The sum of one chain of linear layers and its loss."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__(model, loss)
        self._layers = _require_layers(model, loss, self._layout)
        self._flattens = _begins_flat(model)
        library = load_library()
        self._sum_up, self._facts = library.wholegrain_clipped_sum, dict[Clip, ChainFacts]()
        library.wholegrain_scratch.restype = ctypes.c_int64
        facts = self._facts_for(Clip(ClipPer.ITEM, Pool.SUM, 1.0))
        self._scratch = torch.empty(library.wholegrain_scratch(ctypes.byref(facts)), dtype=torch.uint8)
        self._require_agreement()

    @staticmethod
    def knows(model: nn.Module, loss: Loss) -> bool:
        """Whether the program is for this model and this loss."""
        return loss in LOSSES and _find_layers(model, Layout.of(model)) is not None

    def _add_to(
        self, total: Tensor, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip
    ) -> int:
        inputs, targets = self._require_form(vector, inputs, targets)
        done, zeroed = give_batch(partial(self._add_up, vector, clip, total), inputs, targets, groups, clip)
        if done != DONE:
            raise ModelError(f"A target is no class from 0 to {self._layout.shapes[-1][0] - 1}.")
        return zeroed

    def _add_up(self, vector: Tensor, clip: Clip, total: Tensor, batch: BatchPlaces) -> tuple[int, int]:
        """What the program says, and how many units it left out; the sum is in `total`."""
        zeroed = ctypes.c_int64()
        places = (ctypes.c_void_p(place_of(values)) for values in (self._scratch, total))
        facts, parameters = ctypes.byref(self._facts_for(clip)), ctypes.c_void_p(place_of(vector))
        done: int = self._sum_up(facts, parameters, ctypes.byref(batch), *places, ctypes.byref(zeroed))
        return done, zeroed.value

    def _facts_for(self, clip: Clip) -> ChainFacts:
        """What the program has to know of the chain and of the clip; made once for each clip."""
        if clip not in self._facts:
            shapes = self._layout.shapes[::2]
            widths = [shapes[0][1], *(shape[0] for shape in shapes)]
            functions = [FUNCTIONS[_function(layer)] for layer in self._layers]
            self._facts[clip] = ChainFacts(
                len(self._layers),
                LOSSES[self._loss],
                (ctypes.c_int64 * (MOST_LAYERS + 1))(*widths),
                (ctypes.c_int64 * MOST_LAYERS)(*functions),
                *clip_facts(clip),
            )
        return self._facts[clip]

    def _require_form(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets as they must lie in memory; a wrong length would be read beyond its end."""
        features, outputs = self._layout.shapes[0][1], self._layout.shapes[-1][0]
        if inputs.dim() > 2 and self._flattens:
            inputs = inputs.flatten(1)
        expected = (len(inputs),) if self._loss is cross_entropy else (len(inputs), outputs)
        kinds = torch.float32, torch.float32, torch.int64 if self._loss is cross_entropy else torch.float32
        if (
            vector.shape != (self._layout.size,)
            or inputs.shape != (len(inputs), features)
            or targets.shape != expected
            or (vector.dtype, inputs.dtype, targets.dtype) != kinds
        ):
            given = ", ".join(f"{list(each.shape[1:])} of {each.dtype}" for each in (inputs, targets))
            raise ModelError(
                f"the compiled program takes rows of {features} torch.float32 and targets {list(expected[1:])} of"
                f" {kinds[2]}, and was given {given}"
            )
        return inputs.contiguous(), targets.contiguous()

    def _require_agreement(self) -> None:
        features, outputs = self._layout.shapes[0][1], self._layout.shapes[-1][0]
        targets = torch.arange(TRIAL) % outputs if self._loss is cross_entropy else torch.full((TRIAL, outputs), 0.3)
        require_agreement(self, self.model, self._loss, make_items(torch.empty(0, features)), targets)


def _find_layers(model: nn.Module, layout: Layout) -> list[Dense] | None:
    """The layers, where the program knows them all."""
    chain = Chain.of(model, Slots(model), Workspace())
    layers = None if chain is None else find_layers(chain, layout)
    if layers is None or len(layers) > MOST_LAYERS or any(_function(layer) not in FUNCTIONS for layer in layers):
        return None
    return layers


def _require_layers(model: nn.Module, loss: Loss, layout: Layout) -> list[Dense]:
    """The layers, or one sentence on why there is no program for this model."""
    layers = _find_layers(model, layout)
    if layers is None:
        raise ModelError(
            f"The program for chains is for up to {MOST_LAYERS} linear layers with biases, all of them trained, with"
            " ReLU, tanh or sigmoid between them, and this model is another."
        )
    if loss not in LOSSES:
        names = "cross_entropy, binary_cross_entropy, squared_error and huber"
        raise ModelError(f"The program for chains knows the losses {names}, and this model has another.")
    return layers


def _function(layer: Dense) -> type[InPlace] | None:
    return None if layer.before is None else type(layer.before)


def _begins_flat(model: nn.Module) -> bool:
    """Whether the first thing that it does is to lay out an item's numbers in a row."""
    first = next((m for m in model.modules() if not isinstance(m, nn.Sequential | nn.Identity)), None)
    return isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) == (1, -1)
