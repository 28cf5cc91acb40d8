"""Dropout by item: its law, and that nobody's coins depend on who else is there."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import wholegrain as wg
from agreement import Batch, assert_agrees, program_of, slow
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.rounding import SLACK
from wholegrain.clipping.traced import TracedGradients
from wholegrain.errors import ModelError
from wholegrain.models.dropout import DropoutByItem, draw_coins, seed_items, with_item_coins, without_dropout
from wholegrain.models.model_catalog import check_model

ITEMS, COINS, P = 400, 500, 0.3


def network(p: float = 0.5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 3))


def keep(inputs: Tensor, key: int = 5, first: int = 0) -> np.ndarray:
    """Which values are kept [item, coin]."""
    coins = draw_coins(seed_items(inputs, key, 7), first, COINS)
    return (coins >= int(P * 2**53)).numpy()


def test_the_law_of_coins() -> None:
    inputs = torch.rand(ITEMS, 6, generator=torch.Generator().manual_seed(1))
    kept = keep(inputs)
    spread = math.sqrt(P * (1 - P))
    # A bound that a fair generator passes but once in a million: 4.9 standard deviations.
    assert abs(kept.mean() - (1 - P)) < 4.9 * spread / math.sqrt(kept.size)
    for axis, count in ((0, ITEMS), (1, COINS)):
        z = (kept.mean(axis) - (1 - P)) * math.sqrt(count) / spread
        assert abs(float((z**2).mean()) - 1) < 4.9 * math.sqrt(2 / len(z))  # χ²: as much spread as chance has


@pytest.mark.parametrize("other", ["next coin", "next item", "next key", "last bit"])
def test_coins_are_independent_of_each_other(other: str) -> None:
    inputs = torch.rand(ITEMS, 6, generator=torch.Generator().manual_seed(1))
    changed = inputs.clone()
    changed[:, 3] = torch.nextafter(changed[:, 3], torch.ones(()))
    second = {
        "next coin": lambda: keep(inputs, first=1),
        "next item": lambda: np.roll(keep(inputs), 1, axis=0),
        "next key": lambda: keep(inputs, key=6),
        "last bit": lambda: keep(changed),
    }[other]()
    products = (keep(inputs) - (1 - P)) * (second - (1 - P))
    assert abs(products.mean()) < 4.9 * P * (1 - P) / math.sqrt(products.size)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.uint8], ids=str)
def test_an_item_has_the_same_coins_in_any_company(kind: torch.dtype) -> None:
    inputs = (torch.rand(50, 6, generator=torch.Generator().manual_seed(1)) * 200).to(kind)
    whole = seed_items(inputs, 1, 2)
    assert torch.equal(seed_items(inputs[7:8], 1, 2), whole[7:8])
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    assert torch.equal(seed_items(inputs[order], 1, 2), whole[order])
    assert len(whole.unique()) == 50


@pytest.mark.slow
def test_what_is_dropped_is_made_up_for() -> None:
    """The mean over keys is the value itself."""
    model = DropoutByItem(nn.Dropout(P))
    total, runs = torch.zeros(1, 40), 4000
    for key in range(runs):
        model.key.renew(key)
        total += model(torch.ones(1, 40))
    off = (total / runs - 1).abs().max()
    assert float(off) < 5.5 * math.sqrt(P / (1 - P) / runs)


def test_gradients_agree_with_the_reference_on_the_fast_way() -> None:
    model = with_item_coins(network())
    assert isinstance(model, DropoutByItem)
    engine = BookKeeping(model, cross_entropy)
    batch = Batch(torch.rand(9, 6), torch.arange(9) % 3, torch.arange(9) // 3)
    for key in (1, 2**127):
        engine.renew_coins(key)
        assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


def test_a_step_is_repeated_by_its_key_alone() -> None:
    model = with_item_coins(network())
    engine, vector = BookKeeping(model, cross_entropy), flatten(model)
    batch = torch.rand(9, 6), torch.arange(9) % 3, torch.arange(9)
    clip = Clip(ClipPer.ITEM, Pool.SUM, 1.0)

    def total(key: int) -> Tensor:
        engine.renew_coins(key)
        return engine(vector, *batch, clip).total

    random = torch.random.get_rng_state()
    first = total(3)
    assert not torch.equal(total(4), first)
    assert torch.equal(total(3), first)
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize("per", [ClipPer.ITEM, ClipPer.SUBJECT])
def test_removing_a_subject_leaves_the_coins_of_others(per: ClipPer) -> None:
    model = with_item_coins(network())
    engine, vector, people = BookKeeping(model, cross_entropy), flatten(model), 40
    inputs, targets = torch.rand(people, 6), torch.arange(people) % 3
    table, clip = scatter_codes(np.arange(people)), Clip(per, Pool.MEAN, 1e-3)
    engine.renew_coins(11)

    def total(left: np.ndarray) -> Tensor:
        buckets = Buckets(table, left, float(people), float(people), largest=1)
        return engine(vector, inputs[left], targets[left], torch.arange(len(left)), clip, buckets).total.double()

    everybody = np.arange(people)
    for gone in (0, 17, 39):
        moved = total(everybody) - total(np.delete(everybody, gone))
        assert float(moved.norm()) <= 1e-3 * (1 + SLACK)
        own = engine(vector, inputs[[gone]], targets[[gone]], torch.arange(1), clip).total.double()
        torch.testing.assert_close(moved, own, rtol=1e-4, atol=1e-9)


class Attends(nn.Module):
    """Weights of attention that are dropped, and whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.channels, self.head = nn.Linear(4, 12), nn.Dropout1d(0.4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        p = 0.5 if self.training else 0.0
        return self.head(self.channels(scaled_dot_product_attention(q, k, v, dropout_p=p)[:, 0]).mean(1))


def test_attention_and_channels_are_dropped_by_item() -> None:
    torch.manual_seed(0)
    model = with_item_coins(Attends())
    engine = BookKeeping(model, cross_entropy)
    engine.renew_coins(1)
    batch = Batch(torch.rand(9, 5, 4), torch.arange(9) % 3, torch.arange(9) // 3)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch)) == []


def test_dropout_is_off_where_a_model_predicts() -> None:
    model = with_item_coins(network())
    inputs = torch.rand(3, 6)
    with without_dropout(model):
        outputs = model(inputs)
    assert model.training
    assert all(module.training for module in model.modules())
    assert torch.equal(outputs, network().eval()(inputs))
    assert with_item_coins(network().eval()).__class__ is nn.Sequential
    assert with_item_coins(network(p=0.0)).__class__ is nn.Sequential


@pytest.mark.parametrize(
    "layer", [nn.LSTM(4, 4, 2, dropout=0.1), nn.MultiheadAttention(4, 2, dropout=0.1), nn.AlphaDropout(), nn.RReLU()]
)
def test_numbers_drawn_inside_a_layer_are_refused_unless_switched_off(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(ModelError, match=r"use nn\.Dropout, or switch it off"):
        check_model(model)
    assert check_model(model.eval()) is model


def test_a_seeded_run_with_dropout_is_repeated(coarse_prices: None) -> None:
    data = wg.clinics(patients=60, clinics=2, span=2)

    def trained(seed: int) -> Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2))
        run = wg.train(data, net, policy=wg.subject_dp(rate=1.0), epsilon=4, span=2, rounds=2, seed=seed)
        assert run.model is net
        return flatten(net)

    first = trained(1)
    assert torch.equal(trained(1), first)
    assert not torch.equal(trained(2), first)
