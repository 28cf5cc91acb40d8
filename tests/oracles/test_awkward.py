"""Awkward models, losses and numbers: each was once computed wrongly, or not at all."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from agreement import Around, Batch, World, assert_agrees, assert_same, item_gradients, slow, wavy
from wholegrain.clipping import reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool, pool_gradients
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.errors import ModelError

WORLD = World(seed=1, items=7, subjects=3, dtype=torch.float64, memory=MEMORY, norm=None)


def agrees(model: nn.Module, loss, *batches: Batch, norm: float | None = None) -> BookKeeping:
    """One engine for all batches."""
    engine = BookKeeping(model, loss)
    for batch in batches:
        slow(lambda one=batch: assert_agrees(engine, model, loss, flatten(model), one, norm))
    return engine


def classes(batch: Batch, count: int = 3) -> Batch:
    return Batch(batch.inputs, torch.arange(len(batch.inputs)) % count, batch.groups)


def test_a_constant_as_long_as_the_batch_beside_a_tapped_module() -> None:
    class Against(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return (x[:, None] * table * self.scale).sin().sum(1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Against()
            self.register_buffer("table", torch.randn(7, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, self.table)

    model = WORLD.built(Model)
    agrees(model, wavy, *(WORLD.but(items=items, subjects=2).batch((4,)) for items in (5, 7)))


def test_outputs_with_times_first_are_refused() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(0, 1))[0]

    spoken = lambda outputs, words: cross_entropy(outputs.permute(1, 2, 0), words)  # noqa: E731
    batch = WORLD.batch((3, 4))
    with pytest.raises(ModelError, match="do not have an item in each row"):
        agrees(WORLD.built(Turned), spoken, Batch(batch.inputs, torch.arange(21).view(7, 3) % 5, batch.groups))


def test_a_loss_with_weights_of_classes() -> None:
    weights = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    weighted = lambda outputs, targets: cross_entropy(outputs, targets, weight=weights)  # noqa: E731
    agrees(WORLD.built(lambda: nn.Linear(4, 3)), weighted, classes(WORLD.batch((4,))))


def test_a_loss_that_ignores_class_zero() -> None:
    class PositionMajor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.transpose(0, 1)
            return self.last(self.first(rows.reshape(-1, 4)).tanh()).view(*rows.shape[:2], 3).mean(0)

    ignoring = lambda outputs, targets: cross_entropy(outputs, targets, ignore_index=0)  # noqa: E731
    batch = WORLD.batch((5, 4))
    agrees(WORLD.built(PositionMajor), ignoring, Batch(batch.inputs, torch.arange(7) % 2 + 1, batch.groups))


def test_a_target_that_the_library_ignores_counts_for_nobody_else() -> None:
    """A mean over what is not ignored would let one item change the weight of the others."""
    batch = classes(WORLD.batch((4,)))
    batch.targets[2] = -100
    agrees(WORLD.built(lambda: nn.Linear(4, 3)), cross_entropy, batch)


def test_sequences_of_another_length_than_the_first() -> None:
    class PositionMajor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.transpose(0, 1)
            return self.inner(rows.reshape(-1, 4)).view(*rows.shape[:2], 3).sin().mean(0)

    agrees(WORLD.built(PositionMajor), wavy, WORLD.batch((1, 4)), WORLD.batch((5, 4)))


def test_items_sorted_by_their_length() -> None:
    class Sorting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.inner = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            order = (x != 0).sum(1).argsort(descending=True, stable=True)
            return self.inner(self.table(x)[order])[0][order.argsort()][:, -1]

    batch = WORLD.batch((6,), tokens=9)
    inputs = batch.inputs * (torch.arange(6)[None] <= torch.arange(7)[:, None])
    agrees(WORLD.built(Sorting), wavy, Batch(inputs, batch.targets, batch.groups))


def test_a_first_vector_that_is_not_finite() -> None:
    model, batch = WORLD.built(lambda: nn.Linear(4, 3)), WORLD.batch((4,))
    clip = Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    pooled = BookKeeping(model, wavy)(flatten(model) * math.nan, batch.inputs, batch.targets, batch.groups, clip)
    assert pooled.zeroed == 7


def test_squared_norms_whose_sum_overflows() -> None:
    inputs, targets = torch.full((4, 1), 1.5e19), torch.tensor([0, 1, 0, 0])
    model = nn.Linear(1, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    agrees(model, cross_entropy, Batch(inputs, targets, torch.arange(4)), norm=0.5)


def test_a_vector_with_strides() -> None:
    model, batch = WORLD.built(lambda: nn.Linear(4, 3)), WORLD.batch((4,))
    vector = torch.stack([flatten(model), torch.zeros(15)], 1)[:, 0]
    assert_agrees(BookKeeping(model, wavy), model, wavy, vector, batch)


def test_a_parameter_under_two_names_of_one_module() -> None:
    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.rand(4, 4))
            self.two = self.one

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.one).tanh() @ self.two

    model, batch = WORLD.built(Squared), WORLD.but(items=1).batch((4,))
    (expected,) = torch.autograd.grad(wavy(model(batch.inputs), batch.targets), [model.one])
    clip = Clip(ClipPer.NONE, Pool.SUM, 1.0)
    pooled = reference.clipped_sum(model, wavy, flatten(model), batch.inputs, batch.targets, batch.groups * 0, clip)
    torch.testing.assert_close(pooled.total, expected.flatten())


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_weight_norm_of_the_old_kind() -> None:
    agrees(WORLD.built(lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))), wavy, WORLD.batch((4,)))


class Unseen(torch.autograd.Function):
    """A product with gradients of its own, which no layer tells of."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.t()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x


def test_a_small_gradient_that_no_layer_tells_of() -> None:
    class Faint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + 1e-4 * Unseen.apply(x, self.b.weight)

    engine = agrees(WORLD.built(Faint), wavy, WORLD.batch((4,)), norm=1e3)
    assert engine.reason is None


def test_a_first_layer_that_works_in_place() -> None:
    model, batch = WORLD.built(lambda: Around(nn.Sequential(nn.ReLU(True), nn.Linear(4, 3)))), WORLD.batch((4,))
    before, clip = batch.inputs.clone(), Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    BookKeeping(model, wavy)(flatten(model), batch.inputs, batch.targets, batch.groups, clip)
    assert torch.equal(batch.inputs, before)


def test_a_mean_over_what_is_not_padding() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            seen = (x != 0).double()[..., None]
            return self.last((self.table(x) * seen).sum(1) / seen.sum(1))

    batch = WORLD.batch((1,), tokens=8)
    agrees(WORLD.built(Mean), wavy, Batch(batch.inputs + 1, batch.targets, batch.groups))


def test_a_parameter_without_dimensions() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale.exp()

    engine = agrees(WORLD.built(lambda: nn.Sequential(nn.Linear(4, 4), Tempered())), wavy, WORLD.batch((4,)))
    assert engine.reason is None


class Centred(nn.Module):
    """Has something besides trainable parameters, and another mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.frozen = nn.Linear(4, 3), nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("centre", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.frozen(self.inner(x)).tanh() - self.centre) * (1 if self.training else 3)


@pytest.mark.parametrize(
    "change",
    [lambda m: m.centre.mul_(3), lambda m: m.frozen.weight.data.mul_(3)],
    ids=["buffer", "frozen"],
)
def test_values_that_are_changed_between_calls(change) -> None:
    model, batch = WORLD.built(Centred), WORLD.batch((4,))
    engine = agrees(model, wavy, batch, norm=1e3)
    change(model)
    assert_agrees(engine, model, wavy, flatten(model), batch, norm=1e3)


@pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")
def test_gradients_of_a_table_that_nearly_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 30)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.table(x)
            return rows[:, 0] - rows[:, 1] * (1 - 1e-4)

    monkeypatch.setattr("wholegrain.clipping.ends.SMALL_TABLE", 0)
    along = lambda outputs, targets: (outputs * targets).sum(1).mean()  # noqa: E731
    model, clip = Opposed(), Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    engine = BookKeeping(model, along)
    for seed in range(20):
        targets = torch.randn(1, 30, generator=torch.Generator().manual_seed(seed)) * 1e4
        pooled = engine(flatten(model), torch.tensor([[3, 3]]), targets, torch.tensor([0]), clip)
        assert float(pooled.total.double().norm()) <= 1 + 1e-5


@pytest.mark.parametrize("weights", [[9.0, 1.0, 1.0], [1.0, 1.0, 9.0]])
def test_class_weights_never_let_an_item_change_the_others(weights: list[float]) -> None:
    """The library's weighted mean would: one item of a heavy class makes all others lighter."""
    heavy = torch.tensor(weights, dtype=torch.float64)
    loss = lambda outputs, targets: cross_entropy(outputs, targets, weight=heavy)  # noqa: E731
    agrees(WORLD.built(lambda: nn.Linear(4, 3)), loss, classes(WORLD.batch((4,))))


def test_ignored_places_of_a_sequence() -> None:
    class Spoken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).transpose(1, 2)

    batch = WORLD.batch((3, 4))
    targets = torch.arange(21).view(7, 3) % 5
    targets[1:, 2] = -100
    agrees(WORLD.built(Spoken), cross_entropy, Batch(batch.inputs, targets, batch.groups))


@pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")
def test_items_that_mix_only_where_numbers_are_large() -> None:
    class Guarded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x / x.abs().max().clamp(min=1))

    model, batch = WORLD.built(Guarded), WORLD.batch((4,))
    batch.inputs[0] = 1000
    engine, clip = BookKeeping(model, wavy), Clip(ClipPer.ITEM, Pool.SUM, 0.5)
    pooled = engine(flatten(model), batch.inputs, batch.targets, batch.groups, clip)
    assert_same(pooled, pool_gradients(item_gradients(model, wavy, flatten(model), batch), batch.groups, clip))
    assert engine.reason is not None


def test_a_vector_with_strides_and_then_another_at_its_place() -> None:
    model, batch = WORLD.built(lambda: nn.Linear(4, 3)), WORLD.batch((4,))
    both, engine = torch.randn(15, 2, dtype=torch.float64), BookKeeping(model, wavy)
    for vector in (both[:, 0], both.reshape(-1)[:15]):
        assert_agrees(engine, model, wavy, vector, batch)
