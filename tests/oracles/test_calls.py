"""One engine, many calls: nothing of a call shows in the next, and what was given stays as it was."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from agreement import MODES, Around, Batch, World, assert_agrees, assert_same, item_gradients, slow, wavy
from effort import examples
from wholegrain.clipping.clipping import Clip, pool_gradients
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.parameters import flatten

WORLD = World(seed=0, items=7, subjects=3, dtype=torch.float64, memory=MEMORY, norm=None)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2, padding=1),
        nn.Tanh(), nn.Flatten(), nn.Linear(18, 4), nn.ReLU(inplace=True), nn.Linear(4, 3),
    )  # fmt: skip


def lstm() -> nn.Module:
    return Around(nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True), lambda outs: outs[0][:, -1])


def transformer() -> nn.Module:
    return nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, 0.0, batch_first=True), nn.Flatten(), nn.Linear(16, 2))


def in_place() -> nn.Module:
    return Around(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3), nn.ReLU(True)))


def tapped() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Conv1d(4, 3, 2))


MODELS: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    cnn: (1, 4, 4), lstm: (4, 4), transformer: (4, 4), in_place: (4, 4), tapped: (4, 4)
}  # fmt: skip
each_model = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)


@each_model
@given(
    calls=st.lists(
        st.tuples(st.sampled_from((0, 1, 2, 5, 7, 13)), st.sampled_from(MODES), st.booleans(), st.integers(0, 99)),
        min_size=3,
        max_size=6,
    ),
    memory=st.sampled_from((MEMORY, 1 << 13)),
)
@examples(5)
def test_calls_do_not_show_in_one_another(make: Callable[[], nn.Module], calls: list, memory: int) -> None:
    model = WORLD.built(make)
    engine, vector, held = BookKeeping(model, wavy, memory), flatten(model), []
    for items, mode, in_place, seed in calls:
        batch, clip = WORLD.but(items=items, seed=seed).batch(MODELS[make]), Clip(*mode, norm=0.7)
        # The vector moves, as a new tensor or within the old one.
        vector = vector.mul_(0.9) if in_place else vector * 0.9
        actual = engine(vector, batch.inputs, batch.targets, batch.groups, clip)
        expected = pool_gradients(item_gradients(model, wavy, vector, batch), batch.groups, clip)
        assert_same(actual, expected, f"{items} items")
        held.append((actual, expected))
    for actual, expected in held:
        assert_same(actual, expected, "a result after later calls")


@pytest.mark.parametrize("memory", [MEMORY, pytest.param(1, marks=pytest.mark.slow)])
@each_model
def test_what_was_given_is_untouched(make: Callable[[], nn.Module], memory: int) -> None:
    model, batch = WORLD.built(make), WORLD.batch(MODELS[make])
    model.eval()
    next(model.children()).train()
    vector = flatten(model) * 1.1
    before = deepcopy((state_of(model), vector, batch.inputs, batch.targets, batch.groups))
    engine = BookKeeping(model, wavy, memory)
    for mode in MODES:
        clip = Clip(*mode, norm=0.5)
        slow(lambda clip=clip: engine(vector, batch.inputs, batch.targets, batch.groups, clip))
    after = (state_of(model), vector, batch.inputs, batch.targets, batch.groups)
    assert_identical(before, after)
    assert vector.grad is None
    assert not vector.requires_grad


def state_of(model: nn.Module) -> object:
    """Everything of a model that a caller could see."""
    return (
        [(name, p.detach(), p.requires_grad, p.grad is None) for name, p in model.named_parameters()],
        [(name, b) for name, b in model.named_buffers()],
        [(name, m.training, sorted(vars(m)), len(m._forward_hooks)) for name, m in model.named_modules()],
    )


def assert_identical(one: object, other: object) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_identical(left, right)
    else:
        assert one == other


@each_model
def test_inputs_that_are_not_contiguous(make: Callable[[], nn.Module]) -> None:
    model, batch = WORLD.built(make), WORLD.batch(MODELS[make])
    turned = batch.inputs.transpose(0, -1).contiguous().transpose(0, -1)
    assert not turned.is_contiguous()
    engine = BookKeeping(model, wavy)
    given_turned = Batch(turned, batch.targets, batch.groups)
    slow(lambda: assert_agrees(engine, model, wavy, flatten(model), given_turned))
    spread = Batch(batch.inputs[:1].expand_as(batch.inputs), batch.targets, batch.groups)
    slow(lambda: assert_agrees(engine, model, wavy, flatten(model), spread))


@pytest.mark.parametrize("items", [0, 1, 2, 7, 13, 31])
def test_sizes_of_a_first_batch(items: int) -> None:
    model, batch = WORLD.built(cnn), WORLD.but(items=items).batch((1, 4, 4))
    assert_agrees(BookKeeping(model, wavy), model, wavy, flatten(model), batch)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.bool])
def test_inputs_of_other_kinds_of_numbers(kind: torch.dtype) -> None:
    class Pixels(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.double() / 255

    model = WORLD.built(lambda: nn.Sequential(Pixels(), nn.ReLU(inplace=True), nn.Linear(4, 3), nn.GELU()))
    batch = WORLD.batch((4,), tokens=200)
    batch = Batch(batch.inputs.to(kind), batch.targets, batch.groups)
    assert_agrees(BookKeeping(model, wavy), model, wavy, flatten(model), batch)


def test_groups_with_gaps_and_one_subject_for_all() -> None:
    model, batch = WORLD.built(cnn), WORLD.batch((1, 4, 4))
    engine = BookKeeping(model, wavy)
    for groups in ([5, 5, 0, 9, 5, 0, 2], [0] * 7, [3] * 7, [6, 5, 4, 3, 2, 1, 0]):
        assert_agrees(engine, model, wavy, flatten(model), Batch(batch.inputs, batch.targets, torch.tensor(groups)))


def test_frozen_values_and_buffers_are_used() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.tensor([3.0, -1.0, 2.0, 0.5]))
            self.scale = nn.Parameter(torch.tensor(1.7), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - self.centre) * self.scale

    model, batch = WORLD.built(lambda: nn.Sequential(nn.Linear(4, 4), Centred(), nn.Linear(4, 3))), WORLD.batch((4,))
    assert_agrees(BookKeeping(model, wavy), model, wavy, flatten(model), batch)
