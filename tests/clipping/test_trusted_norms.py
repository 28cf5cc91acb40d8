"""Whose norm is trusted, and who goes to the reference, depends on nobody else."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.clip_units import Buckets, Units, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.gradient_norms import gradient_lengths, merge_uses
from wholegrain.clipping.layers.embedding import EmbeddingShare
from wholegrain.clipping.parameters import Layout, Slot, flatten
from wholegrain.clipping.rounding import SLACK

WIDTH, POSITIONS, PEOPLE = 37, 6, 60


class Chaos(nn.Module):
    """Positions of one token that nearly cancel, beside an output that is the sign of a rounding error."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.flat = nn.Embedding(9000, 2), nn.Linear(2 * POSITIONS, 2, bias=False)
        self.lift, self.large = nn.Linear(2, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, 2, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head((self.large(self.lift(x[:, 0].detach())) * 1e7).tanh()) + self.flat(x.flatten(1))


def chosen_by_a_server(model: nn.Module) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    vector = flatten(model)
    views = Layout.of(model).views(vector)
    noise = torch.randn(WIDTH, WIDTH, generator=draws)
    views["large.weight"].copy_(noise - noise.mean(1, keepdim=True))
    views["lift.weight"].fill_(0.5)
    views["table.weight"].copy_(torch.arange(9000)[:, None] % 7 + 1.0)
    views["head.weight"].normal_(generator=draws)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -0.915])
    views["flat.weight"].copy_((3 * signs[None, :, None] * torch.tensor([[[1.0, 2.0]], [[-1.0, -2.0]]])).flatten(1))
    return vector


@pytest.mark.parametrize("pool", Pool)
def test_one_large_subject_does_not_send_the_others_to_the_reference(pool: Pool) -> None:
    """Where engine and reference differ in a last bit, everybody's contribution turned round: 7.7 C."""
    model = Chaos()
    engine, vector, clip = BookKeeping(model, cross_entropy), chosen_by_a_server(model), Clip(ClipPer.SUBJECT, pool, 1)
    subjects = np.repeat(np.arange(PEOPLE + 1), [1] * PEOPLE + [8])
    tokens = torch.from_numpy(subjects % 7)[:, None].expand(-1, POSITIONS).contiguous()
    targets, table = torch.from_numpy(subjects % 2), scatter_codes(subjects * 7919)

    def total(left: np.ndarray) -> Tensor:
        _, groups = np.unique(subjects[left], return_inverse=True)
        buckets = Buckets(table, left, float(PEOPLE), PEOPLE + 8.0, largest=8)
        return engine(vector, tokens[left], targets[left], torch.from_numpy(groups), clip, buckets).total.double()

    everybody = np.arange(len(subjects))
    moved = total(everybody) - total(everybody[subjects != PEOPLE])
    assert float(moved.norm()) <= 1 + SLACK


def positions_that_cancel() -> tuple[Tensor, ...]:
    """One layer at several positions; at each step of cancelling, from not at all to nearly everything."""
    outward = torch.ones(60, POSITIONS, 96)
    outward[:, 1::2] *= -1 + 10.0 ** -torch.linspace(0, 6, 60)[:, None, None]
    return outward, torch.ones(60, POSITIONS, 96)


def uses_that_cancel() -> tuple[Tensor, ...]:
    """One table looked up twice, with gradients that are nearly opposite."""
    outward = torch.ones(60, POSITIONS, 2)
    return outward, outward * (-1 + 10.0 ** -torch.linspace(0, 6, 60)[:, None, None])


def shares_of(kind: str, values: Sequence[Tensor]) -> list[Share]:
    if kind == "positions":
        return [Outer(values[0], ((Slot("weight"), values[1]),), ())]
    tokens = torch.zeros(values[0].shape[:2], dtype=torch.int64)
    return [EmbeddingShare(Slot("table"), tokens, each, 9000) for each in values]


@pytest.mark.parametrize("kind", ["positions", "uses"])
def test_a_norm_is_trusted_in_any_company(kind: str) -> None:
    given = positions_that_cancel() if kind == "positions" else uses_that_cancel()

    def trusted(sizes: list[int]) -> Tensor:
        items, units = sum(sizes), Units.of_sizes(np.array(sizes))
        more = [torch.cat([each, each[:1].expand(items - 60, *each.shape[1:])]) for each in given]
        return gradient_lengths(merge_uses(shares_of(kind, more)), units).squared[:60].isfinite()

    alone = trusted([1] * 60)
    assert 0 < int(alone.sum()) < 60
    assert torch.equal(trusted([1] * 60 + [30]), alone)


def test_looked_up_rows_are_measured_as_they_are_summed() -> None:
    """Positions of one token that nearly cancel leave a norm that is certain: that of the row which is summed."""
    outward = torch.ones(60, POSITIONS, 2)
    outward[:, 1::2] *= -1 + 10.0 ** -torch.linspace(0, 6, 60)[:, None, None]
    share = EmbeddingShare(Slot("table"), torch.zeros(60, POSITIONS, dtype=torch.int64), outward, 9000)
    found = gradient_lengths(merge_uses([share]), Units.of_items(60)).squared
    torch.testing.assert_close(found, outward.sum(1).square().sum(1), rtol=1e-4, atol=1e-20)
