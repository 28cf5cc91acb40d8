"""Small models for tables and flattened images."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from wholegrain.models.option_kinds import Size


def logistic(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression. It starts at zero: clipped steps would first have to undo anything else."""
    return nn.Sequential(nn.Flatten(), _zero(nn.Linear(features, classes)))


def mlp(features: int, classes: int, hidden: Annotated[Sequence[Size], Field(max_length=1000)] = (64,)) -> nn.Module:
    """Dense layers with tanh, whose bounded activations suit clipped gradients. The last one starts at zero."""
    widths = [features, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, _zero(nn.Linear(widths[-1], classes)))


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
