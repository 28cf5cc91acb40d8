"""Batches of several steps at once: those that as many single draws give."""

from dataclasses import dataclass

import numpy as np
import pytest

from draw_cases import SAMPLINGS
from wholegrain.data.draws import SecureDraws
from wholegrain.data.sampling import (
    Batch,
    PoissonItems,
    Sampling,
    Source,
    draw_batches,
)
from wholegrain.data.subjects import SubjectIndex


def index(items: int, subjects: int, in_order: bool) -> SubjectIndex:
    codes = np.random.default_rng(items).integers(0, subjects, items)
    return SubjectIndex.of(np.sort(codes) if in_order else codes)


def source(secure: bool) -> Source:
    return SecureDraws(bytes(32)) if secure else np.random.default_rng(5)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize(("items", "subjects"), [(0, 1), (1, 1), (7, 3), (300, 40), (500, 500), (70_000, 3)])
def test_batches_at_once_are_those_of_single_draws(
    items: int, subjects: int, sampling: Sampling, in_order: bool, secure: bool
) -> None:
    data = index(items, subjects, in_order)
    for count in (1, 2, 7):
        single, together = source(secure), source(secure)
        wanted = [sampling.draw(data, single) for _ in range(count)]
        found = draw_batches(sampling, data, together, count)
        assert len(found) == count
        for own, other in zip(found, wanted, strict=True):
            assert own.items.dtype == own.groups.dtype == np.int64
            assert np.array_equal(own.items, other.items)
            assert np.array_equal(own.groups, other.groups)


@dataclass(frozen=True)
class Halved(PoissonItems):
    """A sampling of one's own, with another law."""

    def draw(self, index: SubjectIndex, draws: Source) -> Batch:
        whole = super().draw(index, draws)
        return Batch(whole.items[:1], whole.groups[:1])


def test_a_sampling_of_ones_own_keeps_its_law() -> None:
    found = draw_batches(Halved(1.0), index(10, 3, True), np.random.default_rng(0), 4)
    assert [len(batch.items) for batch in found] == [1, 1, 1, 1]
