"""Rules by layer type, to which `register_rule` adds. What is not here, or not covered by its rule, falls back to vmap.

No rule is trusted: before the first step the engine compares what it gives with the reference.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from wholegrain.clipping.layers.attention import Attention
from wholegrain.clipping.layers.base import Layer, ModuleSlots
from wholegrain.clipping.layers.convolution import ConvLayer
from wholegrain.clipping.layers.embedding import EmbeddingLayer
from wholegrain.clipping.layers.encoder import encoder_layer
from wholegrain.clipping.layers.linear import LinearLayer
from wholegrain.clipping.layers.normalisation import GroupNormLayer, LayerNormLayer
from wholegrain.clipping.layers.recurrent import Recurrent
from wholegrain.errors import ModelError

Rule = Callable[[Any, ModuleSlots], Layer]
"""Called with a module and the slots of its parameters."""

# Exact types: a subclass may compute something else.
LAYERS: dict[type[nn.Module], Rule] = {
    nn.Linear: LinearLayer.of,
    nn.Conv1d: ConvLayer.of,
    nn.Conv2d: ConvLayer.of,
    nn.Embedding: EmbeddingLayer,
    nn.LayerNorm: LayerNormLayer,
    nn.GroupNorm: GroupNormLayer.of_groups,
    nn.InstanceNorm1d: GroupNormLayer.of_instances,
    nn.InstanceNorm2d: GroupNormLayer.of_instances,
}
COMPOSITES: dict[type[nn.Module], Callable[[Any, ModuleSlots], Callable[..., Any]]] = {
    nn.LSTM: Recurrent,
    nn.GRU: Recurrent,
    nn.MultiheadAttention: Attention,
}
"""Modules made of several layers, which call `apply(layer, *tensors)` for each."""

IN_SEQUENCE: dict[type[nn.Module], Rule] = {nn.TransformerEncoderLayer: encoder_layer}
"""Modules that are a rule where they are called with one input only, as in a plain sequence."""


def register_rule(kind: type[nn.Module], rule: Rule) -> None:
    """Use the rule for modules of exactly this type from now on; one that is there already is replaced."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ModelError(f"A layer rule is for a subclass of torch.nn.Module, not for {kind!r}.")
    if not callable(rule):
        raise ModelError(f"The layer rule for {kind.__name__} is not callable; it takes the module and its slots.")
    LAYERS[kind] = rule
