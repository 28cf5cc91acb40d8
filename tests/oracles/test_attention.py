"""nn.MultiheadAttention by itself, and inside the library's transformer layers."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from agreement import World, worlds
from effort import examples

WIDTH, HEADS, TIMES, SEEN = 4, 2, 3, 5


def masks(kind: str, like: Tensor, items: int, queries: int) -> dict[str, Tensor]:
    """Every query may look at the first position, so that no row is empty."""
    blocked = torch.arange(SEEN)[None] > torch.arange(queries)[:, None]
    scores = torch.linspace(-1, 1, queries * SEEN, dtype=like.dtype).view(queries, SEEN)
    padded = (torch.arange(SEEN)[None] % 2 == 1).expand(items, SEEN)
    return {
        "none": {},
        "bool": {"attn_mask": blocked},
        "float": {"attn_mask": scores},
        "each head": {"attn_mask": blocked.expand(items * HEADS, queries, SEEN)},
        "padding": {"key_padding_mask": padded},
        "float padding": {"key_padding_mask": padded.to(like.dtype)},
        "both": {"attn_mask": scores, "key_padding_mask": padded.to(like.dtype)},
    }[kind]


class Attends(nn.Module):
    """Queries are the first positions, keys and values all of them, after maps of their own where they differ."""

    def __init__(self, source: str, mask: str, weights: bool, **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self._source, self._mask, self._weights = source, mask, weights

    def forward(self, x: Tensor) -> Tensor:
        rows = self.before(x)
        query, key, value = self._sources(rows)
        first = self.inner.batch_first
        if not first:
            query, key, value = self._time_first(query, key, value)
        given_masks = masks(self._mask, rows, len(x), SEEN if self._source == "self" else TIMES)
        out, weights = self.inner(query, key, value, need_weights=self._weights, **given_masks)
        out = out if first else out.transpose(0, 1)
        return out if weights is None else torch.cat([out.flatten(1), weights.flatten(1)], 1)

    def _sources(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._source == "self":
            return rows, rows, rows
        if self._source == "cross":
            return rows[:, :TIMES], *(self.other(rows),) * 2
        return rows[:, :TIMES], self.other(rows), rows.sin()

    @staticmethod
    def _time_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        turned = query.transpose(0, 1)
        if query is key:
            return (turned,) * 3
        keys = key.transpose(0, 1)
        return turned, keys, keys if key is value else value.transpose(0, 1)


@given(
    worlds(),
    st.sampled_from(("self", "cross", "apart")),
    st.sampled_from(("none", "bool", "float", "each head", "padding", "float padding", "both")),
    st.booleans(),
    st.fixed_dictionaries({"bias": st.booleans(), "batch_first": st.booleans()}),
)
@examples(16)
@pytest.mark.slow
def test_attention(world: World, source: str, mask: str, weights: bool, options: dict[str, bool]) -> None:
    def make() -> nn.Module:
        model = Attends(source, mask, weights, **options)
        model.other.requires_grad_(source != "self")  # which uses no other
        return model

    world.compare(make, (SEEN, WIDTH))


@given(worlds(), st.booleans(), st.booleans())
@examples(8)
@pytest.mark.slow
def test_transformer_layer(world: World, norm_first: bool, training: bool) -> None:
    world.compare(
        lambda: nn.TransformerEncoderLayer(8, 2, 6, 0.0, batch_first=True, norm_first=norm_first).train(training),
        (4, 8),
    )


@given(worlds())
@examples(4)
def test_one_attention_used_twice(world: World) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            once = self.inner(x, x, x, need_weights=False)[0]
            return self.inner(once, once, once)[0]

    world.compare(Twice, (TIMES, WIDTH))
