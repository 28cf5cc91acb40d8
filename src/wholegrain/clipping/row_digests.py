"""One number for each row of a tensor, by which rows of two passes are compared bit by bit without keeping them.

The rows of all layers of a large model, with every gradient that was formed, take several times the memory of a step.
"""

from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 1 << 18
"""Values that are read at a time."""
NOT_A_NUMBER = 1.1
"""Stands for whatever is not a number, of which there are many kinds that compare as one."""


def digest_rows(rows: Tensor) -> Tensor:
    """A number for each row [row, ...]: equal for equal rows, and different for rows that differ in one value.

    Rows that differ in several values have the same number with a probability of about 2⁻³².

    >>> digest_rows(torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0000002], [2.0, 1.0]])).unique().numel()
    3
    >>> digest_rows(torch.tensor([[0.0], [-0.0]])).unique().numel()
    1
    """
    width = rows[0].numel() if len(rows) else 0
    kind = torch.int32 if rows.element_size() == 4 else torch.int64
    factors = _odd_numbers(1 << max(0, width - 1).bit_length(), kind)[:width]
    # Cut first: rows that lie apart in memory are copied when they are laid out.
    parts = (part.reshape(len(part), width) for part in torch.split(rows, max(1, CHUNK // max(1, width))))
    return torch.cat([_bits(part, kind).mul_(factors).sum(1, dtype=torch.int64) for part in parts])


def _bits(rows: Tensor, kind: torch.dtype) -> Tensor:
    """The bits of every value; zero has one sign only."""
    # In one place: large blocks that come and go between small ones that stay leave holes which nothing fits into.
    small = rows.numel() <= CHUNK
    out = _scratch(rows.dtype)[: rows.numel()].view(rows.shape) if small else torch.empty_like(rows)
    return torch.nan_to_num(rows, NOT_A_NUMBER, torch.inf, -torch.inf, out=out).add_(0.0).view(kind)


@lru_cache(maxsize=2)
def _scratch(kind: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty(CHUNK, dtype=kind)


@lru_cache(maxsize=8)
def _odd_numbers(count: int, kind: torch.dtype) -> Tensor:
    """Odd, so that a product with one of them is another for every other value."""
    limits = torch.iinfo(kind)
    with torch.inference_mode(False):
        draws = torch.Generator().manual_seed(5)
        return torch.randint(limits.min, limits.max, (count,), dtype=kind, generator=draws).bitwise_or_(1)
