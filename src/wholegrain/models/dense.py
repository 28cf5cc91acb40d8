"""Small models for tables and flattened images."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def logistic(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mlp(features: int, classes: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Dense layers with tanh, whose bounded activations suit clipped gradients."""
    widths = [features, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
