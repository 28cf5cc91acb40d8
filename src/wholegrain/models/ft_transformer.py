"""A transformer for tables [Gorishniy et al. 2021]: every column is a token, and one more token gathers the answer."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from wholegrain.errors import ModelError
from wholegrain.models.option_kinds import Depth, Size


class ColumnTokens(nn.Module):
    """Numbers [item, column] as tokens [item, 1 + column, width]: a learned direction and place for each column.

    The first token is the same for every item. It stands for the answer, and attends to all columns.
    """

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.directions = nn.Parameter(torch.empty(columns, width).uniform_(-bound, bound))
        self.places = nn.Parameter(torch.empty(columns, width).uniform_(-bound, bound))
        self.answer = nn.Parameter(torch.empty(1, width).uniform_(-bound, bound))

    def forward(self, numbers: Tensor) -> Tensor:
        """Tokens of numbers [item, column]."""
        columns = numbers.unsqueeze(2) * self.directions + self.places
        return torch.cat((self.answer.expand(len(numbers), -1, -1), columns), 1)


class ColumnBlock(nn.Module):
    """Attention of every token to every other, and a gated layer, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fused, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 2 * inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """[item, token, width] to the same shape."""
        parts = self.fused(self.first(x)).chunk(3, 2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        values, gates = self.inner(self.second(x)).chunk(2, 2)
        outputs: Tensor = x + self.outer(values * gates.relu())
        return outputs


class FTTransformer(nn.Module):
    """Tokens of columns, blocks, and scores from the token that stands for the answer."""

    def __init__(self, columns: int, classes: int, width: int, heads: int, layers: int, inner: int) -> None:
        super().__init__()
        self.tokens = ColumnTokens(columns, width)
        self.blocks = nn.Sequential(*(ColumnBlock(width, heads, inner) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, numbers: Tensor) -> Tensor:
        """Scores [item, class] of rows of a table [item, column]."""
        x = self.blocks(self.tokens(numbers.flatten(1)))
        scores: Tensor = self.head(self.norm(x[:, 0]).relu())
        return scores


def ft_transformer(
    features: int,
    classes: int,
    width: Size = 16,
    heads: Size = 2,
    layers: Depth = 1,
    inner: Size | None = None,
) -> nn.Module:
    """The FT-Transformer, small: fewer parameters need less noise. `inner` is the width of the gated layer.

    A token is a column of what the model sees, so that a column of k categories is k tokens.
    """
    if width % heads:
        raise ModelError(f"its width ({width}) must be a multiple of its heads ({heads})")
    return FTTransformer(features, classes, width, heads, layers, 2 * width if inner is None else inner)
