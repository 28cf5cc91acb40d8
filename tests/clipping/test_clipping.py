"""The algebra of a contribution: what is clipped, pooled and left out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from effort import examples
from wholegrain.clipping.clipping import Clip, ClipPer, Pool, pool_gradients
from wholegrain.errors import SpecError

BAD = [float("nan"), float("inf"), -float("inf")]
ROWS = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 2.0], [-6.0, 8.0], [0.1, 0.0]], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 1, 1, 2])


def clipped(row: Tensor, norm: float) -> Tensor:
    return row * min(1.0, norm / float(row.norm()))


def mean(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows).mean(0)


# The table of the module's docstring, written out for ROWS and GROUPS at C = 1.
BY_HAND = {
    (ClipPer.ITEM, Pool.SUM): sum(clipped(row, 1.0) for row in ROWS),
    (ClipPer.ITEM, Pool.MEAN): mean([clipped(ROWS[0], 1.0), clipped(ROWS[1], 1.0)])
    + mean([clipped(ROWS[2], 1.0), clipped(ROWS[3], 1.0)])
    + clipped(ROWS[4], 1.0),
    (ClipPer.SUBJECT, Pool.MEAN): clipped(mean([ROWS[0], ROWS[1]]), 1.0)
    + clipped(mean([ROWS[2], ROWS[3]]), 1.0)
    + clipped(ROWS[4], 1.0),
    (ClipPer.SUBJECT, Pool.SUM): clipped(ROWS[0] + ROWS[1], 1.0) + clipped(ROWS[2] + ROWS[3], 1.0) + ROWS[4],
    (ClipPer.BATCH, Pool.MEAN): clipped(ROWS.mean(0), 1.0),
    (ClipPer.NONE, Pool.SUM): ROWS.sum(0),
}


@pytest.mark.parametrize(("per", "pool"), BY_HAND, ids=["-".join(key) for key in BY_HAND])
def test_pools_as_the_formulas_say(per: ClipPer, pool: Pool) -> None:
    pooled = pool_gradients(ROWS, GROUPS, Clip(per, pool, 1.0))
    torch.testing.assert_close(pooled.total, BY_HAND[per, pool], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@examples(60)
@given(
    exponents=st.lists(st.integers(-30, 30), min_size=1, max_size=8),
    clip=st.sampled_from([(ClipPer.ITEM, Pool.MEAN), (ClipPer.SUBJECT, Pool.MEAN), (ClipPer.BATCH, Pool.MEAN)]),
    norm=st.floats(1e-3, 1e3),
    seed=st.integers(0, 1000),
)
def test_one_contribution_is_never_longer_than_the_clip_norm(
    dtype: torch.dtype, exponents: list[int], clip: tuple[ClipPer, Pool], norm: float, seed: int
) -> None:
    scales = torch.tensor([10.0**exponent for exponent in exponents], dtype=torch.float64)
    rows = torch.randn(len(scales), 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    one_subject = torch.zeros(len(scales), dtype=torch.int64)
    total = pool_gradients((rows * scales[:, None]).to(dtype), one_subject, Clip(*clip, norm)).total
    assert float(total.double().norm()) <= norm * (1 + 8 * torch.finfo(dtype).eps)


def test_a_vector_within_the_norm_is_left_as_it_is_and_a_longer_one_keeps_its_direction() -> None:
    rows = torch.tensor([[0.6, 0.0], [30.0, 40.0]])
    for row, expected in zip(rows, [[0.6, 0.0], [0.6, 0.8]], strict=True):
        total = pool_gradients(row[None], torch.tensor([0]), Clip(ClipPer.ITEM, Pool.SUM, 1.0)).total
        torch.testing.assert_close(total, torch.tensor(expected))


def test_norms_do_not_drift_in_long_float32_vectors() -> None:
    row = torch.full((1, 4_000_000), 1.0)
    total = pool_gradients(row, torch.tensor([0]), Clip(ClipPer.ITEM, Pool.SUM, 1.0)).total
    assert float(total.double().norm()) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("per", "pool", "left", "zeroed"),
    [
        (ClipPer.ITEM, Pool.SUM, [0, 3, 4], 2),
        (ClipPer.SUBJECT, Pool.SUM, [3, 4], 1),
        (ClipPer.SUBJECT, Pool.MEAN, [3, 4], 1),
        (ClipPer.BATCH, Pool.MEAN, [], 1),
        (ClipPer.NONE, Pool.SUM, [0, 3, 4], 2),
    ],
)
def test_a_contribution_that_is_not_finite_counts_as_zero(
    per: ClipPer, pool: Pool, left: list[int], zeroed: int, bad: float
) -> None:
    rows, groups, clip = ROWS.clone(), torch.tensor([0, 0, 0, 1, 2]), Clip(per, pool, 1.0)
    rows[1, 0] = rows[2, 1] = bad
    pooled = pool_gradients(rows, groups, clip)
    without = pool_gradients(ROWS[left], groups[left], clip)
    assert pooled.zeroed == zeroed
    torch.testing.assert_close(pooled.total, without.total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", BAD)
def test_within_a_subjects_mean_an_item_that_is_not_finite_still_counts_as_one_of_its_items(bad: float) -> None:
    rows = torch.tensor([[0.6, 0.0], [bad, 0.0]])
    pooled = pool_gradients(rows, torch.tensor([0, 0]), Clip(ClipPer.ITEM, Pool.MEAN, 1.0))
    assert pooled.zeroed == 1
    torch.testing.assert_close(pooled.total, torch.tensor([0.3, 0.0]))


def test_finite_gradients_that_overflow_when_averaged_count_as_zero() -> None:
    rows = torch.full((2, 2), 3e38)
    pooled = pool_gradients(rows, torch.tensor([0, 0]), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0))
    assert pooled.zeroed == 1
    assert torch.equal(pooled.total, torch.zeros(2))


def test_a_batch_clipped_as_a_whole_cannot_be_summed() -> None:
    with pytest.raises(SpecError, match="pool = mean"):
        Clip(ClipPer.BATCH, Pool.SUM, 1.0)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_norm_is_a_positive_number(norm: float) -> None:
    with pytest.raises(SpecError, match="clip_norm"):
        Clip(ClipPer.ITEM, Pool.SUM, norm)
