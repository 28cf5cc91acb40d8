"""Subjects of several items are tried at every place in memory at which their rows may begin."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.batch_invariance import AnySize, PassSizes
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.rounding import SLACK
from wholegrain.clipping.trial_companies import companies, count_residues, rows_at_once

CLIP = Clip(ClipPer.SUBJECT, Pool.MEAN, 1e-12)
SIZE, PEOPLE = 6, 60


@dataclass(frozen=True)
class SmallPasses:
    """Passes of up to so many items, by eights."""

    most: int

    def fit(self, items: int) -> int | None:
        return size if (size := -(-items // 8) * 8) <= self.most else None


def places(size: int, residues: int, sizes: PassSizes) -> set[tuple[int, int]]:
    """(items before, subjects before) in vectors of so many values, of all subjects that are tried."""
    return {
        ((each.items_before + k * size) % residues, (each.before + k) % residues)
        for each in companies(size, residues, sizes)
        if each is not None
        for k in range(each.count)
    }


@pytest.mark.parametrize("sizes", [AnySize(), SmallPasses(160)])
@pytest.mark.parametrize("residues", [1, 2, 8, 16])
def test_every_pair_of_places_is_tried_for_small_subjects_and_every_difference_for_large_ones(
    residues: int, sizes: PassSizes
) -> None:
    for size in range(2, 33):
        found = places(size, residues, sizes)
        if size <= 6:
            assert len(found) == residues**2
        assert {(items - size * subjects) % residues for items, subjects in found} == set(range(residues))
        assert {items for items, _ in found} == {subjects for _, subjects in found} == set(range(residues))


@pytest.mark.parametrize("size", [3, 8, 32])
def test_subjects_are_tried_in_passes_that_training_has(size: int) -> None:
    """A large CNN's rows differ in passes of 192 items, which are not used, and which say nothing of subjects."""
    tried = list(companies(size, 8, SmallPasses(80)))
    assert all(each is not None and (each.units.items + each.filled) % 8 == 0 for each in tried)
    assert 64 < max(each.units.items + each.filled for each in tried if each) <= 80
    assert {who for turn, each in enumerate(tried) if each for who in each.subjects(turn).tolist()} == set(range(16))


@pytest.mark.parametrize("size", range(2, 33))
def test_a_trial_takes_no_more_rows_than_training_would(size: int) -> None:
    for rows in (rows_at_once(1218), rows_at_once(885_712)):
        tried = [each for each in companies(size, 1, AnySize(), rows) if each is not None]
        counts = [each.count for each in tried]
        assert max(each.units.items + each.filled for each in tried) <= rows + 2
        assert {1, min(3, rows // size), min(64, rows // size)} <= set(counts)


def test_subjects_for_whom_there_is_no_pass_are_not_tried() -> None:
    assert None in list(companies(24, 1, SmallPasses(16)))


def test_rows_of_whole_vectors_begin_at_one_place() -> None:
    assert count_residues([32, 32]) == 1
    assert count_residues([32, 10]) == 8
    assert count_residues([3]) == 16


def chosen_by_a_server(model: nn.Module) -> Tensor:
    """Two classes are equally likely and the third is not: items of both that are alike cancel but for rounding."""
    vector = flatten(model)
    views = Layout.of(model).views(vector)
    first = torch.randn(12, generator=torch.Generator().manual_seed(0))
    vector.zero_()
    views["0.bias"].fill_(1.0)
    views["3.weight"][0] = first
    views["3.bias"][:] = torch.tensor([-float(first.sum()), 0.0, -200.0])
    return vector


@pytest.mark.parametrize("seed", [1, 3])
def test_who_stands_before_a_subject_does_not_turn_its_gradient_round(seed: int) -> None:
    """3.95 C: what was tried had as many subjects before as items, and real batches have not."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    engine, vector, draws = BookKeeping(model, cross_entropy), chosen_by_a_server(model), np.random.default_rng(0)
    for _ in range(12):
        before = np.sort(draws.integers(1, SIZE, draws.integers(1, 12)))
        subjects = np.repeat(np.arange(len(before) + PEOPLE), [*before, *[SIZE] * PEOPLE])
        inputs = torch.from_numpy(draws.normal(size=(len(subjects), 2, 4)).astype(np.float32))
        targets = torch.zeros(len(subjects), dtype=torch.int64)
        alike = inputs[before.sum() :].view(PEOPLE, 2, SIZE // 2, 2, 4)
        alike[:, 1] = alike[:, 0]
        targets[before.sum() :].view(PEOPLE, 2, -1)[:, 1] = 1
        moved = [leave_out(gone, engine, vector, inputs, targets, subjects) for gone in (-1, 0, len(before) - 1)]
        assert max(float((moved[0] - each).norm()) for each in moved) <= CLIP.norm * (1 + SLACK)


def leave_out(
    gone: int, engine: BookKeeping, vector: Tensor, inputs: Tensor, targets: Tensor, subjects: np.ndarray
) -> Tensor:
    """The sum without this subject."""
    left = np.flatnonzero(subjects != gone)
    _, groups = np.unique(subjects[left], return_inverse=True)
    people = float(subjects.max() + 1)
    buckets = Buckets(scatter_codes(subjects * 7919), left, people, float(len(subjects)), largest=SIZE)
    return engine(vector, inputs[left], targets[left], torch.from_numpy(groups), CLIP, buckets).total.double()
