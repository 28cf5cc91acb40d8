"""The fast gradients against the slow, obvious ones."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vmap_sum
from wholegrain.clipping import reference, vmap_gradients
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.models.model_catalog import build

CLASSES = 3
CLIPS = [(per, pool) for per, pool in product(ClipPer, Pool) if (per, pool) != (ClipPer.BATCH, Pool.SUM)]
CLIP_NAMES = ["-".join(clip) for clip in CLIPS]


class Words(nn.Module):
    """The mean of a few embedded tokens, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 3 * 3, CLASSES))


def frozen() -> nn.Module:
    model = build("mlp", 6, CLASSES, seed=0, options={"hidden": (5, 4)})
    model[1].weight.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Case:
    """A model and how its inputs look."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int | None = None

    def batch(self, items: int, seed: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
        """The model in float64, its parameters, and random inputs and targets."""
        draws = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.model().double()
        if self.tokens is None:
            inputs = torch.randn(items, *self.shape, generator=draws, dtype=torch.float64)
        else:
            inputs = torch.randint(self.tokens, (items, *self.shape), generator=draws)
        return model, flatten(model), inputs, torch.randint(CLASSES, (items,), generator=draws)


CASES = {
    "logistic": Case(lambda: build("logistic", 6, CLASSES, seed=0), (6,)),
    "mlp": Case(lambda: build("mlp", 6, CLASSES, seed=0, options={"hidden": (5, 4)}), (6,)),
    "conv": Case(images, (1, 5, 5)),
    "embedding": Case(Words, (3,), tokens=7),
    "frozen": Case(frozen, (6,)),
}


def numbered(groups: list[int]) -> Tensor:
    """Subjects of a batch numbered from 0, none left out."""
    return torch.unique(torch.tensor(groups, dtype=torch.int64), return_inverse=True)[1]


def compare(case: Case, groups: Tensor, clip: Clip, seed: int = 0) -> None:
    model, vector, inputs, targets = case.batch(len(groups), seed)
    fast = vmap_sum.clipped_sum(model, cross_entropy, vector, inputs, targets, groups, clip)
    slow = reference.clipped_sum(model, cross_entropy, vector, inputs, targets, groups, clip)
    torch.testing.assert_close(fast.total, slow.total, rtol=1e-10, atol=1e-10)
    assert fast.zeroed == slow.zeroed == 0


@pytest.mark.parametrize("items", [0, 1, 7, 11])
@pytest.mark.parametrize(("per", "pool"), CLIPS, ids=CLIP_NAMES)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name: str, per: ClipPer, pool: Pool, items: int) -> None:
    groups = numbered([3 * item % 5 for item in range(items)])
    compare(CASES[name], groups, Clip(per, pool, 0.7))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "embedding"])
@settings(deadline=None, max_examples=40)
@given(
    groups=st.lists(st.integers(0, 4), max_size=11),
    clip=st.sampled_from(CLIPS),
    norm=st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_agrees_however_items_fall_to_subjects(
    name: str, groups: list[int], clip: tuple[ClipPer, Pool], norm: float, seed: int
) -> None:
    compare(CASES[name], numbered(groups), Clip(*clip, norm), seed)


@pytest.mark.parametrize("items_at_a_time", [0, 1, 2, 3, 6, 100])
@pytest.mark.parametrize(("per", "pool"), CLIPS, ids=CLIP_NAMES)
def test_chunks_do_not_change_the_sum(
    per: ClipPer, pool: Pool, items_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = Layout.of(CASES["mlp"].model()).size
    monkeypatch.setattr(vmap_gradients, "MOST_VALUES", items_at_a_time * size + 1)
    compare(CASES["mlp"], numbered([0, 1, 1, 2, 0, 1, 3]), Clip(per, pool, 0.7))


@pytest.mark.parametrize("gradients", [vmap_sum, reference], ids=["vmap", "reference"])
@pytest.mark.parametrize(("per", "pool"), CLIPS, ids=CLIP_NAMES)
@pytest.mark.parametrize("name", CASES)
def test_an_empty_batch_sums_to_zeros(name: str, per: ClipPer, pool: Pool, gradients) -> None:
    model, vector, inputs, targets = CASES[name].batch(0, seed=0)
    nobody = torch.zeros(0, dtype=torch.int64)
    pooled = gradients.clipped_sum(model, cross_entropy, vector, inputs, targets, nobody, Clip(per, pool, 1.0))
    assert pooled.zeroed == 0
    assert torch.equal(pooled.total, torch.zeros_like(vector))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("per", "pool"), CLIPS, ids=CLIP_NAMES)
def test_agrees_on_items_without_a_finite_gradient(per: ClipPer, pool: Pool, bad: float) -> None:
    model, vector, inputs, targets = CASES["mlp"].batch(7, seed=0)
    inputs[2, 0] = inputs[5, 1] = bad
    arguments = (model, cross_entropy, vector, inputs, targets, numbered([0, 0, 1, 1, 2, 1, 3]), Clip(per, pool, 0.7))
    fast, slow = vmap_sum.clipped_sum(*arguments), reference.clipped_sum(*arguments)
    assert fast.total.isfinite().all()
    assert fast.zeroed == slow.zeroed > 0
    torch.testing.assert_close(fast.total, slow.total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("gradients", [vmap_sum, reference], ids=["vmap", "reference"])
@pytest.mark.parametrize(("per", "pool"), CLIPS, ids=CLIP_NAMES)
def test_neither_model_nor_parameters_are_touched(per: ClipPer, pool: Pool, gradients) -> None:
    model, vector, inputs, targets = CASES["frozen"].batch(5, seed=0)
    before, kept = flatten(model), vector.clone()
    arguments = (model, cross_entropy, vector, inputs, targets, numbered([0, 1, 1, 0, 2]), Clip(per, pool, 0.7))
    first = gradients.clipped_sum(*arguments).total
    assert torch.equal(first, gradients.clipped_sum(*arguments).total)
    assert torch.equal(flatten(model), before)
    assert torch.equal(vector, kept)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_are_taken_at_the_vector_and_not_at_the_models_own_parameters() -> None:
    model, vector, inputs, targets = CASES["logistic"].batch(4, seed=0)
    elsewhere, groups, clip = (
        vector + torch.arange(len(vector)) / 7,
        numbered([0, 1, 2, 3]),
        Clip(ClipPer.ITEM, Pool.SUM, 10.0),
    )
    here = vmap_sum.clipped_sum(model, cross_entropy, vector, inputs, targets, groups, clip).total
    there = vmap_sum.clipped_sum(model, cross_entropy, elsewhere * 2, inputs, targets, groups, clip).total
    slow = reference.clipped_sum(model, cross_entropy, elsewhere * 2, inputs, targets, groups, clip).total
    assert not torch.allclose(here, there)
    torch.testing.assert_close(there, slow, rtol=1e-10, atol=1e-10)


def test_a_frozen_parameter_has_no_place_in_the_sum() -> None:
    model, vector, inputs, targets = CASES["frozen"].batch(3, seed=0)
    whole = sum(parameter.numel() for parameter in model.parameters())
    pooled = vmap_sum.clipped_sum(
        model, cross_entropy, vector, inputs, targets, numbered([0, 1, 2]), Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    )
    assert len(pooled.total) == whole - model[1].weight.numel()
