"""What is clipped, and how one subject's items are pooled: the algebra of a contribution.

With g_i the gradient of item i, subject a's items S_a in the batch, and clip(v) = v·min(1, C/‖v‖):

    per item,    sum    Σ_i clip(g_i)                      LocalItemDP, LocalGroupDP
    per item,    mean   Σ_a (1/|S_a|)·Σ_{i∈a} clip(g_i)    HiGradAvgDP
    per subject, mean   Σ_a clip((1/|S_a|)·Σ_{i∈a} g_i)    SubjectDP
    per subject, sum    Σ_a clip(Σ_{i∈a} g_i)              SubjectDP with pool = "sum"
    per batch,   mean   clip((1/|B|)·Σ_i g_i)              UserLDP
    none,        sum    Σ_i g_i                            FedAvg
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from wholegrain import _check
from wholegrain.errors import SpecError

# Beyond these, single precision rounds away what a clip is to guarantee.
LEAST_NORM, MOST_NORM = 1e-15, 1e15


class ClipPer(StrEnum):
    """What one clipped vector belongs to."""

    NONE = "none"
    ITEM = "item"
    SUBJECT = "subject"
    BATCH = "batch"


class Pool(StrEnum):
    """How the gradients of one subject's items become one contribution."""

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True)
class Clip:
    """What is clipped, how a subject's items are pooled, and to which norm."""

    per: ClipPer
    pool: Pool
    norm: float

    def __post_init__(self) -> None:
        if not LEAST_NORM <= _check.positive("clip_norm", self.norm) <= MOST_NORM:
            raise SpecError(f"clip_norm must lie between {LEAST_NORM:g} and {MOST_NORM:g}, not {self.norm:g}.")
        if self.per is ClipPer.BATCH and self.pool is Pool.SUM:
            raise SpecError("A batch clipped as a whole is averaged first: use pool = mean.")

    def count(self, groups: Tensor) -> int:
        """How many vectors are clipped in a batch of items whose subjects are `groups` [item]."""
        if self.per is ClipPer.BATCH:
            return 1
        return len(torch.unique(groups)) if self.per is ClipPer.SUBJECT else len(groups)


@dataclass(frozen=True)
class ClippedTotal:
    """The sum of clipped contributions, before noise.

    Private: both fields; neither leaves a silo without noise. `zeroed` counts contributions left out because they were
    not finite.
    """

    total: Tensor  # [parameter]
    zeroed: int


def pool_gradients(gradients: Tensor, groups: Tensor, clip: Clip) -> ClippedTotal:
    """Pool per-item gradients [item, parameter] of items whose subjects are `groups` [item], numbered from 0.

    Guarantee: removing one subject's items moves `total` by at most C times the number of that subject's items (per
    item, sum), by at most C (per item, mean; per subject), or by at most 2C (per batch). A contribution that is not
    finite counts as zero.
    """
    if clip.per is ClipPer.BATCH:
        gradients = gradients.mean(0, keepdim=True) if len(gradients) else gradients
    elif clip.per is ClipPer.SUBJECT:
        gradients = _by_subject(gradients, groups, clip.pool)
    gradients, zeroed = _zero_non_finite(gradients)
    if clip.per is not ClipPer.NONE:
        gradients = _clip_rows(gradients, clip.norm)
    if clip.per is ClipPer.ITEM and clip.pool is Pool.MEAN:
        gradients = _by_subject(gradients, groups, Pool.MEAN)
    return ClippedTotal(gradients.sum(0), zeroed)


def _by_subject(rows: Tensor, groups: Tensor, pool: Pool) -> Tensor:
    subjects = int(groups.max()) + 1 if len(groups) else 0
    sums = rows.new_zeros(subjects, rows.shape[1]).index_add_(0, groups, rows)
    if pool is Pool.SUM:
        return sums
    counts: Tensor = torch.bincount(groups, minlength=subjects).clamp(min=1)
    return sums / counts[:, None]


def _zero_non_finite(rows: Tensor) -> tuple[Tensor, int]:
    finite = torch.isfinite(rows).all(1)
    # `where`, not a product: 0·inf is not 0.
    return torch.where(finite[:, None], rows, torch.zeros_like(rows)), int((~finite).sum())


def _clip_rows(rows: Tensor, norm: float) -> Tensor:
    """Each row at most `norm` long.

    In double precision, the product too: a factor that single precision cannot hold would be rounded up. Lengths are
    taken in units of a row's largest value, so that no square leaves floating point.
    """
    wide = rows.double()
    largest = wide.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float64).tiny)
    lengths = torch.linalg.vector_norm(wide / largest, dim=1, keepdim=True) * largest
    clipped: Tensor = (wide * (norm / lengths.clamp_(min=norm))).to(rows.dtype)
    return clipped
