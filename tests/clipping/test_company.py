"""A model that mixes items, however little, is computed item by item."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.company import depends_on_company
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.rounding import SLACK
from wholegrain.silo.views import apply_view

PEOPLE = 60


class Whispers(nn.Module):
    """Adds a little of the batch's mean to every item."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.first, self.head, self.part = nn.Linear(4, 8), nn.Linear(8, 2), part

    def forward(self, x: Tensor) -> Tensor:
        """Too little to be seen in an output."""
        return self.head(self.first(x + self.part * x.mean(0, keepdim=True)).tanh())


def test_a_little_of_the_others_cannot_be_blown_up() -> None:
    model = Whispers(1e-5)
    vector = flatten(model)
    views = Layout.of(model).views(vector)
    views["first.weight"].zero_()[:, 0] = 1e9
    views["first.bias"].fill_(-1e9 * (0.5 + 0.49e-5))
    views["head.weight"].copy_(torch.tensor([[5.0], [-5.0]]).expand(2, 8))
    views["head.bias"].zero_()
    inputs, targets = torch.full((PEOPLE, 4), 0.5), torch.arange(PEOPLE) % 2
    inputs[0] = -1.0
    engine, numbers = BookKeeping(model, cross_entropy), scatter_codes(np.arange(PEOPLE) * 7919)

    def total(left: np.ndarray) -> Tensor:
        buckets = Buckets(numbers, left, float(PEOPLE), float(PEOPLE), largest=1)
        clip, groups = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0), torch.arange(len(left))
        return engine(vector, inputs[left], targets[left], groups, clip, buckets).total.double()

    with pytest.warns(UserWarning, match="one by one|vmap|slow"):
        whole = total(np.arange(PEOPLE))
    assert float((whole - total(np.arange(1, PEOPLE))).norm()) <= 1 + SLACK


def test_a_frozen_part_that_mixes_a_little_sees_one_item_at_a_time() -> None:
    def view(x: Tensor) -> Tensor:
        return x + 1e-7 * x.mean(0, keepdim=True)

    items = torch.rand(PEOPLE, 3, generator=torch.Generator().manual_seed(0))
    whole = apply_view(items, view, np.arange(PEOPLE))
    assert torch.equal(whole[1:], apply_view(items[1:], view, np.arange(1, PEOPLE)))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.LayerNorm(7), nn.Linear(7, 2)), (5,)),
        (nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), (1, 9, 9)),
        (nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)), (5, 8)),
    ],
    ids=["dense", "convolution", "attention"],
)
def test_models_that_keep_items_apart_are_not_taken_for_others(model: nn.Module, shape: tuple[int, ...]) -> None:
    items = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    assert not depends_on_company(lambda rows, _: model(rows), items)
    assert depends_on_company(lambda rows, _: model(rows + 1e-6 * rows.mean(0)), items)
