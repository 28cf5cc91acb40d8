"""Convolutional models for small square images of one channel, given as rows of pixels."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import isqrt

from torch import Tensor, nn
from torch.nn.functional import pad

from wholegrain.errors import ModelError
from wholegrain.models.fixed_layers import Upright, Whiten
from wholegrain.models.option_kinds import Size


def leaf_cnn(features: int, classes: int, channels: Size = 32, hidden: Size = 2048) -> nn.Module:
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


def small_cnn(features: int, classes: int, width: Size = 16) -> nn.Module:
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


SHIFTS = (
    (0, 0),
    *((1, 0), (-1, 0), (0, 1), (0, -1)),
    *((1, 1), (1, -1), (-1, 1), (-1, -1)),
    *((2, 0), (-2, 0), (0, 2), (0, -2)),
)
"""Pixels (down, along) by which views of an image are moved, nearest first."""
VIEWS = (1, 5, 9, 13)
"""Numbers of first views that favour no direction."""
FAR = max(down for down, _ in SHIFTS)


class MeanOfViews(nn.Sequential):
    """Layers that see an image moved by a pixel or two each way; what they make of these views is averaged.

    Each view errs in its own way, and the mean errs less: it is a function of the one image all the same.
    """

    def __init__(self, views: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.views = views

    def forward(self, images: Tensor) -> Tensor:
        """The mean [item, …] over views of images [item, 1, side, side]."""
        side, framed = images.shape[-1], pad(images, (FAR,) * 4)
        total: Tensor | None = None
        for down, along in SHIFTS[: self.views]:
            top, left = FAR + down, FAR + along
            seen: Tensor = super().forward(framed[:, :, top : top + side, left : left + side])  # type: ignore[no-untyped-call]
            total = seen if total is None else total + seen
        assert total is not None
        return total / self.views


@contextmanager
def one_view(model: nn.Module) -> Iterator[None]:
    """Let the model see each image once, as it is: enough to learn from, in a fraction of the time."""
    found = {module: module.views for module in model.modules() if isinstance(module, MeanOfViews)}
    for module in found:
        module.views = 1
    try:
        yield
    finally:
        for module, views in found.items():
            module.views = views


def upright_cnn(features: int, classes: int, width: Size = 24, code: Size = 64, views: Size = 1) -> nn.Module:
    """A CNN made to be started from public data: images are straightened, and its last layer sees whitened features.

    Without a public start it trains like any other. With one, the last layer alone is often enough: for 28 × 28 images
    and 10 classes, 650 parameters. With more `views` (5, 9 or 13), features are means over so many shifts of an image.
    """
    side = square_side(features, by=4)
    if views not in VIEWS:
        raise ModelError(f"its views must be one of {', '.join(map(str, VIEWS))}, not {views}")
    layers = (
        nn.Conv2d(1, width, 5, stride=2, padding=2),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.GroupNorm(8, 2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (side // 4) ** 2, code),
        nn.Tanh(),
    )
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, side, side)),
        Upright(side),
        *(layers if views == 1 else (MeanOfViews(views, *layers),)),
        Whiten(code),
        nn.Linear(code, classes),
    )


def square_side(features: int, by: int = 1) -> int:
    """The side of a square image of so many pixels, where it is a multiple of `by`."""
    side = isqrt(features)
    if side * side != features or side % by:
        raise ModelError(f"it takes square images whose side is a multiple of {by}, not {features} features")
    return side
