"""What floating point can do to a clipped sum, from above: the constants of the clip theorem (docs/arithmetic.md).

The theorem: whatever finite parameters, inputs and targets are given, removing one subject moves the sum of clipped
contributions by at most C·(1 + SLACK), where C is what the policy's row allows. Noise is larger by the same factor.
Four things are paid for by it:

    NORM    a norm may come out too short by this part, so that a contribution is longer than the clip norm
    SUM     the sum of the subject's own group may be off by this part of C, with the subject and without it
    ADDED   adding up the sums of groups may be off by this part of C, with the subject and without it
    the rest of SLACK is room for a few roundings of weights

All bounds are those of Higham (Accuracy and Stability of Numerical Algorithms, §3): a sum of n products is off by at
most γ_n = n·u/(1 − n·u) times the sum of their sizes, whatever the order of summation.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

SLACK = 2.0**-6
NORM = 2.0**-8
SUM = 2.0**-8 * 1.03
ADDED = 2.0**-10

LEAST = 2.0**-97
"""Added to squares, once for each value. A square that underflows is below it by a factor of 2²⁹."""
MOST = 2.0**50
"""Longer factors are not trusted: a weight times the other factor could underflow by more than a clip norm is."""
RAISE = 2.0**28
"""Squares times this overflow where they are beyond MOST²."""
VECTOR_BYTES = 64
"""Where the widest vectors begin in memory."""
BLOCK = 8192
"""Values whose squares are added up at once."""


@lru_cache
def unit_roundoff(kind: torch.dtype) -> float:
    """u: by how much, relatively, one operation may be off."""
    return torch.finfo(kind).eps / 2


@lru_cache
def rounding_bound(terms: int, kind: torch.dtype) -> float:
    """γ_n for a sum of so many products; infinite where no bound can be given.

    >>> round(rounding_bound(256, torch.float32) * 2**16, 3)
    1.0
    """
    off = terms * unit_roundoff(kind)
    return off / (1 - off) if off < 0.5 else float("inf")


def all_finite(values: Tensor) -> bool:
    """Whether every value is finite, of numbers of any kind and shape."""
    # Much faster than a test of each value, and finite unless a value is not, or they are very large.
    quick = values.dim() == 1 and values.is_floating_point()
    return (quick and math.isfinite(torch.dot(values, values).item())) or bool(torch.isfinite(values).all())


def squared_norms(rows: Tensor, more: float = 0.0) -> Tensor:
    """Squared lengths of rows [row, value], and `more`; never shorter than true ones by more than a part of γ_BLOCK.

    Guarantee: for finite rows the result is at least (1 − NORM/4) times the true value, or not finite: what underflows
    is made up for by `LEAST`, and what overflows is infinite.
    """
    return _squares(rows).add_(constant_tensor(LEAST * rows.shape[-1] + more, rows.dtype))


def raised_squares(rows: Tensor, more: float = 0.0) -> Tensor:
    """RAISE times `squared_norms`: infinite in single precision where a row is longer than MOST."""
    return torch.add(constant_tensor((LEAST * rows.shape[-1] + more) * RAISE, rows.dtype), _squares(rows), alpha=RAISE)


def raised_product(one: Tensor, other: Tensor) -> Tensor:
    """The product of two raised squares, no longer raised; the first is overwritten. Either's infinity stays."""
    return one.mul_(constant_tensor(RAISE**-2, one.dtype)).mul_(other)


def _squares(rows: Tensor) -> Tensor:
    # The norm and its square again: a product and a sum would write all squares to memory, which takes thrice as long.
    width = rows.shape[-1]
    if width <= BLOCK:
        squares: Tensor = torch.linalg.vector_norm(rows, dim=-1).square_()
        return squares
    # Block after block, in one order for every row: a sum over a dimension is added up by where its column stands.
    whole = width // BLOCK
    blocks = rows[..., : whole * BLOCK].view(*rows.shape[:-1], whole, BLOCK)
    norms = [*torch.linalg.vector_norm(blocks, dim=-1).unbind(-1)]
    if width % BLOCK:
        norms.append(torch.linalg.vector_norm(rows[..., whole * BLOCK :], dim=-1))
    total: Tensor = norms[0].double().square_()
    for norm in norms[1:]:
        total.add_(norm.double().square_())
    return total.to(rows.dtype)


@lru_cache
def constant_tensor(value: float, kind: torch.dtype) -> Tensor:
    """A number as a tensor: for small operands, twice as fast as a number of Python's."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=kind)
