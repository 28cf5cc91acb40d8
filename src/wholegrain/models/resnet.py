"""ResNet-18 with group norms, whose items do not see each other, in the place of batch norms."""

from torch import Tensor, nn

from wholegrain.errors import ModelError
from wholegrain.models.images import square_side
from wholegrain.models.option_kinds import Size


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut [He et al. 2016], each with a group norm [Wu and He 2018]."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.one, self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), _norm(outer)
        self.two, self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), _norm(outer)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), _norm(outer))

    def forward(self, x: Tensor) -> Tensor:
        """[item, channel, row, column] to as many rows and columns, or half of them."""
        inside = self.second(self.two(self.first(self.one(x)).relu()))
        outputs: Tensor = (inside + self.short(x)).relu()
        return outputs


def resnet18(features: int, classes: int, channels: Size = 1, width: Size = 16) -> nn.Module:
    """Eight residual blocks for small square images, given as rows of `channels` × side × side values.

    The original has 64 channels in its first blocks, and 11 million parameters; 16, as here, leave 0.7 million.
    """
    if width % 4:
        raise ModelError(f"its width ({width}) must be a multiple of 4")
    if features % channels:
        raise ModelError(f"{features} values are no {channels} channels")
    side = square_side(features // channels)
    blocks, inner = list[nn.Module](), width
    for stage in range(4):
        outer = width * 2**stage
        blocks += [ResidualBlock(inner, outer, 1 if stage == 0 else 2), ResidualBlock(outer, outer, 1)]
        inner = outer
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (channels, side, side)),
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        _norm(width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inner, classes),
    )


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels // 4), channels)
