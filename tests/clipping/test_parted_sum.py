"""A sum in parts: by subject, the same bits whoever computes which part, and nobody else's part changes."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.parted_sum import ComputePart, PartedSum, SumPart, choose_parts, sum_in_parts
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.rounding import SLACK
from wholegrain.clipping.subject_updates import LocalUpdate, SubjectUpdates
from wholegrain.errors import SpecError
from wholegrain.models.dropout import with_item_coins
from wholegrain.models.model_catalog import build

CLIPS = {
    "per item": Clip(ClipPer.ITEM, Pool.SUM, 0.3),
    "per item, mean of a subject": Clip(ClipPer.ITEM, Pool.MEAN, 0.3),
    "per subject": Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3),
    "per subject, sum": Clip(ClipPer.SUBJECT, Pool.SUM, 0.3),
    "none": Clip(ClipPer.NONE, Pool.SUM, 1.0),
}
every_clip = pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())
LOCAL = LocalUpdate(3, 0.1)


class Batch:
    """People 0 to 29 of a silo, with one to four items each."""

    def __init__(self, without: int | None = None) -> None:
        draws = torch.Generator().manual_seed(5)
        subjects = np.repeat(np.arange(30), 1 + np.arange(30) % 4)
        inputs = torch.randn(len(subjects), 6, generator=draws) * 10 ** torch.randn(len(subjects), 1, generator=draws)
        targets = torch.randint(3, (len(subjects),), generator=draws)
        stay = subjects != without
        self.subjects = subjects[stay]
        self.inputs, self.targets = inputs[torch.from_numpy(stay)], targets[torch.from_numpy(stay)]
        self.groups = torch.from_numpy(np.unique(self.subjects, return_inverse=True)[1])
        # What is public stays: it is declared.
        self.buckets = Buckets(scatter_codes(self.subjects), np.arange(len(self.subjects)), 30.0, 75.0, 4)

    def sum_up(self, gradients: ClippedSum, vector: Tensor, clip: Clip) -> ClippedTotal:
        return gradients(vector, self.inputs, self.targets, self.groups, clip, self.buckets)


def make_model() -> nn.Module:
    return build("mlp", 6, 3, seed=1, options={"hidden": (9,)})


def engine() -> BookKeeping:
    return BookKeeping(make_model(), cross_entropy)


VECTOR = flatten(make_model())


def compute_backwards(parts: Sequence[SumPart | None], compute: ComputePart) -> list[ClippedTotal]:
    """Each with an engine of its own, the last part first."""
    made = [compute(part) for part in reversed(parts) if part is not None]
    return made[::-1]


@every_clip
@pytest.mark.parametrize("count", [2, 5])
def test_parts_add_up_to_the_sum_in_whatever_order_they_are_computed(clip: Clip, count: int) -> None:
    batch = Batch()
    whole = batch.sum_up(engine(), VECTOR, clip).total
    found = batch.sum_up(PartedSum(engine(), count), VECTOR, clip).total
    torch.testing.assert_close(found, whole.double(), rtol=1e-5, atol=1e-5)
    assert found.dtype is torch.float64
    assert torch.equal(found, batch.sum_up(PartedSum(engine(), count).over(compute_backwards), VECTOR, clip).total)


def test_updates_of_several_local_steps_add_up_as_well() -> None:
    batch, clip = Batch(), CLIPS["per subject"]
    whole = batch.sum_up(SubjectUpdates(engine(), LOCAL), VECTOR, clip).total
    found = batch.sum_up(PartedSum(engine(), 3).of_updates(LOCAL), VECTOR, clip).total
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found, batch.sum_up(PartedSum(engine(), 3), VECTOR, clip).total)


class Watched:
    """Computes parts here, and keeps what they come to."""

    def __init__(self) -> None:
        self.totals: dict[int, Tensor] = {}

    def __call__(self, parts: Sequence[SumPart | None], compute: ComputePart) -> list[ClippedTotal]:
        found = {place: compute(part) for place, part in enumerate(parts) if part is not None}
        self.totals = {place: each.total.double() for place, each in found.items()}
        return list(found.values())


@pytest.mark.parametrize("name", ["per item", "per subject"])
def test_whoever_leaves_changes_one_part_by_what_the_clip_allows(name: str) -> None:
    clip, watch = CLIPS[name], Watched()
    parted = PartedSum(engine(), 4).over(watch)
    # Parameters that cancel large numbers: the last bit of a row would decide the sign of another.
    vector = VECTOR * 1e4
    whole = Batch().sum_up(parted, vector, clip).total
    before, moves = watch.totals, []
    for subject in range(30):
        left = Batch(without=subject)
        moved = whole - left.sum_up(parted, vector, clip).total
        items = 1 + subject % 4 if clip.per is ClipPer.ITEM else 1
        moves.append(float(moved.norm()) / (clip.norm * items))
        (own,) = choose_parts(scatter_codes(np.array([subject])), 4).tolist()
        assert {place for place in before if place not in watch.totals} <= {own}
        others = watch.totals.keys() - {own}
        assert all(torch.equal(before[place], watch.totals[place]) for place in others)
    assert max(moves) <= 1 + SLACK
    assert max(moves) > 0.9


def test_subjects_are_spread_evenly_over_parts_and_within_a_part_over_groups() -> None:
    numbers = scatter_codes(np.arange(30_000))
    parts = choose_parts(numbers, 3)
    assert set(parts.tolist()) == {0, 1, 2}
    # Thirds within six standard deviations.
    assert np.abs(np.bincount(parts) - 10_000).max() < 6 * np.sqrt(30_000 * 2 / 9)
    for part in range(3):
        group = (numbers[parts == part] >> 32) * 8 >> 31
        assert np.abs(np.bincount(group, minlength=8) - 1250).max() < 6 * np.sqrt(10_000 * 7 / 64)


def test_an_empty_batch_and_parts_without_anybody() -> None:
    batch = Batch()
    nobody = batch.subjects < 0
    none = torch.from_numpy(nobody)
    buckets = Buckets(batch.buckets.table, np.flatnonzero(nobody), 30.0, 75.0, 4)
    parted = PartedSum(engine(), 4)
    empty = parted(VECTOR, batch.inputs[none], batch.targets[none], batch.groups[none], CLIPS["per item"], buckets)
    assert torch.equal(empty.total, torch.zeros_like(VECTOR, dtype=torch.float64))
    many = batch.sum_up(PartedSum(engine(), 1000), VECTOR, CLIPS["per item"]).total
    torch.testing.assert_close(many, batch.sum_up(parted, VECTOR, CLIPS["per item"]).total, rtol=1e-6, atol=1e-6)


def test_contributions_that_are_not_finite_are_counted_in_all_parts() -> None:
    batch = Batch()
    batch.inputs[::7] = torch.inf
    zeroed = batch.sum_up(engine(), VECTOR, CLIPS["per item"]).zeroed
    assert batch.sum_up(PartedSum(engine(), 3), VECTOR, CLIPS["per item"]).zeroed == zeroed == len(batch.inputs[::7])


def test_coins_of_dropout_are_those_of_the_whole_batch() -> None:
    def gradients() -> BookKeeping:
        return BookKeeping(with_item_coins(nn.Sequential(*make_model(), nn.Dropout(0.5))), cross_entropy)

    batch, whole, parted = Batch(), gradients(), PartedSum(gradients(), 3)
    assert parted.draws_coins
    assert not PartedSum(engine(), 3).draws_coins
    found = []
    for key in (1, 2):
        whole.renew_coins(key)
        parted.renew_coins(key)
        expected = batch.sum_up(whole, VECTOR, CLIPS["per item"]).total.double()
        found.append(batch.sum_up(parted, VECTOR, CLIPS["per item"]).total)
        torch.testing.assert_close(found[-1], expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(*found)


def test_one_part_is_the_sum_itself_and_a_batch_that_is_clipped_as_one_has_no_parts() -> None:
    gradients, clip = engine(), Clip(ClipPer.BATCH, Pool.MEAN, 1.0)
    assert sum_in_parts(gradients, 1, clip) is gradients
    with pytest.raises(SpecError, match=r"user_ldp.*leave out compute\.ranks_per_silo"):
        sum_in_parts(gradients, 2, clip)
    with pytest.raises(SpecError, match=r"clips the mean of a whole batch"):
        Batch().sum_up(PartedSum(gradients, 2), VECTOR, clip)
