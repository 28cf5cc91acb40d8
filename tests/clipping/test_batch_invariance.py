"""Sizes of passes: one whose rows depend on each other is passed over for a larger one."""

import torch
from torch import Tensor

from wholegrain.clipping.batch_invariance import LARGER, WIDE, SteadySizes
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.pieces import Piece, whole_groups
from wholegrain.clipping.sum_groups import SumGroups

PERIOD = 31


def sizes(*wrong: int) -> SteadySizes:
    """Rows repeat in every pass but those of the wrong sizes, where the last differs."""

    def run(size: int) -> list[Tensor]:
        rows = (torch.arange(size) % PERIOD).double()
        rows[-1] += size in wrong
        return [rows]

    return SteadySizes(run, PERIOD, 1)


def test_a_size_that_fails_is_filled_up_to_the_next_that_passes() -> None:
    assert sizes().fit(40) == 40
    assert sizes(40).fit(40) == 64
    assert sizes(40, 64).fit(40) == 96
    assert sizes(40, *(64 + k * WIDE for k in range(LARGER))).fit(40) is None


def test_groups_of_the_sum_are_taken_apart_whole() -> None:
    """Where a group is cut must not depend on who is in others."""
    numbers = torch.tensor([0, 1, 2**61, 2**61 + 1, 2**62]).numpy()
    items = torch.arange(5)
    piece = Piece(items, items, Units.of_items(5), numbers=numbers)
    grouping = SumGroups(False, lambda _: 4, lambda _: 256)
    parts = [each.inputs.tolist() for each in whole_groups(piece, grouping)]
    assert [item for part in parts for item in part] == items.tolist()
    for gone in range(5):
        stay = items != gone
        rest = Piece(items[stay], items[stay], Units.of_items(4), numbers=numbers[stay.numpy()])
        left = [each.inputs.tolist() for each in whole_groups(rest, grouping)]
        assert left == [own for part in parts if (own := [item for item in part if item != gone])]
    assert [len(each.inputs) for each in whole_groups(piece, SumGroups(True, lambda _: 1, lambda _: 256))] == [5]


def test_passes_that_memory_does_not_allow_are_not_tried() -> None:
    tried: list[int] = []

    def run(size: int) -> list[torch.Tensor]:
        tried.append(size)
        return [torch.arange(size) % PERIOD]

    few = SteadySizes(run, PERIOD, 1, most=100)
    assert few.fit(101) is None
    assert not tried
    assert few.fit(100) == 100
