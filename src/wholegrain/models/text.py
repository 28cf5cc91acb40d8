"""Models for windows of characters."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from wholegrain.errors import ModelError
from wholegrain.models.fixed_layers import Whiten


class StackedLSTM(nn.Module):
    """Embedding, stacked LSTM, and two linear layers on its last output [Marathe, §5]."""

    def __init__(self, classes: int, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character [item, class] after windows of tokens [item, position]."""
        outputs, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.outer(self.inner(outputs[:, -1]).relu())
        return scores


def stacked_lstm(
    features: int,
    classes: int,
    vocabulary: int | None = None,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """The character model of the paper; what comes next is one of the characters that came before."""
    return StackedLSTM(classes, vocabulary or classes, embedding, hidden, layers)


class LastState(nn.Module):
    """Embedding and LSTM: what is left of a window of characters after the last one."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """The state [item, hidden] after windows of tokens [item, position]."""
        return self.every_state(tokens)[:, -1]

    def every_state(self, tokens: Tensor) -> Tensor:
        """The states [item, position, hidden] after each token."""
        states: Tensor = self.lstm(self.embedding(tokens))[0]
        return states


def whitened_lstm(
    features: int,
    classes: int,
    vocabulary: int | None = None,
    embedding: int = 32,
    hidden: int = 256,
    layers: int = 1,
) -> nn.Module:
    """A character model made to be started from public text: its last layer sees states that are whitened by that text.

    Without a public start it trains like any other. With one, the last layer alone may be enough.
    """
    return nn.Sequential(
        LastState(vocabulary or classes, embedding, hidden, layers), Whiten(hidden), nn.Linear(hidden, classes)
    )


class CausalBlock(nn.Module):
    """Attention to what came before, and two linear layers, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.fused, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)
        self.prefix: nn.Parameter | None = None

    def add_prefix(self, length: int) -> None:
        """Learned keys and values [2, head, place, width of a head] that every position attends to."""
        width = self.out.in_features // self.heads
        self.prefix = nn.Parameter(torch.randn(2, self.heads, length, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """[item, position, width] to the same shape."""
        parts = self.fused(self.first(x)).chunk(3, 2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.prefix is None:
            seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            keys, values = (each.expand(len(x), -1, -1, -1) for each in self.prefix.unbind())
            key, value = torch.cat((keys, key), 2), torch.cat((values, value), 2)
            present = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(keys.shape[2])
            seen = scaled_dot_product_attention(query, key, value, present)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))
        outputs: Tensor = x + self.drop(self.outer(gelu(self.inner(self.second(x)))))
        return outputs


class CausalTransformer(nn.Module):
    """Tables of tokens and places, causal blocks, and scores of what follows the last token."""

    def __init__(
        self, length: int, classes: int, vocabulary: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(CausalBlock(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, classes)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token [item, class] after windows of tokens [item, position]."""
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x[:, -1]))
        return scores


def causal_transformer(
    features: int,
    classes: int,
    vocabulary: int | None = None,
    width: int = 32,
    heads: int = 4,
    layers: int = 2,
    dropout: float = 0.0,
) -> nn.Module:
    """A small transformer of the present kind: norms first, learned places, causal attention."""
    if width % heads:
        raise ModelError(f"its width ({width}) must be a multiple of its heads ({heads})")
    return CausalTransformer(features, classes, vocabulary or classes, width, heads, layers, dropout)


def score_positions(model: nn.Module, tokens: Tensor) -> Tensor | None:
    """Scores of what follows each token [item, position, class]; None of a model that only reads whole windows."""
    first = model[0] if type(model) is nn.Sequential else None
    if not isinstance(first, LastState):
        return None
    scores: Tensor = model[1:](first.every_state(tokens))  # type: ignore[index]
    return scores


class Bigram(nn.Module):
    """Scores of the next character by the last one alone: a row of a table."""

    def __init__(self, classes: int, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, classes)
        nn.init.normal_(self.table.weight, std=0.01)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character [item, class] after windows of tokens [item, position]."""
        scores: Tensor = self.table(tokens[:, -1])
        return scores


def bigram(features: int, classes: int, vocabulary: int | None = None) -> nn.Module:
    """A table of what follows what: few enough parameters for few speakers."""
    return Bigram(classes, vocabulary or classes)
