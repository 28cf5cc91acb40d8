"""Models for texts and windows of text, as tokens.

With `padding`, the token of that number stands where there is no text: it is not attended to, and scores are those of
the last position that has some.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from wholegrain.errors import ModelError
from wholegrain.models.fixed_layers import Whiten
from wholegrain.models.model_inputs import take_last
from wholegrain.models.option_kinds import Chance, Depth, Size, Spare, Token, Vocabulary


class StackedLSTM(nn.Module):
    """Embedding, stacked LSTM, and two linear layers on its last output [Marathe, §5]."""

    def __init__(
        self, classes: int, vocabulary: int, embedding: int, hidden: int, layers: int, padding: int | None
    ) -> None:
        super().__init__()
        self._padding = padding
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [item, class] of windows of tokens [item, position]."""
        outputs, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.outer(self.inner(_last(outputs, tokens, self._padding)).relu())
        return scores


def stacked_lstm(
    features: int,
    classes: int,
    vocabulary: Vocabulary | None = None,
    embedding: Size = 8,
    hidden: Size = 256,
    layers: Depth = 2,
    padding: Token | None = None,
) -> nn.Module:
    """The character model of the paper; what comes next is one of the characters that came before."""
    return StackedLSTM(classes, _tokens(vocabulary or classes, padding), embedding, hidden, layers, padding)


class LastState(nn.Module):
    """Embedding and LSTM: what is left of a window of characters after the last one, or after each.

    With `spare`, each token has so many more numbers for the LSTM to read, which are zero until a private run trains
    them; public text says how much each may move (`gate_directions`).
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        hidden: int,
        layers: int,
        padding: int | None,
        every: bool = False,
        spare: int = 0,
    ) -> None:
        super().__init__()
        self.padding, self.every = padding, every
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding + spare, hidden, layers, batch_first=True)
        self.spare: nn.Embedding | None = None
        if spare:
            self.spare = nn.Embedding(vocabulary, spare)
            nn.init.zeros_(self.spare.weight)
            self.register_buffer("scale", torch.ones(vocabulary))
            self.scale: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """The state [item, hidden] after windows of tokens [item, position]; of `every`, [item, position, hidden]."""
        states = self.every_state(tokens)
        return states if self.every else _last(states, tokens, self.padding)

    def every_state(self, tokens: Tensor) -> Tensor:
        """The states [item, position, hidden] after each token."""
        states: Tensor = self.lstm(self.shown(tokens))[0]
        return states

    def shown(self, tokens: Tensor) -> Tensor:
        """What the LSTM reads of tokens [item, position]: [item, position, number]."""
        shown: Tensor = self.embedding(tokens)
        if self.spare is None:
            return shown
        return torch.cat([shown, self.spare(tokens) * self.scale[tokens][..., None]], 2)


def whitened_lstm(
    features: int,
    classes: int,
    vocabulary: Vocabulary | None = None,
    embedding: Size = 32,
    hidden: Size = 256,
    layers: Depth = 1,
    code: Size | None = None,
    padding: Token | None = None,
    every_position: bool = False,
    spare: Spare = 0,
) -> nn.Module:
    """A character model made to be started from public text: its last layer sees states that are whitened by that text.

    Without a public start it trains like any other. With one, the last layer alone may be enough. A `code` of fewer
    numbers than `hidden` between the two makes that layer smaller, and with it the noise of private training. With
    `every_position` it scores what follows each token of a window, [item, position · class], with the same parameters.
    A public start with `spare` numbers for each token lets a private run train these (`0.spare.weight`), which reach
    the gates of the LSTM in the directions that matter.
    """
    tokens = _scored_tokens(features, classes, padding, every_position)
    if spare and layers > 1:
        raise ModelError("spare numbers are for an LSTM of one layer")
    known = _tokens(vocabulary or tokens, padding)
    states = LastState(known, embedding, hidden, layers, padding, every_position, spare)
    coded = [nn.Linear(hidden, code), Whiten(code)] if code is not None else [Whiten(hidden)]
    together = [nn.Flatten(1)] if every_position else []
    return nn.Sequential(states, *coded, nn.Linear(code or hidden, tokens), *together)


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

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """[item, position, width] to the same shape; what is not present [item, position] is not attended to."""
        parts = self.fused(self.first(x)).chunk(3, 2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.prefix is not None:
            keys, values = (each.expand(len(x), -1, -1, -1) for each in self.prefix.unbind())
            key, value = torch.cat((keys, key), 2), torch.cat((values, value), 2)
        mask = _causal_mask(query.shape[2], key.shape[2], present, x.device)
        seen = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))
        outputs: Tensor = x + self.drop(self.outer(gelu(self.inner(self.second(x)))))
        return outputs


def _causal_mask(length: int, keys: int, present: Tensor | None, device: torch.device) -> Tensor | None:
    """Which keys each position attends to: all of a prefix, itself, and what came before and is present.

    None where that is simply what came before.
    """
    if present is None and keys == length:
        return None
    before = torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)
    if present is None:
        return before
    itself = before.triu(keys - length)
    known = torch.nn.functional.pad(present, (keys - length, 0), value=True)
    return before & known[:, None, None] | itself


class CausalTransformer(nn.Module):
    """Tables of tokens and places, causal blocks, and scores of what follows the last token, or each."""

    def __init__(
        self,
        length: int,
        classes: int,
        vocabulary: int,
        width: int,
        heads: int,
        layers: int,
        dropout: float,
        padding: int | None,
        every: bool = False,
    ) -> None:
        super().__init__()
        self.padding, self.every = padding, every
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(CausalBlock(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, classes)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [item, class] of windows of tokens [item, position]; of `every`, [item, position · class]."""
        if self.every:
            return self.score_all(tokens).flatten(1)
        scores: Tensor = self.head(self.norm(_last(self.every_state(tokens), tokens, self.padding)))
        return scores

    def score_all(self, tokens: Tensor) -> Tensor:
        """Scores of what follows each token [item, position, class]."""
        scores: Tensor = self.head(self.norm(self.every_state(tokens)))
        return scores

    def every_state(self, tokens: Tensor) -> Tensor:
        """What the blocks make of each token and those before it [item, position, width]."""
        x: Tensor = self.tokens(tokens) + self.places[: tokens.shape[1]]
        present = None if self.padding is None else tokens != self.padding
        for block in self.blocks:
            x = block(x, present)
        return x


def causal_transformer(
    features: int,
    classes: int,
    vocabulary: Vocabulary | None = None,
    width: Size = 32,
    heads: Size = 4,
    layers: Depth = 2,
    dropout: Chance = 0.0,
    padding: Token | None = None,
    every_position: bool = False,
) -> nn.Module:
    """A small transformer of the present kind: norms first, learned places, causal attention.

    With `every_position` it scores what follows each token of a window, [item, position · class], with the same
    parameters.
    """
    if width % heads:
        raise ModelError(f"its width ({width}) must be a multiple of its heads ({heads})")
    tokens = _scored_tokens(features, classes, padding, every_position)
    known = _tokens(vocabulary or tokens, padding)
    return CausalTransformer(features, tokens, known, width, heads, layers, dropout, padding, every_position)


def _tokens(vocabulary: int, padding: int | None) -> int:
    """How many tokens a model knows, of which the padding is one."""
    if padding is not None and padding >= vocabulary:
        raise ModelError(f"its padding ({padding}) must be a token of its vocabulary, which has {vocabulary}")
    return vocabulary


def _scored_tokens(features: int, classes: int, padding: int | None, every_position: bool) -> int:
    """How many tokens a position can be followed by: with every position, all of them have as many classes together."""
    if not every_position:
        return classes
    if padding is not None or classes % features:
        raise ModelError("every_position is for windows of one length, of data with every_position = true")
    return classes // features


def _last(outputs: Tensor, tokens: Tensor, padding: int | None) -> Tensor:
    """What stands at the last position of each item's text."""
    return outputs[:, -1] if padding is None else take_last(outputs, tokens != padding)


def score_positions(model: nn.Module, tokens: Tensor) -> Tensor | None:
    """Scores of what follows each token [item, position, class].

    None of a model that only reads whole windows, of texts of different lengths, and of one that scores them anyway.
    """
    if isinstance(model, CausalTransformer) and model.padding is None and not model.every:
        return model.score_all(tokens)
    first = model[0] if type(model) is nn.Sequential else None
    if not isinstance(first, LastState) or first.padding is not None or first.every:
        return None
    scores: Tensor = model[1:](first.every_state(tokens))  # type: ignore[index]
    return scores


class Bigram(nn.Module):
    """Scores by the last token alone: a row of a table."""

    def __init__(self, classes: int, vocabulary: int, padding: int | None) -> None:
        super().__init__()
        self._padding = padding
        self.table = nn.Embedding(vocabulary, classes)
        nn.init.normal_(self.table.weight, std=0.01)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [item, class] of windows of tokens [item, position]."""
        last = tokens[:, -1] if self._padding is None else take_last(tokens[:, :, None], tokens != self._padding)[:, 0]
        scores: Tensor = self.table(last)
        return scores


def bigram(
    features: int, classes: int, vocabulary: Vocabulary | None = None, padding: Token | None = None
) -> nn.Module:
    """A table of what follows what: few enough parameters for few speakers."""
    return Bigram(classes, _tokens(vocabulary or classes, padding), padding)


class BagOfTokens(nn.Module):
    """Scores by how often each token occurs: the mean of rows of a table.

    There is no constant beside it: its gradient would be larger than all others, and fill what is clipped.
    """

    def __init__(self, classes: int, vocabulary: int, padding: int | None) -> None:
        super().__init__()
        self._padding = padding
        self.table = nn.Embedding(vocabulary, classes)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [item, class] of texts [item, position]."""
        rows = self.table(tokens)
        if self._padding is None:
            mean: Tensor = rows.mean(1)
            return mean
        present = (tokens != self._padding).to(rows.dtype)[:, :, None]
        scores: Tensor = (rows * present).sum(1) / present.sum(1).clamp(min=1)
        return scores


def bag_of_tokens(
    features: int, classes: int, vocabulary: Vocabulary | None = None, padding: Token | None = None
) -> nn.Module:
    """A linear model of counts of tokens: few parameters, and often the best that little data and noise allow."""
    return BagOfTokens(classes, _tokens(vocabulary or classes, padding), padding)
