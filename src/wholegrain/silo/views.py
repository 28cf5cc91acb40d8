"""What a model, or its frozen part, makes of every item of a silo, without gradients."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain.clipping.batch_invariance import FixedPlaces
from wholegrain.clipping.clip_units import scatter_codes
from wholegrain.clipping.devices import HOST
from wholegrain.clipping.errors_as_values import attempt
from wholegrain.clipping.isolation import Isolated
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
    cannot be proved to stay apart has a pass for each item, by a copy of its own. Where it raises at an item, what it
    makes of the item is not finite; what it raises at items that are made up is raised, before any other is read.
    """
    with torch.no_grad():
        like = view(values(stored.new_zeros(1, *stored.shape[1:])))
    found = like.new_empty(len(stored), *like.shape[1:])
    if not len(stored):
        return found
    proved = prove_view(view, values(stored[:1]))
    rows, shown = (1, _isolated(view)) if proved is None else (ROWS, proved)
    for chosen, real in FixedPlaces(rows).passes(_numbers(stored, subjects), 1):
        features = view_items(shown, stored[torch.from_numpy(chosen)], like)
        found[torch.from_numpy(chosen[real])] = features[torch.from_numpy(real)]
    return found


def _isolated(view: View) -> View:
    """The same function by copies of a module that nobody has used."""
    if not isinstance(view, nn.Module):
        return view
    isolated = Isolated(view, None, HOST)

    def shown(rows: Tensor) -> Tensor:
        with isolated.fresh() as (copy, _):
            found: Tensor = copy(rows)
        return found

    return shown


@torch.no_grad()
def view_items(view: View, items: Tensor, like: Tensor) -> Tensor:
    """What the view makes of these items in one pass; whoever it raises at gives the place to another.

    Of such an item comes what is not finite, in the form of what the view makes of one, `like`.
    """
    if (found := attempt(lambda: view(values(items)))) is not None:
        return found
    nothing = torch.full_like(like, math.nan) if like.is_floating_point() else torch.zeros_like(like)
    alone = [attempt(partial(_view_copy, view, one)) for one in torch.split(items, 1)]
    raised = torch.tensor([each is None for each in alone])
    instead = items.clone()
    instead[raised] = items[~raised][:1] if not raised.all() else 0
    found = attempt(lambda: view(values(instead)))
    if found is None:  # then it depends on the company
        found = torch.cat([nothing if each is None else each for each in alone])
    found[raised] = nothing[0]
    return found


def _view_copy(view: View, item: Tensor) -> Tensor:
    return view(values(item.clone()))


def _numbers(stored: Tensor, subjects: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number of each item, by its own values and its subject."""
    own = torch.cat([seed_items(some, 0, 0) for some in torch.split(stored, HASHED)])
    return np.asarray(scatter_codes(subjects) ^ own.numpy())
