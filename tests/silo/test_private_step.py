"""The one step: the sum plus noise of the row's scale, over the row's divisor."""

import numpy as np
import pytest
import torch
from torch import Tensor

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.data.sampling import Batch, PoissonItems
from wholegrain.errors import SpecError
from wholegrain.policies.policy import FixedNoise, NoiseByLargestGroup, Policy, PublicDivisor, RealisedSubjects
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.private_step import release

# Three subjects, the largest with two items.
BATCH = Batch(np.array([3, 5, 8, 9]), np.array([0, 1, 1, 2]))
EMPTY = Batch(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Ones:
    """A stream of noise whose every value is one standard deviation."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        self.asked.append((multiplier, clip_norm))
        total.add_(multiplier * clip_norm)


def total() -> Tensor:
    """A sum to release; a release overwrites it."""
    return torch.tensor([4.0, -2.0, 0.0])


def policy(noise=None, divisor=None) -> Policy:
    return Policy(
        name="a row",
        sampling=PoissonItems(0.5),
        clip=Clip(ClipPer.ITEM, Pool.SUM, 0.5),
        noise=noise or FixedNoise(3.0),
        divisor=divisor or PublicDivisor(8.0),
    )


@pytest.mark.parametrize("batch", [BATCH, EMPTY], ids=["some", "none"])
def test_noise_and_divisor_of_a_public_row_are_the_same_for_any_batch(batch: Batch) -> None:
    stream = Ones()
    released = release(total(), batch, policy(), stream)
    assert released.tolist() == [(4 + 1.5) / 8, (-2 + 1.5) / 8, 1.5 / 8]
    assert stream.asked == [(3.0, 0.5)]


@pytest.mark.parametrize(
    ("row", "batch", "expected"),
    [
        (policy(noise=NoiseByLargestGroup({1: 1.0, 2: 7.0}.__getitem__, 2)), BATCH, (4 + 3.5) / 8),
        (policy(noise=NoiseByLargestGroup({1: 1.0, 2: 7.0}.__getitem__, 2)), EMPTY, (4 + 0.5) / 8),
        (policy(divisor=RealisedSubjects()), BATCH, (4 + 1.5) / 3),
        (policy(divisor=RealisedSubjects()), EMPTY, (4 + 1.5) / 1),
    ],
    ids=["σ_Z", "σ_Z of nobody", "subjects", "no subjects"],
)
def test_the_papers_rows_look_at_the_batch(row: Policy, batch: Batch, expected: float) -> None:
    assert float(release(total(), batch, row, Ones())[0]) == pytest.approx(expected)


@pytest.mark.parametrize("noise", [FixedNoise(3.0), FixedNoise(0.0)], ids=["noisy", "silent"])
def test_the_sum_is_overwritten_by_what_is_released(noise: FixedNoise) -> None:
    """No bare sum is left behind, and no second vector is made."""
    given = total()
    released = release(given, BATCH, policy(noise=noise), SeededNoise(0).stream(0, "north"))
    assert released is given
    assert not torch.equal(given, total())


def test_a_release_takes_the_next_part_of_its_stream() -> None:
    stream, again = SeededNoise(0).stream(0, "north"), SeededNoise(0).stream(0, "north")
    first, second = (release(total(), BATCH, policy(), stream) for _ in range(2))
    assert not torch.equal(first, second)
    for released in (first, second):
        expected = total()
        again.add_to(expected, 3.0, 0.5)
        assert torch.equal(released, expected / 8)


def test_a_row_without_noise_yet_releases_nothing() -> None:
    row = Policy(name="a row", sampling=PoissonItems(0.5), clip=policy().clip, divisor=PublicDivisor(1.0))
    stream = Ones()
    with pytest.raises(SpecError, match="'a row' has no noise yet"):
        release(total(), BATCH, row, stream)
    assert stream.asked == []


def test_a_batch_counts_its_subjects() -> None:
    assert (BATCH.subjects, BATCH.largest_group, BATCH.group_sizes.tolist()) == (3, 2, [1, 2, 1])
    assert (EMPTY.subjects, EMPTY.largest_group) == (0, 0)
