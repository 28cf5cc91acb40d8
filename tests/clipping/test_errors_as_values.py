"""An item at which the model raises counts as zero, and nobody else notices."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool
from wholegrain.clipping.devices import HOST, USUAL, Compute
from wholegrain.clipping.errors_as_values import ErrorsAsValues
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.parted_sum import PartedSum
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.subject_updates import LocalUpdate, SubjectUpdates
from wholegrain.errors import ModelError
from wholegrain.models.dropout import with_item_coins

pytestmark = pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")

CODES, FEATURES, PEOPLE, ITEMS, WHO = 5, 4, 40, 160, 7
BEYOND = 1e6
"""No value that is made up is as large."""
HALF = Compute(HOST, torch.bfloat16)
CLIPS = [Clip(per, pool, 0.5) for per in ClipPer for pool in Pool if (per, pool) != (ClipPer.BATCH, Pool.SUM)]


class Lookup(nn.Module):
    """An embedding that is looked up by the first column."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CODES, 3), nn.Linear(FEATURES + 2, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.drop(torch.cat([self.embedding(x[:, 0].long()), x[:, 1:]], 1)))
        return found


class Choosing(nn.Module):
    """Goes another way at some values, which no trial has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[:, 0] > BEYOND / 2).any()):
            raise ValueError("a value that tells of somebody")
        return self.head(x)  # type: ignore[no-any-return]


class BackwardRaises(nn.Module):
    """Raises in the backward pass alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        return Raising.apply(self.head(x), x[:, 0])  # type: ignore[no-any-return, no-untyped-call]


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, outputs: Tensor, codes: Tensor) -> Tensor:
        ctx.codes = codes  # type: ignore[attr-defined]
        return outputs.clone()

    @staticmethod
    def backward(ctx: object, outward: Tensor) -> tuple[Tensor, None]:
        if bool((ctx.codes > BEYOND / 2).any()):  # type: ignore[attr-defined]
            raise IndexError("a value that tells of somebody")
        return outward, None


def batch(raises: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
    """A batch in which these items of WHO, by rank, have a value that the model does not take."""
    draws = torch.Generator().manual_seed(0)
    groups = torch.arange(ITEMS) % PEOPLE
    inputs = torch.randn(ITEMS, FEATURES, generator=draws)
    inputs[:, 0] = torch.randint(CODES, (ITEMS,), generator=draws).float()
    inputs[torch.nonzero(groups == WHO)[list(raises), 0], 0] = BEYOND
    return inputs, torch.randint(3, (ITEMS,), generator=draws), groups


def call(sums: ClippedSum, given: tuple[Tensor, Tensor, Tensor], clip: Clip, vector: Tensor) -> ClippedTotal:
    """With the numbers of a silo in which the batch is all there is; what is public stays the same."""
    inputs, targets, groups = given
    buckets = Buckets(scatter_codes(groups.numpy()), np.arange(len(groups)), PEOPLE, ITEMS, 4)
    numbered = torch.unique(groups, return_inverse=True)[1]
    return sums(vector, inputs, targets, numbered, clip, buckets)


def left(given: tuple[Tensor, Tensor, Tensor], kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return given[0][kept], given[1][kept], given[2][kept]


def lookup() -> nn.Module:
    return with_item_coins(Lookup())


MODELS: dict[str, tuple[Callable[[], nn.Module], Compute]] = {
    "lookup": (lookup, USUAL),
    "lookup in bfloat16": (lookup, HALF),
    "choosing": (Choosing, USUAL),
    "backward": (BackwardRaises, USUAL),
    "backward in bfloat16": (BackwardRaises, HALF),
}


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: f"{clip.per} {clip.pool}")
@pytest.mark.parametrize("case", MODELS)
def test_whoever_raises_counts_as_zero_and_others_are_the_same_to_the_last_bit(case: str, clip: Clip) -> None:
    torch.manual_seed(0)
    make, compute = MODELS[case]
    model = make()
    vector, given = flatten(model), batch(raises=(1, 3))
    found = call(clipped_sums(model, cross_entropy, compute), given, clip, vector)
    if clip.per is ClipPer.BATCH:
        assert (found.total == 0).all()
        assert found.zeroed == 1
        return
    raises = given[0][:, 0] > BEYOND / 2
    gone = given[2] == WHO if clip.per is ClipPer.SUBJECT else raises
    wanted = call(clipped_sums(model, cross_entropy, compute), left(given, ~gone), clip, vector)
    assert torch.equal(found.total, wanted.total)
    assert found.total.dtype is wanted.total.dtype
    assert found.zeroed == wanted.zeroed + (1 if clip.per is ClipPer.SUBJECT else 2)


def test_an_engine_is_the_same_after_an_error() -> None:
    torch.manual_seed(0)
    model, clip = lookup(), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.5)
    sums, vector = clipped_sums(model, cross_entropy, USUAL), flatten(model)
    before = call(sums, batch(), clip, vector).total.clone()
    call(sums, batch(raises=(0,)), clip, vector)
    assert torch.equal(call(sums, batch(), clip, vector).total, before)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_target_that_is_no_class_counts_as_zero(compiled: bool) -> None:
    torch.manual_seed(0)
    model, clip = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3)), Clip(ClipPer.ITEM, Pool.SUM, 0.5)
    sums, vector = clipped_sums(model, cross_entropy, replace(USUAL, compiled=compiled)), flatten(model)
    inputs, targets, groups = batch()
    wrong = torch.arange(ITEMS) == 11
    found = call(sums, (inputs, torch.where(wrong, 3, targets), groups), clip, vector)
    wanted = call(sums, left((inputs, targets, groups), ~wrong), clip, vector)
    assert torch.equal(found.total, wanted.total)
    assert found.zeroed == 1


def test_a_batch_of_nothing_but_errors_is_zero() -> None:
    model, clip = lookup(), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.5)
    inputs, targets, groups = batch()
    found = call(clipped_sums(model, cross_entropy, USUAL), (inputs + BEYOND, targets, groups), clip, flatten(model))
    assert (found.total == 0).all()
    assert found.zeroed == PEOPLE


def test_in_updates_and_in_parts_nothing_is_raised_either() -> None:
    torch.manual_seed(0)
    model, clip, vector = lookup(), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.5), flatten(lookup())
    sums = clipped_sums(model, cross_entropy, USUAL)
    everything, without = batch(raises=(0, 1, 2, 3)), left(batch(), batch()[2] != WHO)
    for way in (SubjectUpdates(sums, LocalUpdate(2, 0.1)), PartedSum(sums, 2)):
        wanted = call(way, without, clip, vector).total.clone()
        assert torch.equal(call(way, everything, clip, vector).total, wanted)


def test_a_model_that_raises_by_company_raises_nothing() -> None:
    """It is no model for a proof; still, nobody is told, and everybody counts that can be computed alone."""

    def fussy(
        vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip, buckets: Buckets | None = None
    ) -> ClippedTotal:
        if len(set(targets.tolist())) > 1:
            raise ValueError("two kinds of people at a time")
        return real(vector, inputs, targets, groups, clip, buckets)

    model, clip = nn.Linear(FEATURES, 3), Clip(ClipPer.ITEM, Pool.SUM, 0.5)
    real, vector = clipped_sums(model, cross_entropy, USUAL), flatten(model)
    inputs, _, groups = batch()
    given = inputs, groups % 3, groups
    found = call(ErrorsAsValues(fussy, model), given, clip, vector)
    torch.testing.assert_close(found.total, call(real, given, clip, vector).total.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [FEATURES - 1, FEATURES + 1])
def test_what_every_item_would_raise_is_raised(width: int) -> None:
    model, clip = nn.Sequential(nn.Linear(FEATURES, 3)), Clip(ClipPer.ITEM, Pool.SUM, 0.5)
    sums, (_, targets, groups) = clipped_sums(model, cross_entropy, USUAL), batch()
    with pytest.raises(ModelError, match="shapes cannot be multiplied"):
        call(sums, (torch.zeros(ITEMS, width), targets, groups), clip, flatten(model))
    with pytest.raises(ModelError, match="The model has 15 parameters"):
        call(sums, batch(), clip, torch.zeros(width))


def test_a_full_memory_is_no_fault_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    model, clip = nn.Sequential(nn.Linear(FEATURES, 3)), Clip(ClipPer.ITEM, Pool.SUM, 0.5)
    sums = clipped_sums(model, cross_entropy, USUAL)
    call(sums, batch(), clip, flatten(model))

    def full(*given: object) -> ClippedTotal:
        raise MemoryError

    monkeypatch.setattr(sums, "engine", full)
    with pytest.raises(MemoryError):
        call(sums, batch(), clip, flatten(model))
