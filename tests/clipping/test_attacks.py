"""Attacks on proved programs: nobody moves the sum by more than the clip, whatever was thought of so far.

Last bits are what most of them are after: parameters, or a loss, that make another gradient of another last bit.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from wholegrain.clipping import verdicts
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import clipped_sum
from wholegrain.clipping.rounding import SLACK

pytestmark = pytest.mark.filterwarnings("ignore:The model's gradients are computed one unit at a time")
ITEMS = Clip(ClipPer.ITEM, Pool.MEAN, 0.01)
View = Callable[[Tensor], Tensor]


def as_it_is(inputs: Tensor) -> Tensor:
    return inputs


def turned(inputs: Tensor) -> Tensor:
    """The same values, with rows side by side in memory."""
    return inputs.t().contiguous().t()


def find_move(
    model: nn.Module, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], clip: Clip, lie: View = as_it_is
) -> float:
    """The most that a subject who leaves moves the sum, in clip norms; inputs lie in memory as told."""
    inputs, targets, groups = batch
    engine, vector, table = BookKeeping(model, loss), flatten(model), scatter_codes(groups.numpy().astype(np.int64))
    sizes = torch.bincount(groups)

    def total(left: Tensor) -> Tensor:
        buckets = Buckets(table, left.nonzero()[:, 0].numpy(), float(len(sizes)), float(len(groups)), int(sizes.max()))
        there = torch.unique(groups[left], return_inverse=True)[1]
        return engine(vector, lie(inputs[left]), targets[left], there, clip, buckets).total.double()

    whole = total(groups >= 0)
    return max(float((whole - total(groups != subject)).norm()) / clip.norm for subject in range(len(sizes)))


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) * (outputs - targets)).sum()


class LastBits(nn.Module):
    """A layer that sees the last bits of what comes before: a number is doubled until they are its first."""

    def __init__(self, view: View, like: Tensor) -> None:
        super().__init__()
        self.view = view
        self.weight = nn.Parameter(drawn(3, view(like).shape[1]) * 0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        bits = self.view(inputs).abs().clamp(max=1.0)
        for _ in range(24):
            bits = ((bits * 2 - 1).abs() - 1).neg()  # exact, and nothing that has to be tried
        return bits @ self.weight.t()


def attend(inputs: Tensor) -> Tensor:
    """Of a width at which heads begin at every place of a vector."""
    heads = inputs.view(len(inputs), 1, 9, 5)
    return functional.scaled_dot_product_attention(heads, heads, heads).flatten(1)


def mean_over_time(inputs: Tensor) -> Tensor:
    """With time first, as recurrent layers and transformers have it: what is added up lies beside other rows."""
    return inputs.view(len(inputs), 9, 5).transpose(0, 1).contiguous().mean(0)


def softmax_beside(inputs: Tensor) -> Tensor:
    """Along the first dimension, with rows in the last."""
    return torch.softmax(inputs[:, :9].t(), 0).t()


@pytest.mark.parametrize("count", [17, 20, 33])
@pytest.mark.parametrize("view", [attend, mean_over_time, softmax_beside], ids=lambda each: each.__name__)
def test_last_bits_of_others_stay(view: View, count: int) -> None:
    batch = drawn(count, 45), torch.zeros(count, 3), torch.arange(count)
    assert find_move(LastBits(view, batch[0]), squares, batch, ITEMS) <= 1 + SLACK


def length(inputs: Tensor) -> Tensor:
    return inputs.norm(dim=1, keepdim=True) * 0.05


@pytest.mark.parametrize("count", [17, 40, 65])
def test_inputs_may_lie_in_memory_as_they_like(count: int) -> None:
    batch = drawn(count, 45), torch.zeros(count, 3), torch.arange(count)
    assert find_move(LastBits(length, batch[0]), squares, batch, ITEMS, turned) <= 1 + SLACK


class CutByRows(nn.Module):
    """Uses as many values of a constant as there are rows; it has fewer than there are when it is recorded."""

    def __init__(self, kept: Tensor | nn.Parameter) -> None:
        super().__init__()
        self.weight, self.kept = nn.Parameter(drawn(3, 5)), kept

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs + self.kept[: len(inputs)].sum()) @ self.weight.t()


class SpanByRows(CutByRows):
    """Makes values up to the number of rows."""

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs + torch.linspace(0, len(inputs), 5)) @ self.weight.t()


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
@pytest.mark.parametrize("make", [CutByRows, SpanByRows])
def test_how_many_rows_there_are_is_no_value(make: type[CutByRows], kind: Callable[[Tensor], Tensor]) -> None:
    model = make(kind(drawn(20) * 5))
    batch = drawn(17, 5), drawn(17, 3), torch.arange(17)
    engine = BookKeeping(model, squares)
    engine(flatten(model), *batch, ITEMS)
    assert engine.reason is not None
    assert find_move(model, squares, batch, ITEMS) <= 1 + SLACK


def test_a_parameter_without_dimensions_is_taken() -> None:
    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.warmth = nn.Parameter(torch.tensor(2.0))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.warmth

    model, batch = Warm(), (drawn(17, 3), drawn(17, 3), torch.arange(17))
    engine, clip = BookKeeping(model, squares), Clip(ClipPer.ITEM, Pool.MEAN, 3.0)
    given = flatten(model), *batch, clip
    assert torch.allclose(engine(*given).total, clipped_sum(model, squares, *given).total, rtol=1e-4)
    assert engine.reason is None


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_model_that_computes_in_half_precision_itself(kind: torch.dtype) -> None:
    """Biases are then sums in single precision of values in half."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            with torch.autocast("cpu", kind):
                return self.layers(inputs).float()

    model, batch = Narrow(), (drawn(40, 9), drawn(40, 3), torch.arange(40) // 2)
    engine = BookKeeping(model, squares)
    for per in (ClipPer.ITEM, ClipPer.SUBJECT):
        clip = Clip(per, Pool.MEAN, 0.5)
        assert engine(flatten(model), *batch, clip).total.norm() <= 40 * clip.norm
        assert find_move(model, squares, batch, clip) <= 1 + SLACK
    assert engine.reason is None


def test_verdicts_hold_for_the_instructions_that_libraries_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = verdicts.machine.__wrapped__()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert verdicts.machine.__wrapped__() != before


class LeavesBehind(nn.Module):
    """Keeps the largest number it has seen, unless somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = nn.Parameter(drawn(3, 5)), nn.Buffer(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.seen.copy_(inputs.detach().abs().max()[None])
        return (inputs + self.seen) @ self.weight.t()


@pytest.mark.parametrize("per", [ClipPer.ITEM, ClipPer.SUBJECT])
def test_a_gradient_that_is_too_long_leaves_nothing_behind(per: ClipPer) -> None:
    """What the program cannot measure is not computed by the model itself."""
    inputs = drawn(20, 5)
    inputs[3] *= 1e15
    batch = inputs, drawn(20, 3), torch.arange(20) // 2
    assert find_move(LeavesBehind(), squares, batch, Clip(per, Pool.MEAN, 0.01)) <= 1 + SLACK


def cancelling(images: Tensor, size: int, channels: int) -> Tensor:
    """Gradients of a convolution's outputs under which its kernel's is nothing but rounding, for units of a size."""
    found = []
    for unit in images.double().split(size):
        seen = functional.unfold(unit, 3, padding=1)
        matrix = seen.permute(1, 0, 2).flatten(1)
        drawn_before = drawn(channels, matrix.shape[1]).double()
        left = drawn_before - drawn_before @ torch.linalg.pinv(matrix) @ matrix
        found.append(left.view(channels, size, -1).transpose(0, 1).flatten(1))
    return torch.cat(found).float()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_unit_of_a_size_is_rounded_as_two_are(size: int) -> None:
    """The other of two subjects that have so many items leaves, and nobody else has as many."""
    other, layer = 1 + (size == 1), nn.Conv2d(3, 5, 3, bias=False, padding=1)
    images = drawn(2 * size + 8 * other, 3, 8, 8)
    targets = torch.cat([cancelling(images[: 2 * size], size, 5), cancelling(images[2 * size :], other, 5)])
    groups = torch.cat([torch.arange(2).repeat_interleave(size), 2 + torch.arange(8).repeat_interleave(other)])
    clip = Clip(ClipPer.SUBJECT, Pool.SUM, 1e-7)

    def products(outputs: Tensor, given: Tensor) -> Tensor:
        return (outputs * given).sum()

    model = nn.Sequential(layer, nn.Flatten())
    assert find_move(model, products, (images, targets, groups), clip) <= 1 + SLACK
