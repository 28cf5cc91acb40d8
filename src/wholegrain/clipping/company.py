"""Whether an item's row depends on the company that it is in, to the last bit.

A model that mixes items is refused where one item's output is visibly another in company (`mixes_items`). A little is
enough to break a bound, though: a server can choose parameters that blow it up. Here nothing is small: with the same
number of rows, and at the same places, other values in the other rows must change no bit of a row.
"""

from collections.abc import Callable

import torch
from torch import Tensor

SIZES = (3, 16)
"""Of batches that are tried."""
LOUD = 1024
"""How many times as large as the items the company is, where it is numbers."""

Rows = Callable[[Tensor, Tensor], Tensor]
"""Rows [item, ...] of these inputs [item, ...] and numbers of items [item]."""


@torch.no_grad()
def depends_on_company(run: Rows, items: Tensor) -> bool:
    """Whether other values in other rows change a row; also where that cannot be tried."""
    try:
        return any(_changes(run, items, size, first) for size in SIZES for first in (0, 1))
    except Exception:  # the model is the user's own code
        return True


def _changes(run: Rows, items: Tensor, size: int, first: int) -> bool:
    """Whether every second row, from the first or the second on, is another beside other rows."""
    number = torch.arange(size) % len(items)
    beside = (number + 1) % len(items)
    loud = items * LOUD if items.is_floating_point() else items
    kept = torch.arange(size) % 2 == first
    company, who = items[number].clone(), torch.where(kept, number, beside)
    company[~kept] = loud[beside[~kept]]
    before, after = run(items[number].clone(), number), run(company, who)
    if before.shape != after.shape or before.shape[0] != size:
        return True
    one, other = before[kept], after[kept]
    return not bool(((one == other) | (one.isnan() & other.isnan())).all())
