"""LSTM and GRU, of any depth and direction, from any beginning, by whatever of their outputs is used."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from agreement import Around, World, worlds
from effort import examples

HIDDEN = 4
PICKS: dict[str, Callable[..., Tensor]] = {
    "all": lambda out, end: out,
    "last": lambda out, end: out[:, -1],
    "mean": lambda out, end: out.mean(1),
    "h": lambda out, end: ends(end)[0],
    "c": lambda out, end: ends(end)[-1],
    "all and c": lambda out, end: torch.cat([out.flatten(1), ends(end)[-1].flatten(1)], 1),
}


def ends(end: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Last states, with items first."""
    return tuple(state.transpose(0, 1) for state in (end if isinstance(end, tuple) else (end,)))


class Sequences(nn.Module):
    """A recurrent module, from zeros or from states that depend on the item, behind a layer that needs its gradient."""

    def __init__(self, kind: type[nn.RNNBase], pick: str, begins: bool, **options: object) -> None:
        super().__init__()
        self.before = nn.Linear(3, 3)
        self.inner = kind(3, HIDDEN, **options)
        self.states = self.inner.num_layers * (2 if self.inner.bidirectional else 1)
        self.begin = nn.Linear(3, self.states * HIDDEN) if begins else None
        self._pick = PICKS[pick]

    def forward(self, x: Tensor) -> Tensor:
        first = self.inner.batch_first
        rows = self.before(x).tanh()
        out, end = self.inner(rows if first else rows.transpose(0, 1), self._beginning(rows))
        return self._pick(out if first else out.transpose(0, 1), end)

    def _beginning(self, rows: Tensor) -> Tensor | tuple[Tensor, Tensor] | None:
        if self.begin is None:
            return None
        state = self.begin(rows[:, 0]).view(len(rows), self.states, HIDDEN).transpose(0, 1).contiguous()
        return (state, state * 2) if isinstance(self.inner, nn.LSTM) else state


@given(
    worlds(),
    st.sampled_from((nn.LSTM, nn.GRU)),
    st.sampled_from(sorted(PICKS)),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "num_layers": st.integers(1, 3),
            "bidirectional": st.booleans(),
            "bias": st.booleans(),
            "batch_first": st.booleans(),
        }
    ),
    st.integers(1, 4),
)
@examples(24)
@pytest.mark.slow
def test_recurrent(
    world: World, kind: type[nn.RNNBase], pick: str, begins: bool, options: dict[str, object], times: int
) -> None:
    world.compare(lambda: Sequences(kind, pick, begins, **options), (times, 3))


@given(worlds(), st.sampled_from((nn.LSTM, nn.GRU)))
@examples(4)
def test_wide_inputs_and_few_times(world: World, kind: type[nn.RNNBase]) -> None:
    # Here products of times with times are cheaper than gradients.
    world.compare(lambda: Around(kind(30, 10, batch_first=True), lambda outs: outs[0][:, -1]), (2, 30))


@given(worlds(), st.sampled_from((nn.LSTM, nn.GRU)))
@examples(4)
def test_embedded_tokens(world: World, kind: type[nn.RNNBase]) -> None:
    def make() -> nn.Module:
        layers = nn.Sequential(nn.Embedding(7, 3), kind(3, HIDDEN, 2, batch_first=True))
        return nn.Sequential(Around(layers, lambda outs: outs[0][:, -1]), nn.Linear(HIDDEN, 5))

    world.compare(make, (4,), tokens=7)


@given(worlds())
@examples(4)
def test_one_module_used_for_two_sequences(world: World) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.GRU(3, HIDDEN, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            forth, state = self.inner(x)
            back, _ = self.inner(x.flip(1), state)
            return forth[:, -1] * back[:, -1]

    world.compare(Twice, (3, 3))
