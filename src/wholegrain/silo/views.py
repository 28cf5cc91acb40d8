"""What a model, or its frozen part, makes of every item of a silo, without gradients."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.clipping.batch_invariance import FixedPlaces
from wholegrain.clipping.clip_units import scatter_codes
from wholegrain.clipping.proved_view import prove_view
from wholegrain.models.dropout import seed_items
from wholegrain.models.model_inputs import values

ROWS = 64
"""Items of a pass: always as many."""
HASHED = 1024
"""Items that are numbered at a time, which takes eight bytes for each of their values."""

View = Callable[[Tensor], Tensor]
"""A public function of an item, computed in the silo: what a frozen part of a model makes of it."""


def apply_view(stored: Tensor, view: View, subjects: NDArray[np.int64]) -> Tensor:
    """What the view makes of stored inputs [item, ...] of these subjects [item].

    Guarantee: an item's features are the same to the last bit whoever else is in the silo, whatever the parameters are.
    Every pass has one size, and an item's place in it follows from the item and its subject alone. A view whose rows
    cannot be proved to stay apart has a pass for each item.
    """
    if not len(stored):
        with torch.no_grad():
            return view(values(stored.new_zeros(1, *stored.shape[1:])))[:0]
    proved = prove_view(lambda rows: view(values(rows)), stored)
    rows, shown = (1, lambda some: view(values(some))) if proved is None else (ROWS, proved)
    found: Tensor | None = None
    for chosen, real in FixedPlaces(rows).passes(_numbers(stored, subjects), 1):
        with torch.no_grad():
            features = shown(stored[torch.from_numpy(chosen)])
        if found is None:
            found = features.new_empty(len(stored), *features.shape[1:])
        found[torch.from_numpy(chosen[real])] = features[torch.from_numpy(real)]
    assert found is not None
    return found


def _numbers(stored: Tensor, subjects: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number of each item, by its own values and its subject."""
    own = torch.cat([seed_items(some, 0, 0) for some in torch.split(stored, HASHED)])
    return np.asarray(scatter_codes(subjects) ^ own.numpy())
