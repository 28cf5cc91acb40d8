"""The law that privacy rests on, on the fast engine itself: one subject moves the sum by at most the clip norm."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from agreement import Around, World, wavy
from effort import examples
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.models.model_catalog import build

# In single precision the other subjects move a little, too: products of another batch are rounded in another order.
SLACK = {torch.float64: 1e-12, torch.float32: 1e-5}
NORM = 0.5


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(9, 3))


def lstm() -> nn.Module:
    return Around(nn.LSTM(2, 4, batch_first=True), lambda outs: outs[0].mean(1))


def ft() -> nn.Module:
    made = build("ft_transformer", 6, 3, 0, {"width": 4, "heads": 2})
    nn.init.normal_(made.head.weight)  # type: ignore[union-attr, arg-type]
    return made


MODELS: dict[Callable[[], nn.Module], tuple[int, ...]] = {mlp: (6,), cnn: (1, 6), lstm: (3, 2), ft: (6,)}
each_model = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)


def drawn_worlds(items: int = 9) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        seed=st.integers(0, 10_000),
        items=st.just(items),
        subjects=st.integers(1, 4),
        dtype=st.sampled_from((torch.float64, torch.float32)),
        memory=st.sampled_from((MEMORY, 1)),
        norm=st.none(),
    )


def moved(world: World, make: Callable[[], nn.Module], scale: float, clip: Clip, drop: Tensor) -> float:
    """How far the sum moves when some items [item] are left out."""
    model, batch = world.built(make), world.batch(MODELS[make])
    engine, vector, inputs = BookKeeping(model, wavy, world.memory), flatten(model), batch.inputs * scale
    whole = engine(vector, inputs, batch.targets, batch.groups, clip)
    part = engine(vector, inputs[~drop], batch.targets[~drop], batch.groups[~drop], clip)
    return float((whole.total.double() - part.total.double()).norm())


@each_model
@given(
    world=drawn_worlds(),
    scale=st.floats(-2, 4),
    mode=st.sampled_from(((ClipPer.SUBJECT, Pool.MEAN), (ClipPer.SUBJECT, Pool.SUM), (ClipPer.ITEM, Pool.MEAN))),
)
@examples(20)
def test_a_subject_moves_the_sum_by_at_most_the_norm(
    make: Callable[[], nn.Module], world: World, scale: float, mode: tuple[ClipPer, Pool]
) -> None:
    groups = world.batch(MODELS[make]).groups
    drop = groups == groups[0]
    assert moved(world, make, 10**scale, Clip(*mode, norm=NORM), drop) <= NORM * (1 + SLACK[world.dtype])


@each_model
@given(world=drawn_worlds(), scale=st.floats(-2, 4), item=st.integers(0, 8))
@examples(12)
def test_an_item_moves_the_sum_by_at_most_the_norm(
    make: Callable[[], nn.Module], world: World, scale: float, item: int
) -> None:
    drop = torch.arange(9) == item
    clip = Clip(ClipPer.ITEM, Pool.SUM, NORM)
    assert moved(world, make, 10**scale, clip, drop) <= NORM * (1 + SLACK[world.dtype])


class Difference(nn.Module):
    """Tells two rows apart by one map for both, as networks that compare two things do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(100, 50), nn.Linear(50, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.last(h[:, 0] - h[:, 1])


def along(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is the target itself."""
    return (outputs * targets).sum(1).mean()


def nearly_equal(seed: int, scale: float, apart: float) -> Tensor:
    """Two rows [row, feature] that differ little for their size."""
    rows = torch.randn(2, 100, generator=torch.Generator().manual_seed(seed))
    return torch.stack([rows[0] * scale, rows[0] * scale + rows[1] * apart])


scales = pytest.mark.parametrize("scale", [1.0, 1e2, 1e3, 1e4])


@scales
def test_gradients_that_nearly_cancel_between_positions(scale: float) -> None:
    torch.manual_seed(0)
    model = Difference()
    engine, clip = BookKeeping(model, cross_entropy), Clip(ClipPer.ITEM, Pool.SUM, norm=0.1)
    one, label = torch.zeros(1, dtype=torch.int64), torch.tensor([1])
    for seed in range(20):
        for apart in (0.01, 0.1, 1.0):
            pooled = engine(flatten(model), nearly_equal(seed, scale, apart)[None], label, one, clip)
            assert float(pooled.total.double().norm()) <= 0.1 * (1 + 1e-5)


@scales
def test_gradients_that_nearly_cancel_between_the_items_of_a_subject(scale: float) -> None:
    model = nn.Linear(100, 50, bias=False)
    engine, clip = BookKeeping(model, along), Clip(ClipPer.SUBJECT, Pool.MEAN, norm=0.5)
    direction = torch.full((50,), 50**-0.5)
    pulls, one = torch.stack([direction, -direction]), torch.zeros(2, dtype=torch.int64)
    for seed in range(20):
        for apart in (0.1, 0.2, 1.0):
            pooled = engine(torch.zeros(5000), nearly_equal(seed, scale, apart), pulls, one, clip)
            assert float(pooled.total.double().norm()) <= 0.5 * (1 + 1e-5)


class Against(nn.Module):
    """One small map, used twice, one use against the other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, 0]) - self.inner(x[:, 1])


@pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6])
def test_uses_of_one_map_that_nearly_cancel(scale: float) -> None:
    """Norm and sum must come from the same products: it is the sum that is released."""
    model = Against()
    engine, clip = BookKeeping(model, along), Clip(ClipPer.SUBJECT, Pool.MEAN, norm=0.5)
    for seed in range(30):
        draws = torch.Generator().manual_seed(seed)
        row, other, pull = torch.randn(3, 1, 3, generator=draws)
        inputs = torch.stack([row * scale, row * scale + other * 0.01], 1)
        for items in (1, 3):
            batch = inputs.repeat(items, 1, 1), pull.repeat(items, 1), torch.zeros(items, dtype=torch.int64)
            assert float(engine(flatten(model), *batch, clip).total.double().norm()) <= 0.5 * (1 + 1e-5)
