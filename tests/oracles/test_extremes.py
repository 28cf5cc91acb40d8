"""The clip theorem: no finite number lets a subject move the sum by more than noise pays for."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from effort import THOROUGH, amount
from wholegrain.clipping import batch_invariance, sum_groups
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool, pool_gradients
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.kernels import KernelChecks
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.rounding import LEAST, SLACK, squared_norms

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import clip_fuzz

SUBJECTS = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
SUMMED = Clip(ClipPer.SUBJECT, Pool.SUM, 1.0)
each_clip = pytest.mark.parametrize(
    "clip", [SUBJECTS, SUMMED, Clip(ClipPer.ITEM, Pool.SUM, 1.0)], ids=["subject", "subject-sum", "item"]
)
each_pool = pytest.mark.parametrize("pool", Pool)


WITH_LARGE = ("linear", "conv1d", "layer norm", "embedding", "gru", "encoder", "written by hand", "two uses")
"""Kinds that `make test` plays with subjects of many items, too; before these, every smaller size is tried."""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", clip_fuzz.KINDS)
def test_no_finite_number_breaks_the_clip(kind: str) -> None:
    large = clip_fuzz.LARGE if THOROUGH or kind in WITH_LARGE else 0.0
    found = list(clip_fuzz.fuzz(kind, amount(60, quick=20), seed=7, large=large))
    assert max(each.move for each in found) <= 1 + SLACK
    assert any(each.move > 0.99 for each in found), "nothing was clipped, so nothing was tested"


def chosen_by_a_server(model: nn.Module) -> Tensor:
    """Huge activations and a last bias that saturates the softmax: squared norms that underflow in single precision."""
    vector = torch.zeros_like(flatten(model))
    views = Layout.of(model).views(vector)
    views["0.weight"].fill_(1e18)
    views["2.bias"][0] = 52.0
    return vector


@each_pool
def test_a_norm_that_underflows_is_no_short_norm(pool: Pool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    vector = chosen_by_a_server(model)
    inputs, targets = torch.rand(5, 4), torch.zeros(5, dtype=torch.int64)
    for norm in (1e-11, 1e-3, 1.0):
        clip = Clip(ClipPer.SUBJECT, pool, norm)
        total = BookKeeping(model, cross_entropy)(vector, inputs, targets, torch.arange(5), clip).total
        assert float(total.double().norm()) <= 5 * norm * (1 + SLACK)


@pytest.mark.parametrize("exponent", [-149, -140, -127, -100, 0, 100, 127])
def test_a_factor_that_single_precision_cannot_hold_is_not_rounded_up(exponent: int) -> None:
    rows = torch.tensor([[2.0**exponent, 1e-38], [3e38, 3e38]])
    for norm in (1e-15, 1e-7, 1.0):
        pooled = pool_gradients(rows, torch.tensor([0, 1]), Clip(ClipPer.SUBJECT, Pool.MEAN, norm))
        assert float(pooled.total.double().norm()) <= 2 * norm * (1 + 1e-6)


def test_squares_that_underflow_are_made_up_for() -> None:
    tiny = torch.full((1, 100), 2.0**-80)
    assert float(squared_norms(tiny)) >= float(tiny.double().square().sum())
    assert float(squared_norms(torch.zeros(1, 100))) == pytest.approx(100 * LEAST)


@pytest.mark.parametrize(
    ("count", "leavers"), [(1000, 5), (20_000, 5), pytest.param(1_000_000, 2, marks=pytest.mark.slow)]
)
def test_one_subject_among_many_moves_the_sum_by_no_more_than_the_clip_norm(count: int, leavers: int) -> None:
    """All contributions point the same way, which is the worst for a sum: it grows far beyond what is added to it."""
    draws = np.random.default_rng(1)
    model = nn.Sequential(nn.Linear(3, 2))
    engine, vector = BookKeeping(model, cross_entropy), flatten(model)
    inputs = torch.from_numpy(draws.normal(2.0, 0.3, (count, 3)).astype(np.float32))
    targets, codes = torch.zeros(count, dtype=torch.int64), draws.permutation(count) * 7919
    table, clip = scatter_codes(codes), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.5)

    def total(left: np.ndarray) -> Tensor:
        items = np.flatnonzero(left)
        buckets = Buckets(table, items, float(count), float(count), largest=1)
        groups = torch.arange(len(items))
        return engine(vector, inputs[items], targets[items], groups, clip, buckets).total.double()

    everybody = np.ones(count, bool)
    whole = total(everybody)
    for subject in draws.choice(count, leavers, replace=False):
        everybody[subject] = False
        assert float((whole - total(everybody)).norm()) <= 0.5 * (1 + 1e-4)
        everybody[subject] = True


class Chaos(nn.Module):
    """Outputs that are the sign of a rounding error: of a sum of large numbers that would be zero if it were exact."""

    def __init__(self, width: int, blow_up: float = 1e7) -> None:
        super().__init__()
        self.large, self.head, self.blow_up = nn.Linear(width, width), nn.Linear(width, 2), blow_up

    def forward(self, x: Tensor) -> Tensor:
        """Whatever is left, blown up."""
        return self.head((self.large(x) * self.blow_up).tanh())


@pytest.mark.parametrize("width", [3, 5, 7, 16, 37, 64])
@each_clip
def test_others_stay_the_same_to_the_last_bit_when_somebody_leaves(width: int, clip: Clip) -> None:
    """Under these parameters a last bit decides on a gradient's sign: others would turn round with it."""
    draws = torch.Generator().manual_seed(3)
    model = Chaos(width)
    vector = flatten(model)
    views = Layout.of(model).views(vector)
    noise = torch.randn(width, width, generator=draws)
    views["large.weight"].copy_(noise - noise.mean(1, keepdim=True))  # rows that sum up to nearly nothing
    views["large.bias"].zero_()
    engine, count = BookKeeping(model, cross_entropy), 41
    inputs = torch.ones(count, width) * (1 + torch.arange(count)[:, None] % 7)
    targets, groups = torch.arange(count) % 2, torch.arange(count)
    table = scatter_codes(np.arange(count))

    def total(left: np.ndarray) -> Tensor:
        buckets = Buckets(table, left, float(count), float(count), largest=1)
        return engine(vector, inputs[left], targets[left], groups[: len(left)], clip, buckets).total.double()

    whole = total(np.arange(count))
    for gone in (0, 20, 40):
        assert float((whole - total(np.delete(np.arange(count), gone))).norm()) <= 1 + SLACK


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("width", "count"), [(5, 41), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((37, 300), (256, 130)))]
)
@each_clip
def test_two_threads_and_double_precision_leave_others_the_same(
    kind: torch.dtype, width: int, count: int, clip: Clip
) -> None:
    """Two items each; a last bit of either precision decides on a gradient's sign."""
    blow_up = 1e7 if kind is torch.float32 else 1e16
    draws = torch.Generator().manual_seed(3)
    model = Chaos(width, blow_up).to(kind)
    vector = flatten(model)
    views = Layout.of(model).views(vector)
    noise = torch.randn(width, width, generator=draws, dtype=kind)
    views["large.weight"].copy_(noise - noise.mean(1, keepdim=True))
    views["large.bias"].zero_()
    subjects = np.repeat(np.arange(count // 2), 2)
    inputs = torch.ones(len(subjects), width, dtype=kind) * (1 + torch.arange(len(subjects))[:, None] % 7)
    targets, table = torch.from_numpy(subjects % 2), scatter_codes(subjects * 7919)
    engine = BookKeeping(model, cross_entropy)

    def total(left: np.ndarray) -> Tensor:
        _, groups = np.unique(subjects[left], return_inverse=True)
        buckets = Buckets(table, left, count / 2, float(count), largest=2)
        return engine(vector, inputs[left], targets[left], torch.from_numpy(groups), clip, buckets).total.double()

    everybody = np.arange(len(subjects))
    whole = total(everybody)
    allowed = (1 if clip.per is ClipPer.SUBJECT else 2) * (1 + SLACK)
    for gone in (0, count // 4, count // 2 - 1):
        moved = whole - total(everybody[subjects != gone])
        assert 0.5 <= float(moved.norm()) <= allowed


def test_a_unit_keeps_its_place_whoever_leaves() -> None:
    numbers = scatter_codes(np.arange(60))

    def places(left: np.ndarray) -> dict[int, int]:
        found = {}
        for chosen, real in batch_invariance.FixedPlaces().passes(numbers[left], size=1):
            found |= {
                int(left[unit]): place for place, (unit, ours) in enumerate(zip(chosen, real, strict=True)) if ours
            }
        return found

    whole = places(np.arange(60))
    assert len(whole) == 60
    for gone in (0, 31, 59):
        rest = places(np.delete(np.arange(60), gone))
        assert rest == {unit: place for unit, place in whole.items() if unit != gone}


def moved(engine: BookKeeping, vector: Tensor, people: int, items: int, clip: Clip, width: int) -> float:
    """How far the sum moves when the first of some people, each with so many items, leaves."""
    draws = torch.Generator().manual_seed(5)
    inputs = torch.rand(people * items, width, generator=draws) * 2 - 1
    inputs[1::2] = -inputs[::2]  # what a person's items say nearly cancels
    targets = torch.zeros(people * items, dtype=torch.int64)
    subjects = np.repeat(np.arange(people), items)
    table = scatter_codes(subjects * 7919)

    def total(left: np.ndarray) -> Tensor:
        buckets = Buckets(table, left, float(people), float(people * items), largest=items)
        groups = torch.from_numpy(subjects[left] - subjects[left].min())
        return engine(vector, inputs[left], targets[left], groups, clip, buckets).total.double()

    everybody = np.arange(people * items)
    return float((total(everybody) - total(everybody[items:])).norm()) / clip.norm


@each_pool
@pytest.mark.parametrize(("width", "items"), [(4099, 16), (65, 3), (2049, 5)])
def test_a_subjects_gradient_does_not_depend_on_its_place_among_others(width: int, items: int, pool: Pool) -> None:
    """Rows of odd length, several of one subject: products of matrices round by where these begin in memory."""
    model = nn.Sequential(nn.Linear(width, 2))
    clip = Clip(ClipPer.SUBJECT, pool, 1e-9)
    assert moved(BookKeeping(model, cross_entropy), flatten(model) * 0, 40, items, clip, width) <= 1 + SLACK


def test_parameters_that_are_not_finite_give_nothing_whoever_is_there() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    vector = flatten(model)
    vector[-1] = -torch.inf
    for count in (1, 5):
        found = BookKeeping(model, cross_entropy)(
            vector, torch.rand(count, 4), torch.zeros(count, dtype=torch.int64), torch.arange(count), SUBJECTS
        )
        assert not found.total.any()


def test_nobody_who_leaves_moves_a_cut_in_the_group_of_others() -> None:
    """Memory for 64 items, thousands of them: what others add up to stays the same to the last bit."""
    count, width = 3000, 8
    model = nn.Sequential(nn.Linear(width, 2))
    vector = flatten(model) * 0
    clip = Clip(ClipPer.ITEM, Pool.SUM, 0.3)
    inputs = torch.rand(count, width, generator=torch.Generator().manual_seed(2))
    table = scatter_codes(np.arange(count))
    probe = BookKeeping(model, cross_entropy)
    probe(vector, inputs[:20], torch.zeros(20, dtype=torch.int64), torch.arange(20), clip)
    assert probe._chosen is not None
    engine = BookKeeping(model, cross_entropy, memory=64 * (MEMORY // probe._chosen.most_items))

    def total(items: np.ndarray) -> Tensor:
        targets, groups = torch.zeros(len(items), dtype=torch.int64), torch.arange(len(items))
        buckets = Buckets(table, items, float(count), float(count), largest=1)
        return engine(vector, inputs[items], targets, groups, clip, buckets).total

    order = np.argsort(table, kind="stable")
    total(order)
    assert engine._chosen is not None
    ((grouping, _),) = engine._chosen.groupings.values()
    ends = sum_groups._edges(table[order], grouping.count(1))
    assert len(ends) > 3
    first = order[: ends[1]]
    everybody = np.arange(count)
    moved = total(everybody) - total(np.delete(everybody, first[0]))
    torch.testing.assert_close(moved, total(first) - total(first[1:]), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("width", "multiple"), [(1, 32), (16, 2), (64, 1)])
def test_no_value_is_left_over_where_a_function_is_vectorised(width: int, multiple: int) -> None:
    """A sigmoid of what is left over is computed by other instructions, which round otherwise."""
    model = nn.Sequential(nn.Linear(5, width), nn.Sigmoid(), nn.Linear(width, 16))
    engine = BookKeeping(model, cross_entropy)
    engine(flatten(model), torch.rand(9, 5), torch.arange(9), torch.arange(9), SUBJECTS)
    assert engine._chosen is not None
    assert isinstance(engine._chosen.sizes, KernelChecks)
    assert engine._chosen.sizes.multiple == multiple
