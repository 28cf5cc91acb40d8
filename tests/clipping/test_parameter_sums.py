"""Sums of weighted gradients: written where they begin, in blocks, in single or in double precision."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping import parameter_sums, reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameter_sums import (
    AddBuffers,
    LazyZeros,
    ParameterSums,
    SingleSums,
    SplitTotal,
    WideSums,
    align,
)
from wholegrain.clipping.parameters import Slot, Views, flatten
from wholegrain.clipping.rounding import ADDED, SLACK, SUM

SHAPES = {"table": (7, 5), "bias": (5,), "untouched": (3,)}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def zeros(views: dict[str, Tensor]) -> LazyZeros:
    return LazyZeros(Views(torch.empty(0), views))


def add_all(sums: ParameterSums) -> dict[str, Tensor]:
    """Everything that can be added, twice, and what it comes to."""
    left, right, rows, weights = draw(7, 4), draw(4, 5), draw(6, 5), draw(6)
    places = torch.tensor([0, 2, 2, 1, 0, 1])
    expected = {name: torch.zeros(shape).double() for name, shape in SHAPES.items()}
    for _ in range(2):
        sums.add_at(Slot("table"), places, rows)
        expected["table"].index_add_(0, places, rows.double())
        sums.add_product(Slot("table"), left, right)
        sums.add_product(Slot("table", (5, 7), turned=True), left @ right, torch.eye(5))
        expected["table"] += left.double() @ right.double()
        expected["table"].view(5, 7).add_((left.double() @ right.double()).t())
        sums.add_rows(Slot("bias"), rows, weights)
        expected["bias"] += weights.double() @ rows.double()
        sums.add(Slot("bias"), rows[0])
        expected["bias"] += rows[0]
    return expected


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_sum_begins_with_whatever_was_in_memory(kind: torch.dtype) -> None:
    views = {name: torch.full(shape, torch.nan, dtype=kind) for name, shape in SHAPES.items()}
    total = zeros(views)
    wide = kind is torch.float64
    expected = add_all(WideSums(total, AddBuffers.like(torch.empty(40))) if wide else SingleSums(total))
    total.settle()
    for name, view in views.items():
        torch.testing.assert_close(view.double(), expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("product", "block"), [(1 << 18, 1 << 16), (12, 4), (3, 1)])
def test_a_wide_sum_is_the_same_in_blocks_of_any_size(
    product: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_sums, "PRODUCT", product)
    monkeypatch.setattr(parameter_sums, "BLOCK", block)
    views = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    expected = add_all(WideSums(zeros(views), AddBuffers.like(torch.empty(40))))
    for name, view in views.items():
        torch.testing.assert_close(view, expected[name], rtol=1e-5, atol=1e-5)


def test_small_values_survive_in_a_wide_sum() -> None:
    views = {"w": torch.zeros(1, 1, dtype=torch.float64)}
    sums = WideSums(zeros(views), AddBuffers.like(torch.empty(1)))
    for value in (2.0**30, 1.0, -(2.0**30)):
        sums.add_product(Slot("w"), torch.tensor([[value]]), torch.ones(1, 1))
    assert views["w"].item() == 1.0


def test_a_sum_that_is_cleared_begins_anew() -> None:
    views = {"w": torch.ones(1, 1)}
    total = zeros(views)
    for value in (1.0, 2.0):
        SingleSums(total).add_product(Slot("w"), torch.tensor([[value]]), torch.ones(1, 1))
        assert views["w"].item() == value
        total.clear()
    total.settle()
    assert views["w"].item() == 0.0


def test_rows_are_moved_to_where_vectors_begin() -> None:
    rows = draw(9, 5)
    for start in range(9):
        moved = align(rows[start:])
        assert torch.equal(moved, rows[start:])
        assert moved.data_ptr() % parameter_sums.VECTOR_BYTES == 0


@pytest.mark.parametrize("adds", [0, 1, 2, 5])
def test_a_split_total_adds_so_many_parts_in_their_own_precision_and_the_rest_in_double(adds: int) -> None:
    made = {kind: torch.full((5,), torch.nan, dtype=kind) for kind in (torch.float32, torch.float64)}
    narrow, wide = (LazyZeros(Views(vector, {"bias": vector})) for vector in made.values())
    total = SplitTotal(wide, narrow, adds)
    parts = [torch.full((5,), 1.0), torch.full((5,), 2.0**-30), torch.full((5,), 2.0**-30)]
    for part in parts:
        WideSums(total.take(), AddBuffers.like(part)).add(Slot("bias"), part)
    # In single precision 1 + 2⁻³⁰ is 1.
    lost = max(0, min(adds, 3) - 1)
    found = total.settle()
    assert found.dtype is (torch.float32 if adds >= 3 else torch.float64)
    assert (found.double() == 1 + (2 - lost) * 2.0**-30).all()


def test_uses_of_one_parameter_that_pull_apart_are_counted_as_long_as_they_are() -> None:
    """Two uses of 30 clip norms each, whose difference is one: sums on the way are longer than what is left."""
    vector = torch.zeros(5)
    narrow, wide = (LazyZeros(Views(vector.to(kind), {})) for kind in (torch.float32, torch.float64))
    total = SplitTotal(wide, narrow, adds=32, units=20)
    taken = [total.take(uses=2, load=60.0) is narrow for _ in range(5)]
    assert taken == [True] * 4 + [False]


def test_a_large_model_is_summed_in_single_precision_within_the_bound() -> None:
    model = nn.Linear(200, 100)
    engine, few = BookKeeping(model, cross_entropy), BookKeeping(model, cross_entropy, memory=1 << 20)
    inputs, targets, clip = draw(400, 200), torch.arange(400) % 100, Clip(ClipPer.ITEM, Pool.SUM, 0.5)
    vector, subjects = flatten(model), torch.arange(400)
    exact = reference.clipped_sum(model, cross_entropy, vector.double(), inputs.double(), targets, subjects, clip).total
    for each in (engine, few):
        found = each(vector, inputs, targets, subjects, clip).total
        assert found.dtype is torch.float32
        assert torch.linalg.vector_norm(found - exact) <= (SUM + ADDED) * clip.norm
        rest = each(vector, inputs[1:], targets[1:], subjects[:-1], clip).total
        assert torch.linalg.vector_norm(found.double() - rest.double()) <= (1 + SLACK) * clip.norm


@pytest.mark.parametrize("width", [4, 200])
@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_a_caller_may_write_into_the_sum(width: int, memory: int) -> None:
    """Noise is added to it in place."""
    model, targets = nn.Linear(width, 100), torch.arange(60) % 100
    engine = BookKeeping(model, cross_entropy, memory)
    for per in (ClipPer.SUBJECT, ClipPer.NONE):
        found = engine(flatten(model), draw(60, width), targets, torch.arange(60), Clip(per, Pool.MEAN, 0.5)).total
        assert not found.add_(1).is_inference()
