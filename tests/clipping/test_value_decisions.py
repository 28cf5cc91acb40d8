"""Models that look at the values of their inputs are found, however they look."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, scaled_dot_product_attention

from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.rounding import SLACK
from wholegrain.clipping.value_decisions import find_decision

TOKENS = torch.randint(0, 4, (6, 5), generator=torch.Generator().manual_seed(0))


def overwritten(tokens: Tensor) -> Tensor:
    constants = torch.zeros(6, 5, dtype=torch.int64)
    constants[0].copy_(tokens[0])
    return tokens * constants.max().item()


DECISIONS: dict[str, Callable[[Tensor], object]] = {
    "truth": lambda x: x if x.sum() > 3 else -x,
    "contains": lambda x: x if 0 in x else -x,
    "slice": lambda x: x[:, : (x != 0).sum(1).max()],
    "narrow": lambda x: x.narrow(1, 0, x.max()),
    "arange": lambda x: torch.arange(x.max() + 1),
    "zeros": lambda x: torch.zeros(x.max() + 1),
    "mask": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0),
    "one hot": lambda x: one_hot(x),
    "repeat": lambda x: torch.ones(30).repeat_interleave(x.flatten()),
    "split": lambda x: torch.tensor_split(torch.ones(30), x.flatten()[:2]),
    "words": lambda x: len(f"{x.max()}") * x,
    "list": lambda x: torch.tensor([x.max(), 3])[0].item() * x,
    "memory": lambda x: x.untyped_storage()[0] * x,
    "overwritten": overwritten,
    "packed": lambda x: nn.utils.rnn.pack_padded_sequence(x[..., None], x.max(1).values + 1, True, False),
    "nested": lambda x: torch._nested_tensor_from_mask_left_aligned(x[..., None].float(), x > -1),
    "vmap": lambda x: torch.vmap(lambda row: row * 2)(x).max().item() * x,
}
HARMLESS: dict[str, Callable[[Tensor], object]] = {
    "shapes": lambda x: x.reshape(x.shape[0] * 5).size(0) * len(x) * x,
    "constants": lambda x: x * torch.arange(4).max().item() * int(torch.ones_like(x).sum()),
    "looked up": lambda x: torch.arange(9.0)[x],
    "one hot": lambda x: one_hot(x, 4),
    "masked": lambda x: x.masked_fill(x > 1, 0).clone().index_fill_(1, torch.tensor([0]), 0),
    "assigned": lambda x: x.clone().__setitem__(x > 1, 0),
    "attention": lambda x: scaled_dot_product_attention(*(x[None].float(),) * 3, is_causal=True),
    "vmap": lambda x: torch.vmap(lambda row: row * row.sum())(x),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_by_values_is_seen(name: str) -> None:
    found = find_decision(DECISIONS[name], TOKENS)
    assert found is not None
    assert "decides by the values" in found


@pytest.mark.parametrize("name", HARMLESS)
def test_what_follows_from_shapes_and_constants_is_no_decision(name: str) -> None:
    assert find_decision(HARMLESS[name], TOKENS) is None


class Trimmed(nn.Module):
    """Looks no further than the longest item of the batch, as many programs do; a last bit of a sum decides."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : (x != 0).sum(1).max()]
        return self.head((self.scale(x.sum(1, keepdim=True)) * 1e9).tanh())


@pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")
def test_the_longest_item_of_a_batch_does_not_change_the_others() -> None:
    """A sum of 50 values and one of 100, of which half are zero, are added up in different orders: 17.9 C."""
    torch.manual_seed(0)
    model, count = Trimmed(), 200
    values = torch.randn(count, 50)
    inputs = torch.cat([values - values.mean(1, keepdim=True), torch.zeros(count, 50)], 1)
    inputs[-1] = torch.rand(100) + 1
    targets, table = torch.arange(count) % 2, scatter_codes(np.arange(count))
    engine, vector, clip = BookKeeping(model, cross_entropy), flatten(model), Clip(ClipPer.ITEM, Pool.SUM, 1e-3)

    def total(left: np.ndarray) -> Tensor:
        buckets = Buckets(table, left, float(count), float(count), largest=1)
        return engine(vector, inputs[left], targets[left], torch.arange(len(left)), clip, buckets).total.double()

    moved = total(np.arange(count)) - total(np.arange(count - 1))
    assert float(moved.norm()) <= clip.norm * (1 + SLACK)
