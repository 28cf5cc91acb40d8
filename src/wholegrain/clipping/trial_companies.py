"""In which company subjects of several items are tried: every way in which their rows may lie in memory.

Libraries round products of several rows by where these begin in a vector of 16 values. Rows of items begin by how many
items come before, rows of subjects by how many subjects do, and the two are independent of each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
import torch
from torch import Tensor

from wholegrain.clipping.batch_invariance import LEAST_ROWS, PassSizes
from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.ghost_norms import SMALL, Outer

RESIDUES = 16
"""Values of the widest vector, at each of which a row may begin."""
DIFFERENT = 16
"""Subjects that differ: a wrong last bit is seen in some of them."""
COUNTS = ((1, 1), (3, 2), (24, 1), (64, 0))
"""So many subjects behind so many others: libraries have other ways for few and for many products."""
MOST_ROWS, MOST_ROWS_SMALL, SMALL_MODEL = 96, 192, 1 << 16
"""Items of subjects that are tried at once; more only for models of so few parameters that it takes no memory."""


@dataclass(frozen=True)
class Company:
    """Subjects of one size, behind some of one item and some of two."""

    count: int
    size: int
    singles: int
    doubles: int = 0
    filled: int = 0
    """Items that fill up the pass, behind them."""

    @property
    def before(self) -> int:
        """Subjects before them."""
        return self.singles + self.doubles

    @property
    def items_before(self) -> int:
        """Items before theirs."""
        return self.singles + 2 * self.doubles

    @property
    def units(self) -> Units:
        """All of them."""
        return Units.of_sizes(np.array([1] * self.singles + [2] * self.doubles + [self.size] * self.count))

    def subjects(self, turn: int) -> Tensor:
        """Which of the different subjects they are; in every turn each stands at another place."""
        return (torch.arange(self.count) + 5 * turn) % DIFFERENT

    def items(self, subjects: Tensor) -> Tensor:
        """Numbers of the items of these subjects, one subject after the other."""
        return (subjects[:, None] * 3 * self.size + torch.arange(self.size)).view(-1)


def companies(size: int, residues: int, sizes: PassSizes, rows: int = MOST_ROWS) -> Iterator[Company | None]:
    """All that subjects of so many items are tried in, where rows may begin at so many places of a vector.

    The first ones have all different subjects. With t subjects before, b of them with two items, a subject's rows begin
    by t, and those of its items by t + b: every pair is tried for subjects of up to 6 items, of more every difference
    and a part of the pairs. At most `rows` items are tried at once. Each company is filled up to a size of pass that is
    trusted; where there is none for so many subjects, fewer are tried, and None says that there is none even for one.

    >>> from wholegrain.clipping.batch_invariance import AnySize
    >>> [sum(each.count for each in companies(4, residues, AnySize())) for residues in (1, 16)]
    [44, 300]
    """
    tried = 0
    while tried < DIFFERENT:
        found = _fit(Company(min(DIFFERENT, rows // size), size, 0), sizes)
        yield found
        tried += found.count if found else DIFFERENT
    at_once = max(1, min(residues, rows // size))
    for doubles in range(residues) if residues > 1 else ():
        subjects = RESIDUES + 6 * doubles % residues  # even, so that differences stay different
        yield _fit(Company(at_once, size, subjects - doubles, doubles), sizes)
    for count, others in {min(count, rows // size): others for count, others in reversed(COUNTS)}.items():
        yield _fit(Company(count, size, max(others, LEAST_ROWS - count * size)), sizes)  # no pass has fewer rows


def rows_at_once(parameters: int) -> int:
    """How many items of subjects are tried at once, for a model of so many parameters."""
    return MOST_ROWS_SMALL if parameters <= SMALL_MODEL else MOST_ROWS


def _fit(company: Company, sizes: PassSizes) -> Company | None:
    """With as many subjects as a pass of a trusted size has room for, filled up to it; None where it is none."""
    while company.count:
        if (size := sizes.fit(company.units.items)) is not None:
            return replace(company, filled=size - company.units.items)
        company = replace(company, count=company.count - 1 - company.count // 8)
    return None


def count_residues(widths: Sequence[int]) -> int:
    """At how many places of a vector rows of these widths may begin: at one, where all are whole vectors long.

    >>> count_residues([32, 64]), count_residues([32, 10]), count_residues([3])
    (1, 8, 16)
    """
    return RESIDUES // gcd(RESIDUES, *widths)


def relevant_widths(widths: Sequence[int], shares: Sequence[Share]) -> list[int]:
    """Without rows shorter than a vector, such as a few classes' scores, where no product of several rows has them.

    A subject's gradients in small layers with one position are products of single values that are added up item by
    item, which round alike wherever they stand. (Models of nothing but such layers have them side by side, in rows that
    may begin anywhere.)
    """
    small = [isinstance(share, Outer) and share.is_dense and share.width <= SMALL for share in shares]
    others = [share for share, is_small in zip(shares, small, strict=True) if not is_small]
    if not others or any(rows[0].numel() < RESIDUES for share in others for rows in share.rows()):
        return list(widths)
    return [width for width in widths if width >= RESIDUES]
