"""Matrix products in single precision, by the library that is faster on this kind of processor.

Torch multiplies by MKL, which on AMD's processors runs at less than half the speed of oneDNN, torch's other library.
Which one multiplies follows from the processor and from sizes of a layer, never from how many rows there are.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WORTH = 1 << 12
"""Values of a matrix that all rows are multiplied with, from which on a product is worth the way to oneDNN."""
NARROW = 8
"""Rows or columns of it, below which it is not."""


@cache
def prefers_onednn() -> bool:
    """Whether this processor is AMD's, and torch was built with oneDNN."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def product_for(target: Any, right: Tensor) -> Callable[..., Tensor]:
    """What computes `mm` or `addmm` with a right factor like this, which everybody shares."""
    operation: Callable[..., Tensor] = target._op
    if prefers_onednn() and is_worth(right):
        return multiply if target is torch.ops.aten.mm.default else add_multiplied
    return _in_order(operation) if right.numel() < WORTH else operation


def _in_order(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """With a small right factor that lies in memory by rows.

    By columns, as a layer's transposed weight does, MKL adds up some rows in another order than others.
    """

    def multiplied(*given: Tensor) -> Tensor:
        return operation(*given[:-1], given[-1].contiguous())

    return multiplied


def is_worth(matrix: Tensor) -> bool:
    """Whether a matrix is large enough in both directions."""
    return (
        matrix.dtype is torch.float32 and matrix.dim() == 2 and matrix.numel() >= WORTH and min(matrix.shape) >= NARROW
    )


def multiply(rows: Tensor, right: Tensor) -> Tensor:
    """Rows [row, k] times right [k, column], by oneDNN."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise(rows, right.t(), None, "none", [], "")
    return made


def add_multiplied(bias: Tensor, rows: Tensor, right: Tensor) -> Tensor:
    """The same plus a bias [column]."""
    if bias.dim() != 1:
        return torch.addmm(bias, rows, right)
    made: Tensor = torch.ops.mkldnn._linear_pointwise(rows, right.t(), bias, "none", [], "")
    return made


def add_product(total: Tensor, left: Tensor, right: Tensor, *, begun: bool) -> None:
    """Add left [row, k] times right [k, column] to a total, which holds anything where it has not begun."""
    if not (prefers_onednn() and is_worth(total) and left.dtype is torch.float32):
        total.addmm_(left, right, beta=int(begun))
        return
    # With the shorter side as rows, which is faster.
    tall = left.shape[0] > right.shape[1]
    made = multiply(right.t(), left.t()).t() if tall else multiply(left, right)
    if begun:
        total.add_(made)
    else:
        total.copy_(made)
