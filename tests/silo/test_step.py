"""The one step: the sum plus noise of the row's scale, over the row's divisor."""

import numpy as np
import pytest
import torch
from torch import Tensor

from wholegrain.data.sampling import Batch, PoissonItems
from wholegrain.errors import SpecError
from wholegrain.gradients.pooling import Clip, ClipPer, Pool
from wholegrain.policies.policy import FixedNoise, NoiseByLargestGroup, Policy, PublicDivisor, RealisedSubjects
from wholegrain.silo.noise import Keys, SeededNoise
from wholegrain.silo.step import release

TOTAL = torch.tensor([4.0, -2.0, 0.0])
KEYS: Keys = (0, "north", 0)
# Three subjects, the largest with two items.
BATCH = Batch(np.array([3, 5, 8, 9]), np.array([0, 1, 1, 2]))
EMPTY = Batch(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Ones:
    """A noise source whose every value is one standard deviation."""

    name = "ones"

    def __init__(self) -> None:
        self.asked: list[tuple[float, Keys]] = []

    def gaussian(self, like: Tensor, std: float, keys: Keys) -> Tensor:
        self.asked.append((std, keys))
        return torch.full_like(like, std)


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
    source = Ones()
    released = release(TOTAL, batch, policy(), source, KEYS)
    assert released.tolist() == [(4 + 1.5) / 8, (-2 + 1.5) / 8, 1.5 / 8]
    assert source.asked == [(1.5, KEYS)]


@pytest.mark.parametrize(
    ("row", "batch", "expected"),
    [
        (policy(noise=NoiseByLargestGroup((1.0, 7.0))), BATCH, (4 + 3.5) / 8),
        (policy(noise=NoiseByLargestGroup((1.0, 7.0))), EMPTY, (4 + 0.5) / 8),
        (policy(divisor=RealisedSubjects()), BATCH, (4 + 1.5) / 3),
        (policy(divisor=RealisedSubjects()), EMPTY, (4 + 1.5) / 1),
    ],
    ids=["σ_Z", "σ_Z of nobody", "subjects", "no subjects"],
)
def test_the_papers_rows_look_at_the_batch(row: Policy, batch: Batch, expected: float) -> None:
    assert float(release(TOTAL, batch, row, Ones(), KEYS)[0]) == pytest.approx(expected)


def test_the_sum_is_left_as_it_was() -> None:
    total = TOTAL.clone()
    release(total, BATCH, policy(), Ones(), KEYS)
    release(total, BATCH, policy(noise=FixedNoise(0.0)), SeededNoise(0), KEYS)
    assert torch.equal(total, TOTAL)


def test_a_row_without_noise_yet_releases_nothing() -> None:
    row = Policy(name="a row", sampling=PoissonItems(0.5), clip=policy().clip, divisor=PublicDivisor(1.0))
    with pytest.raises(SpecError, match="'a row' has no noise yet"):
        release(TOTAL, BATCH, row, Ones(), KEYS)


def test_a_batch_counts_its_subjects() -> None:
    assert (BATCH.subjects, BATCH.largest_group, BATCH.group_sizes.tolist()) == (3, 2, [1, 2, 1])
    assert (EMPTY.subjects, EMPTY.largest_group) == (0, 0)
