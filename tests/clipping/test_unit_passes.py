"""Gradients in passes of one unit: sums of the reference, and nobody changes what is computed of others."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from effort import amount
from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.devices import HOST, USUAL, Compute
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.losses import squared_error
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import clipped_sum
from wholegrain.clipping.rounding import SLACK
from wholegrain.clipping.unit_passes import ROWS, UnitPasses
from wholegrain.errors import ModelError
from wholegrain.models.dropout import with_item_coins
from wholegrain.models.model_catalog import build

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import clip_fuzz

HALF = Compute(HOST, torch.bfloat16)
CLIPS = [(per, pool) for per in ClipPer for pool in Pool if (per, pool) != (ClipPer.BATCH, Pool.SUM)]
every_clip = pytest.mark.parametrize(("per", "pool"), CLIPS)


def batch(sizes: list[int], shape: tuple[int, ...] = (6,), classes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    order = torch.randperm(len(groups), generator=draws)
    inputs = torch.randn(len(groups), *shape, generator=draws)
    return inputs, torch.randint(classes, (len(groups),), generator=draws), groups[order]


def network() -> nn.Module:
    return build("mlp", 6, 3, seed=1, options={"hidden": (8,)})


def test_the_usual_arithmetic_keeps_its_engine() -> None:
    assert isinstance(clipped_sums(network(), cross_entropy, USUAL).engine, BookKeeping)
    assert isinstance(clipped_sums(network(), cross_entropy, HALF).engine, UnitPasses)


@every_clip
@pytest.mark.parametrize("norm", [1e-3, 0.5, 100.0])
def test_sums_are_those_of_the_reference(per: ClipPer, pool: Pool, norm: float) -> None:
    model, clip = network(), Clip(per, pool, norm)
    given = batch([2, 1, 5, 3])
    expected = clipped_sum(model, cross_entropy, flatten(model), *given, clip)
    found = UnitPasses(model, cross_entropy, USUAL)(flatten(model), *given, clip)
    torch.testing.assert_close(found.total, expected.total.double(), rtol=1e-5, atol=1e-5 * norm)
    assert found.zeroed == expected.zeroed == 0


@pytest.mark.parametrize("kind", clip_fuzz.KINDS)
def test_every_kind_of_model_agrees_with_the_reference(kind: str) -> None:
    torch.manual_seed(3)
    made = clip_fuzz.KINDS[kind]
    model, clip = made.make(), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3)
    inputs, targets, groups = batch([2, 1, 3], made.shape)
    if made.tokens:
        inputs = torch.randint(made.tokens, inputs.shape)
    expected = clipped_sum(model, cross_entropy, flatten(model), inputs, targets, groups, clip).total.double()
    for compute, close in ((USUAL, 1e-5), (HALF, 0.1)):
        found = UnitPasses(model, cross_entropy, compute)(flatten(model), inputs, targets, groups, clip).total
        assert float((found - expected).norm()) <= close * float(expected.norm())


@pytest.mark.parametrize("per", [ClipPer.SUBJECT, ClipPer.BATCH, ClipPer.NONE])
def test_a_unit_of_more_items_than_a_pass_takes_several(per: ClipPer) -> None:
    model, given, clip = network(), batch([2 * ROWS + 7, 3]), Clip(per, Pool.MEAN, 0.3)
    expected = clipped_sum(model, cross_entropy, flatten(model), *given, clip).total.double()
    found = UnitPasses(model, cross_entropy, USUAL)(flatten(model), *given, clip).total
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


COMMON = ("linear", "conv2d", "layer norm", "embedding", "lstm", "encoder")
"""Kinds of model that are played in single precision by `make test`, too: autograd computes units of all of them."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "compute"),
    [
        *((kind, HALF) for kind in clip_fuzz.KINDS),
        *(pytest.param(kind, USUAL, marks=() if kind in COMMON else pytest.mark.slow) for kind in clip_fuzz.KINDS),
    ],
    ids=str,
)
def test_no_finite_number_breaks_the_clip(kind: str, compute: Compute) -> None:
    found = list(clip_fuzz.fuzz(kind, amount(60, quick=6), seed=11, compute=compute))
    assert max(case.move for case in found) <= 1 + SLACK


class Rounding(nn.Module):
    """An output that is the sign of a rounding error, which a product over other rows may round otherwise."""

    def __init__(self, width: int = 67) -> None:
        super().__init__()
        self.lift, self.large = nn.Linear(1, width, bias=False), nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 3, bias=False)
        draws = torch.Generator().manual_seed(0)
        noise = torch.randn(width, width, generator=draws)
        with torch.no_grad():
            self.large.weight.copy_(noise - noise.mean(1, keepdim=True))
            self.lift.weight.fill_(0.5)
            self.head.weight.normal_(generator=draws)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.large(self.lift(x)) * 1e7).tanh())


@pytest.mark.parametrize("compute", [USUAL, HALF], ids=str)
def test_what_is_computed_of_others_stays_the_same_to_the_last_bit(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every subject leaves in turn; the gradients of those who stay are compared bit by bit."""
    model, clip = Rounding(), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
    engine, (inputs, targets, groups) = UnitPasses(model, cross_entropy, compute), batch([3, 1, 2, 4, 1, 7], (1,))
    seen: list[Tensor] = []
    one_unit = engine._gradient

    def watched(*given: object) -> Tensor:
        seen.append(one_unit(*given).clone())  # type: ignore[arg-type]
        return seen[-1].clone()

    monkeypatch.setattr(engine, "_gradient", watched)
    engine(flatten(model), inputs, targets, groups, clip)
    whole, moved = list(seen), 0
    for gone in range(6):
        seen.clear()
        left = groups != gone
        engine(flatten(model), inputs[left], targets[left], torch.unique(groups[left], return_inverse=True)[1], clip)
        assert len(seen) == 5
        for before, after in zip(whole[:gone] + whole[gone + 1 :], seen, strict=True):
            assert torch.equal(before, after)
        moved += not torch.equal(whole[gone], seen[gone - 1])
    assert moved == 6  # the gradients do differ from each other


def test_in_passes_of_all_items_somebody_does_change() -> None:
    """The reason for passes of one unit: with one row more, the same rows come out otherwise."""
    model, draws = Rounding(), torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 1, generator=draws)
    with torch.no_grad():
        alone = torch.cat([model(inputs[k : k + 1]) for k in range(40)])
        assert any(not torch.equal(model(inputs[:size]), alone[:size]) for size in range(2, 41))


class Wandering(nn.Module):
    """Computes something else in every call, as operations with atomics do."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(6, 3), step

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * (1 + self.step * os.urandom(1)[0]))


@pytest.mark.parametrize("compute", [USUAL, HALF], ids=str)
def test_a_model_that_does_not_repeat_itself_is_refused(compute: Compute) -> None:
    clip, given = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0), batch([2, 1])
    model = Wandering(step=0.01)
    with pytest.raises(ModelError, match="differ from call to call on cpu"):
        UnitPasses(model, cross_entropy, compute)(flatten(model), *given, clip)
    still = Wandering(step=0.0)
    UnitPasses(still, cross_entropy, compute)(flatten(still), *given, clip)


def test_each_shape_of_items_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    class Any(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)[:, None] * self.scale

    tried: list[torch.Size] = []
    repeats = UnitPasses._repeats
    monkeypatch.setattr(
        UnitPasses, "_repeats", lambda self, *given: (tried.append(given[1].shape), repeats(self, *given))[1]
    )
    engine, clip = UnitPasses(Any(), cross_entropy, HALF), Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    for width in (4, 5, 4, 5):
        engine(torch.ones(3), *batch([1, 1], (width,)), clip)
    assert [shape[1] for shape in tried] == [4, 5]


@every_clip
def test_a_gradient_that_is_not_finite_counts_as_zero(per: ClipPer, pool: Pool) -> None:
    model, (inputs, targets, groups) = network(), batch([1, 2, 2])
    inputs[groups == 1] = torch.inf
    found = UnitPasses(model, cross_entropy, USUAL)(flatten(model), inputs, targets, groups, Clip(per, pool, 1.0))
    assert bool(torch.isfinite(found.total).all())
    assert found.zeroed == {ClipPer.ITEM: 2}.get(per, 1)
    if per in (ClipPer.ITEM, ClipPer.SUBJECT):
        assert float(found.total.norm()) > 0


def test_parameters_that_are_not_finite_leave_nothing_of_anybody() -> None:
    model = network()
    vector = flatten(model)
    vector[3] = torch.nan
    found = UnitPasses(model, cross_entropy, USUAL)(vector, *batch([1, 2]), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0))
    assert not found.total.any()
    assert found.zeroed == 2


def test_an_empty_batch_is_zero() -> None:
    model, nobody = network(), torch.zeros(0, dtype=torch.int64)
    engine, clip = UnitPasses(model, cross_entropy, HALF), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
    found = engine(flatten(model), torch.zeros(0, 6), nobody, nobody, clip)
    assert found.total.dtype is torch.float64
    assert not found.total.any()


def test_small_gradients_do_not_underflow_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of 2⁻²⁶ is below half of what float16 can hold; scaled, it is not."""
    model = nn.Linear(4, 1, bias=False)
    inputs = torch.full((2, 4), 0.5)
    with torch.no_grad():
        model.weight.fill_(0.25)
    targets, groups = torch.full((2, 1), 0.5 - 2.0**-26, dtype=torch.float64), torch.tensor([0, 1])

    def off(outputs: Tensor, targets: Tensor) -> Tensor:
        return squared_error(outputs.double(), targets)

    clip, compute = Clip(ClipPer.ITEM, Pool.SUM, 1.0), Compute(HOST, torch.float16)
    found = UnitPasses(model, off, compute)(flatten(model), inputs, targets, groups, clip).total
    torch.testing.assert_close(found, torch.full((4,), 2.0**-26).double(), rtol=1e-3, atol=0)
    monkeypatch.setattr("wholegrain.clipping.devices.SCALES", {})
    assert not UnitPasses(model, off, compute)(flatten(model), inputs, targets, groups, clip).total.any()


def test_coins_of_dropout_are_the_items() -> None:
    """With one key, what is dropped is what the other engine drops; with another, something else."""
    model = with_item_coins(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    clip, given = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0), batch([3, 1, 2])
    engine, other = UnitPasses(model, cross_entropy, USUAL), BookKeeping(model, cross_entropy)
    assert engine.draws_coins
    found = []
    for key in (5, 6, 5):
        engine.renew_coins(key)
        found.append(engine(flatten(model), *given, clip).total)
        torch.testing.assert_close(found[-1], other(flatten(model), *given, clip).total.double(), rtol=1e-4, atol=1e-6)
    assert torch.equal(found[0], found[2])
    assert not torch.allclose(found[0], found[1])


def test_a_sum_of_many_is_in_double_precision() -> None:
    """Half precision of single passes does not reach the sum: 400 equal contributions of C each."""
    model, clip = nn.Linear(2, 2), Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    inputs, targets = torch.full((400, 2), 300.0), torch.zeros(400, dtype=torch.int64)
    vector = torch.zeros(6)
    groups = torch.from_numpy(np.arange(400))
    found = UnitPasses(model, cross_entropy, HALF)(vector, inputs, targets, groups, clip).total
    assert float(found.norm()) == pytest.approx(400, rel=1e-12)


@pytest.mark.parametrize("compute", [USUAL, HALF], ids=str)
def test_what_the_calling_program_has_set_makes_no_difference(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, multiply = set[tuple[int, torch.dtype]](), nn.Linear.forward

    def asking(layer: nn.Linear, x: Tensor) -> Tensor:
        outputs = multiply(layer, x)
        seen.add((torch.get_num_threads(), outputs.dtype))
        return outputs

    monkeypatch.setattr(nn.Linear, "forward", asking)
    model, clip, given = nn.Linear(6, 3), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0), batch([2, 1, 5, 3])
    engine, before = UnitPasses(model, cross_entropy, compute), torch.get_num_threads()
    expected = engine(flatten(model), *given, clip).total
    seen.clear()
    torch.set_num_threads(2)
    try:
        with torch.autocast("cpu", torch.bfloat16 if compute == USUAL else torch.float16):
            found = engine(flatten(model), *given, clip).total
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, expected)
    assert seen == {(1, compute.precision)}
