"""The clipped sum of a small dense model in one function is that of the rules."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from wholegrain.clipping.chain_backend import Chain
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.dense_chain import DenseChain
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.models.model_catalog import build

MODELS = {
    "logistic": lambda: build("logistic", 16, 3, 0),
    "mlp": lambda: build("mlp", 16, 2, 0),
    "deep, relu and sigmoid": lambda: nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.Sigmoid(), nn.Linear(16, 4)
    ),
    "wide": lambda: nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 16)),
}
CLIPS = {
    "item": Clip(ClipPer.ITEM, Pool.SUM, 0.3),
    "item, mean": Clip(ClipPer.ITEM, Pool.MEAN, 0.3),
    "subject": Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3),
    "subject, sum": Clip(ClipPer.SUBJECT, Pool.SUM, 0.3),
}


def batch_of(items: int, features: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(items)
    groups = torch.arange(items) * 2 // 3  # subjects of one and two items, in no order of sizes
    return torch.randn(items, features, generator=draws), torch.arange(items) % 2, groups


def engines(model: nn.Module) -> tuple[BookKeeping, BookKeeping, torch.Tensor]:
    """With the one function and without it."""
    vector = flatten(model) + 0.1 * torch.randn(flatten(model).shape, generator=torch.Generator().manual_seed(1))
    one, other = BookKeeping(model, cross_entropy), BookKeeping(model, cross_entropy)
    for engine in (one, other):
        inputs, targets, _ = batch_of(5)
        engine._prepare(vector, inputs, targets)
    (shape,) = other._by_shape
    other._chosen = other._by_shape[shape] = replace(other._by_shape[shape], dense=None)
    return one, other, vector


def assert_same(found: torch.Tensor, expected: torch.Tensor, clip: Clip) -> None:
    """Equal; subjects' rows are equal, and added up by one product instead of several, which may round otherwise."""
    assert torch.equal(found, expected) or clip.per is ClipPer.SUBJECT
    assert torch.allclose(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_the_rules(name: str, clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, vector = engines(MODELS[name]())
    written = []
    sum_up = DenseChain.sum_up
    monkeypatch.setattr(DenseChain, "sum_up", lambda *given: written.append(True) or sum_up(*given))
    for items in (1, 3, 17, 40, 64, 300, 500):
        batch = batch_of(items)
        public = Buckets(scatter_codes(batch[2].numpy()), np.arange(items), 170.0, 250.0, 2)
        assert_same(one(vector, *batch, clip, public).total, other(vector, *batch, clip, public).total, clip)
    small = vector.numel() <= 1 << 12
    assert written == [True] * 7 if small or clip.per is ClipPer.ITEM else not written


def test_it_follows_the_vector() -> None:
    one, other, vector = engines(MODELS["mlp"]())
    batch, clip = batch_of(20), CLIPS["subject"]
    for _ in range(3):
        found = one(vector, *batch, clip).total
        assert_same(found, other(vector, *batch, clip).total, clip)
        vector.sub_(found, alpha=0.5)  # in place
        vector = vector.clone() if float(vector[0]) < 1e9 else vector  # and at another place
        assert_same(one(vector, *batch, clip).total, other(vector, *batch, clip).total, clip)


@pytest.mark.parametrize("value", [1e30, 1e-30])
def test_norms_that_are_not_certain_go_the_other_way(value: float) -> None:
    one, other, vector = engines(MODELS["mlp"]())
    inputs, targets, groups = batch_of(20)
    inputs[3] = value
    for clip in CLIPS.values():
        found, expected = one(vector, inputs, targets, groups, clip), other(vector, inputs, targets, groups, clip)
        assert torch.equal(found.total, expected.total)
        assert found.zeroed == expected.zeroed


def test_other_models_have_none() -> None:
    frozen = MODELS["mlp"]()
    frozen[1].weight.requires_grad_(False)
    others = (frozen, nn.Sequential(nn.Linear(16, 8, bias=False)), nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8)))
    for model in others:
        engine, (inputs, targets, groups) = BookKeeping(model, cross_entropy), batch_of(5)
        engine(flatten(model), inputs, targets, groups, CLIPS["item"])
        assert engine._chosen is not None
        assert engine._chosen.dense is None
    regression = BookKeeping(nn.Linear(16, 1), mse_loss)
    inputs, targets, groups = batch_of(5)
    regression(torch.zeros(17), inputs, targets[:, None].float(), groups, CLIPS["item"])
    assert regression._chosen is not None
    assert regression._chosen.dense is None


def test_a_layer_that_is_used_twice_keeps_its_rule() -> None:
    """Its two gradients are summed before they are squared; squared apart, they would not agree with the reference."""
    shared = nn.Linear(16, 16)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.ReLU(), nn.Linear(16, 2))
    engine = BookKeeping(model, cross_entropy)
    engine(flatten(model), *batch_of(20), CLIPS["subject"])
    assert engine._chosen is not None
    assert isinstance(engine._chosen.program, Chain)
    assert engine._chosen.dense is None
