"""What the programs in C have in common: how a batch is given to them, their losses, and when they are trusted."""

import ctypes
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from wholegrain.errors import ModelError
from wholegrain.gradients.clipping import Clip, ClipPer, Pool
from wholegrain.gradients.losses import huber, squared_error
from wholegrain.gradients.reference import Loss

LOSSES: Mapping[Loss, int] = {
    cross_entropy: 0,
    binary_cross_entropy_with_logits: 1,
    squared_error: 2,
    huber: 3,
}
"""By the numbers that they have in C."""
AGREES = 1e-3
"""How far a sum may be from the reference, relative to its length, before the compiler is not trusted."""


class BatchPlaces(ctypes.Structure):
    """Where a batch lies in memory. Private: what lies there, and how many items there are."""

    _fields_ = (
        ("inputs", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("groups", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("shares", ctypes.c_void_p),
        ("items", ctypes.c_int64),
    )


def place_of(values: Tensor | None) -> int | None:
    """Where values lie in memory."""
    return None if values is None else values.data_ptr()


def find_units(groups: Tensor, clip: Clip) -> tuple[Tensor | None, Tensor | None]:
    """The unit of each item (None where each is one by itself), and what items count after they are clipped."""
    if clip.per is ClipPer.SUBJECT:
        return groups.contiguous(), None
    if clip.per is ClipPer.BATCH:
        return torch.zeros(len(groups), dtype=torch.int64), None
    if clip.per is ClipPer.ITEM and clip.pool is Pool.MEAN:
        _, subjects, counts = np.unique(groups.numpy(), return_inverse=True, return_counts=True)
        return None, torch.from_numpy(1 / counts[subjects])
    return None, None


def require_agreement(own: Tensor, wanted: Tensor) -> None:
    """Refuse a program whose sum is not the reference's."""
    if not torch.linalg.vector_norm(own - wanted) <= AGREES * torch.linalg.vector_norm(wanted.double()):
        raise ModelError(
            "The compiled program computes other gradients of this model than torch does: leave out compute.compiled."
        )
