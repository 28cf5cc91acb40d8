"""Passes of one size, where the kernels of others are not trusted."""

import torch

from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.pieces import Piece, whole_groups
from wholegrain.clipping.sum_groups import SumGroups


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
