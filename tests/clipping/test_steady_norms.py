"""Norms that do not depend on who else is measured, and comparisons that see the same things in any company."""

import numpy as np
import torch

from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.gradient_norms import merge_uses
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rounding import BLOCK, squared_norms
from wholegrain.clipping.trial import measure_units

WIDTH, POSITIONS = 80, 16


def test_the_norm_of_a_long_row_does_not_depend_on_its_place() -> None:
    for seed in range(6):
        row = torch.randn(32 * BLOCK, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(squared_norms(row.expand(6, -1).clone()), squared_norms(row[None]).expand(6))


def test_as_much_is_compared_of_subjects_alone_as_behind_others() -> None:
    """Where subjects of three items are formed and single items measured by products, which have several parts."""
    assert len(_measure([3, 3])) == len(_measure([1, 1, 3, 3]))


def _measure(sizes: list[int]) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    outward, inward = torch.randn(2, sum(sizes), POSITIONS, WIDTH, generator=draws)
    units = Units.of_sizes(np.array(sizes))
    return list(measure_units(merge_uses([Outer(outward, ((Slot("weight"), inward),), ())]), units))
