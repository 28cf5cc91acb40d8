"""Items and parameters that are not finite count as zero and are counted; what is only large is clipped."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from agreement import MODES, Around, Batch, assert_agrees, assert_same, item_gradients, program_of, wavy
from effort import examples
from wholegrain.clipping.clipping import Clip, ClipPer, pool_gradients
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.traced import TracedGradients

MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (4,)),
    "cnn": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(15, 2)), (2, 4)),
    "lstm": (lambda: Around(nn.LSTM(3, 4, batch_first=True), lambda outs: outs[0].mean(1)), (2, 3)),
    "tapped": (lambda: nn.Sequential(nn.Linear(4, 4), Shift(), nn.Linear(4, 2)), (4,)),
}


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.by).tanh()


def fresh(name: str, seed: int, dtype: torch.dtype, items: int) -> tuple[nn.Module, Batch]:
    make, shape = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().to(dtype)
        inputs, targets = torch.randn(items, *shape, dtype=dtype), torch.randn(items, dtype=dtype)
        return model, Batch(inputs, targets, torch.randint(3, (items,)))


@pytest.mark.filterwarnings("ignore:There is no gradient rule")
@pytest.mark.parametrize("name", MODELS)
@given(
    seed=st.integers(0, 1000),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    items=st.sampled_from((1, 2, 7)),
    memory=st.sampled_from((MEMORY, 1)),
    value=st.sampled_from((math.nan, math.inf, -math.inf)),
    data=st.data(),
)
@examples(8)
def test_items_that_are_not_finite(
    name: str, seed: int, dtype: torch.dtype, items: int, memory: int, value: float, data: st.DataObject
) -> None:
    model, batch = fresh(name, seed, dtype, items)
    engine, vector = BookKeeping(model, wavy, memory), flatten(model)
    bad = data.draw(st.lists(st.integers(0, items - 1), min_size=1, unique=True))
    inputs = batch.inputs.clone()
    inputs[bad, 0] = value
    assert_agrees(engine, model, wavy, vector, Batch(inputs, batch.targets, batch.groups), norm=0.5)
    # What they left in any buffer is gone.
    assert_agrees(engine, model, wavy, vector, batch, norm=0.5)


def test_the_others_are_as_if_it_had_not_been_there() -> None:
    model, batch = fresh("mlp", 0, torch.float64, 5)
    engine, clip = BookKeeping(model, wavy), Clip(*MODES[1], norm=0.5)
    inputs = batch.inputs.clone()
    inputs[2] = math.nan
    with_it = engine(flatten(model), inputs, batch.targets, batch.groups, clip)
    keep = torch.tensor([0, 1, 3, 4])
    without = engine(flatten(model), inputs[keep], batch.targets[keep], batch.groups[keep], clip)
    torch.testing.assert_close(with_it.total, without.total, rtol=0, atol=1e-14)
    assert (with_it.zeroed, without.zeroed) == (1, 0)


@pytest.mark.parametrize("memory", [MEMORY, 1])
@pytest.mark.parametrize("scale", [1e20, 1e25, 1e30])
@pytest.mark.parametrize("mode", MODES[1:], ids="/".join)
def test_gradients_whose_squares_overflow_are_clipped(mode, scale: float, memory: int) -> None:
    model, generator = nn.Linear(4, 3), torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 4, generator=generator)
    inputs[[1, 4]] *= scale
    batch = Batch(inputs, torch.arange(6) % 3, torch.tensor([0, 0, 1, 1, 2, 2]))
    vector, clip = torch.zeros(15), Clip(*mode, norm=0.5)
    expected = pool_gradients(item_gradients(model, cross_entropy, vector, batch), batch.groups, clip)
    assert expected.zeroed == 0
    assert float(expected.total.norm()) > 0.1
    actual = BookKeeping(model, cross_entropy, memory)(vector, batch.inputs, batch.targets, batch.groups, clip)
    assert_same(actual, expected)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
@pytest.mark.parametrize("mode", MODES, ids="/".join)
def test_parameters_that_are_not_finite(name: str, mode) -> None:
    model, batch = fresh(name, 0, torch.float32, 5)
    engine, clip, vector = BookKeeping(model, wavy), Clip(*mode, norm=0.5), flatten(model)
    engine(vector, batch.inputs, batch.targets, batch.groups, clip)
    pooled = engine(vector * math.nan, batch.inputs, batch.targets, batch.groups, clip)
    assert not pooled.total.any()
    counted = {ClipPer.BATCH: 1, ClipPer.SUBJECT: int(batch.groups.unique().numel())}
    assert pooled.zeroed == counted.get(clip.per, 5)
    # And the parameters before are not forgotten.
    assert_agrees(engine, model, wavy, vector, batch, norm=0.5)


def test_one_parameter_that_is_infinite() -> None:
    model, batch = fresh("lstm", 0, torch.float32, 5)
    engine, vector = BookKeeping(model, wavy), flatten(model)
    assert_agrees(engine, model, wavy, vector, batch, norm=0.5)
    assert isinstance(program_of(engine), TracedGradients)
    vector[-1] = math.inf
    expected = item_gradients(model, wavy, vector, batch)
    for mode in MODES:
        clip = Clip(*mode, norm=0.5)
        pooled = engine(vector, batch.inputs, batch.targets, batch.groups, clip)
        reference = pool_gradients(expected, batch.groups, clip)
        assert torch.isfinite(pooled.total).all()
        assert pooled.zeroed >= reference.zeroed
