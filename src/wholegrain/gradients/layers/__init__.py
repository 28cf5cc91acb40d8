"""Rules by layer type, to which a caller may add. What is not here, or not covered by its rule, falls back to vmap."""

from collections.abc import Callable
from typing import Any

from torch import nn

from wholegrain.gradients.layers.attention import Attention
from wholegrain.gradients.layers.base import Layer, Owned
from wholegrain.gradients.layers.convolution import ConvLayer
from wholegrain.gradients.layers.embedding import EmbeddingLayer
from wholegrain.gradients.layers.linear import LinearLayer
from wholegrain.gradients.layers.normalisation import GroupNormLayer, LayerNormLayer
from wholegrain.gradients.layers.recurrent import Recurrent

# Exact types: a subclass may compute something else.
LAYERS: dict[type[nn.Module], Callable[[Any, Owned], Layer]] = {
    nn.Linear: LinearLayer.of,
    nn.Conv1d: ConvLayer.of,
    nn.Conv2d: ConvLayer.of,
    nn.Embedding: EmbeddingLayer,
    nn.LayerNorm: LayerNormLayer,
    nn.GroupNorm: GroupNormLayer.of_groups,
    nn.InstanceNorm1d: GroupNormLayer.of_instances,
    nn.InstanceNorm2d: GroupNormLayer.of_instances,
}
COMPOSITES: dict[type[nn.Module], Callable[[Any, Owned], Callable[..., Any]]] = {
    nn.LSTM: Recurrent,
    nn.GRU: Recurrent,
    nn.MultiheadAttention: Attention,
}
"""Modules made of several layers, which call `apply(layer, *tensors)` for each."""
