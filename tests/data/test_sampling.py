"""A batch lies in one order, whatever the order in which it was drawn: by size of the group, subject, item."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.clipping.clip_units import sort_into_runs
from wholegrain.data.draws import SecureDraws
from wholegrain.data.sampling import Batch, FixedItems, PoissonItems, PoissonSubjects, Sampling, Source
from wholegrain.data.subjects import SubjectIndex

SAMPLERS: list[Sampling] = [
    PoissonItems(0.6),
    PoissonItems(0.8, most_per_subject=2),
    PoissonSubjects(0.6),
    PoissonSubjects(0.8, items=2),
    FixedItems(1),
]
indexes = st.lists(st.integers(0, 6), min_size=1, max_size=25).map(lambda subjects: SubjectIndex.of(numbered(subjects)))

every_sampler = pytest.mark.parametrize("sampling", SAMPLERS, ids=str)


def numbered(subjects: list[int]) -> np.ndarray:
    """Subjects numbered from 0, none left out."""
    return np.unique(subjects, return_inverse=True)[1].astype(np.int64)


def draw(sampling: Sampling, index: SubjectIndex, seed: int) -> Batch:
    return sampling.draw(index, np.random.default_rng(seed))


@every_sampler
@given(index=indexes, seed=st.integers(0, 999))
def test_items_lie_by_size_of_group_then_subject_then_item(sampling: Sampling, index: SubjectIndex, seed: int) -> None:
    batch = draw(sampling, index, seed)
    subjects = index.subjects[batch.items]
    places = [
        (int((subjects == subject).sum()), subject, item) for subject, item in zip(subjects, batch.items, strict=True)
    ]
    assert places == sorted(set(places))


@every_sampler
@given(index=indexes, seed=st.integers(0, 999))
def test_groups_are_numbered_as_they_lie(sampling: Sampling, index: SubjectIndex, seed: int) -> None:
    batch = draw(sampling, index, seed)
    assert batch.groups.tolist() == np.repeat(np.arange(batch.subjects), batch.group_sizes).tolist()
    for group in range(batch.subjects):
        subject = set(index.subjects[batch.items[batch.groups == group]])
        assert len(subject) == 1
        assert not subject & set(index.subjects[batch.items[batch.groups != group]])


@given(index=indexes, seeds=st.tuples(st.integers(0, 999), st.integers(0, 999)))
def test_the_same_items_are_the_same_batch_however_they_were_drawn(index: SubjectIndex, seeds: tuple[int, int]) -> None:
    everything = FixedItems(index.items)
    one, other = (draw(everything, index, seed) for seed in seeds)
    assert one.items.tolist() == other.items.tolist()
    assert one.groups.tolist() == other.groups.tolist()


@given(index=indexes, seed=st.integers(0, 999))
def test_gradients_of_subjects_need_not_put_a_batch_in_order(index: SubjectIndex, seed: int) -> None:
    batch = draw(FixedItems(index.items), index, seed)
    order, sizes = sort_into_runs(torch.from_numpy(batch.groups))
    assert order is None
    assert sizes.tolist() == batch.group_sizes.tolist()


@every_sampler
@pytest.mark.parametrize(
    "source", [np.random.default_rng, lambda seed: SecureDraws(bytes(32))], ids=["seeded", "secure"]
)
@pytest.mark.parametrize("subjects", [[], [3]], ids=["nobody", "one item"])
def test_a_draw_never_fails(sampling: Sampling, source: Callable[[int], Source], subjects: list[int]) -> None:
    """Whoever fails where somebody is missing shows that somebody is missing."""
    index = SubjectIndex.of(np.array(subjects, np.int64))
    for larger in (sampling, FixedItems(40)):
        batch = larger.draw(index, source(0))
        assert len(batch.items) <= len(subjects)
    assert FixedItems(40).draw(index, source(0)).items.tolist() == list(range(len(subjects)))
