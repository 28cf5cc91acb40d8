"""What the programs in C have in common: how a batch is given to them, their losses, and when they are trusted."""

import ctypes
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from wholegrain.clipping import reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.losses import huber, squared_error
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import ClippedSum, Loss
from wholegrain.clipping.trial_items import TRIAL, perturb
from wholegrain.errors import ModelError

LOSSES: Mapping[Loss, int] = {
    cross_entropy: 0,
    binary_cross_entropy_with_logits: 1,
    squared_error: 2,
    huber: 3,
}
"""By the numbers that they have in C."""
DONE, NOT_IN_ORDER = 0, 1
"""What a program says, by its numbers in C."""
AGREES = 1e-3
"""How far a sum may be from the reference, relative to what was added up, before the compiler is not trusted."""


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


def give_batch(
    add_up: Callable[[BatchPlaces], tuple[int, int]], inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip
) -> tuple[int, int]:
    """Have a program add up a batch, subject by subject: what it says, and how many units it left out."""
    if groups.shape != inputs.shape[:1] or groups.dtype is not torch.int64:
        raise ModelError(f"There are {len(inputs)} items, and {len(groups)} of them have a subject.")
    units, shares = find_units(groups, clip)
    batch = BatchPlaces(place_of(inputs), place_of(targets), place_of(units), None, place_of(shares), len(inputs))
    done, zeroed = add_up(batch)
    if done == NOT_IN_ORDER:
        order = torch.argsort(groups, stable=True)
        batch.order = place_of(order)
        done, zeroed = add_up(batch)
    return done, zeroed


def require_agreement(
    sums: ClippedSum, model: nn.Module, loss: Loss, made_up: Iterable[Tensor], targets: Tensor
) -> None:
    """Compare with the reference on made-up items, as every way to compute gradients is before it is trusted."""
    vector, groups = perturb(flatten(model)), torch.arange(TRIAL) // 2
    for inputs in made_up:
        for clip in (Clip(ClipPer.ITEM, Pool.SUM, 0.1), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.1)):
            own = sums(vector, inputs, targets, groups, clip).total
            # Of each subject: gradients of two may cancel, and then what is left is rounding.
            wanted = [
                reference.clipped_sum(model, loss, vector, inputs[of], targets[of], groups[of], clip).total
                for of in (groups == 0, groups == 1)
            ]
            _require_near(own, torch.stack(wanted).double())


def _require_near(own: Tensor, wanted: Tensor) -> None:
    """Refuse a program whose sum is not that of these rows."""
    if not torch.linalg.vector_norm(own - wanted.sum(0)) <= AGREES * torch.linalg.vector_norm(wanted, dim=1).sum():
        raise ModelError(
            "The compiled program computes other gradients of this model than torch does: leave out compute.compiled."
        )
