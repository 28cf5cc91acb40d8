"""Convolutional models for small square images of one channel, given as rows of pixels."""

from math import isqrt

from torch import nn

from wholegrain.errors import ModelError
from wholegrain.models.fixed_layers import Upright, Whiten


def leaf_cnn(features: int, classes: int, channels: int = 32, hidden: int = 2048) -> nn.Module:
    """The CNN of the LEAF benchmark; for 28 × 28 images and 62 classes it has 6,603,710 parameters [Marathe, §5].

    Fewer `channels` (the second convolution has twice as many) and `hidden` units make it narrower, not shallower.
    """
    side = square_side(features, by=4)
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, channels, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def small_cnn(features: int, classes: int, width: int = 16) -> nn.Module:
    """A CNN made for clipped gradients: few parameters, bounded activations and norms within an item.

    With its default width it has 23,614 parameters for 28 × 28 images and 62 classes.
    """
    side = square_side(features, by=4)
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, width, 5, stride=2, padding=2),
        nn.GroupNorm(4, width),
        nn.Tanh(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.GroupNorm(4, 2 * width),
        nn.Tanh(),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(2 * width * (-(-side // 8)) ** 2, 2 * width),
        nn.Tanh(),
        nn.Linear(2 * width, classes),
    )


def upright_cnn(features: int, classes: int, width: int = 24, code: int = 64) -> nn.Module:
    """A CNN made to be started from public data: images are straightened, and its last layer sees whitened features.

    Without a public start it trains like any other. With one, the last layer alone is often enough: for 28 × 28 images
    and 10 classes, 650 parameters.
    """
    side = square_side(features, by=4)
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, side, side)),
        Upright(side),
        nn.Conv2d(1, width, 5, stride=2, padding=2),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.GroupNorm(8, 2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (side // 4) ** 2, code),
        nn.Tanh(),
        Whiten(code),
        nn.Linear(code, classes),
    )


def square_side(features: int, by: int = 1) -> int:
    """The side of a square image of so many pixels, where it is a multiple of `by`."""
    side = isqrt(features)
    if side * side != features or side % by:
        raise ModelError(f"it takes square images whose side is a multiple of {by}, not {features} features")
    return side
