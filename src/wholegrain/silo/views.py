"""What a model, or its frozen part, makes of every item of a silo, without gradients."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.clipping.batch_invariance import FixedPlaces
from wholegrain.clipping.clip_units import scatter_codes
from wholegrain.clipping.company import depends_on_company
from wholegrain.clipping.errors_as_values import attempt
from wholegrain.clipping.value_decisions import find_decision
from wholegrain.models.dropout import seed_items
from wholegrain.models.model_inputs import values

ROWS = 64
"""Items of a pass: always as many."""
HASHED = 1024
"""Items that are numbered at a time, which takes eight bytes for each of their values."""
TRIED = 3

View = Callable[[Tensor], Tensor]
"""A public function of an item, computed in the silo: what a frozen part of a model makes of it."""


def apply_view(stored: Tensor, view: View, subjects: NDArray[np.int64]) -> Tensor:
    """What the view makes of stored inputs [item, ...] of these subjects [item].

    Guarantee: an item's features are the same to the last bit whoever else is in the silo, whatever the parameters are.
    Every pass has one size, and an item's place in it follows from the item and its subject alone. A view that decides
    by values, or mixes items in any bit, has a pass for each item. Where it raises at an item, what it makes of the
    item is not finite; what it raises at items that are made up is raised, before any other is read.
    """
    with torch.no_grad():
        like = view(values(stored.new_zeros(1, *stored.shape[1:])))
    found = like.new_empty(len(stored), *like.shape[1:])
    if not len(stored):
        return found
    rows = 1 if _decides(view, stored) else ROWS
    for chosen, real in FixedPlaces(rows).passes(_numbers(stored, subjects), 1):
        features = view_items(view, stored[torch.from_numpy(chosen)], like)
        found[torch.from_numpy(chosen[real])] = features[torch.from_numpy(real)]
    return found


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


def _decides(view: View, like: Tensor) -> bool:
    """Whether the view looks at values to decide how to compute, or mixes items, as far as made-up items show."""
    draws, shape = torch.Generator().manual_seed(0), (TRIED, *like.shape[1:])
    drawn = torch.rand(shape, generator=draws) if like.is_floating_point() else torch.randint(2, shape, generator=draws)
    made_up = drawn.to(like.dtype)
    decides = find_decision(lambda rows: view(values(rows)), made_up) is not None
    return decides or depends_on_company(lambda rows, _: view(values(rows)), made_up)
