"""Batches in pieces: every unit once, whole, and as few pieces as sizes allow."""

import numpy as np
import pytest
import torch

from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.pieces import Piece, divide


def batch(sizes: list[int]) -> Piece:
    """A batch whose items know their unit."""
    units = Units.of_sizes(np.array(sizes))
    return Piece(units.of_item[:, None].float(), units.of_item, units, before=torch.arange(units.count).float())


@pytest.mark.parametrize(
    ("sizes", "most", "pieces"),
    [
        ([1, 2, 3, 4, 4, 4, 6, 8], 16, 2),  # in their order they would be 14, 10 and 8
        ([5, 5, 5], 16, 1),
        ([5, 5, 5, 5], 16, 2),
        ([1, 1, 40], 16, 2),
        ([40], 16, 1),
        ([9, 9, 9], 16, 3),
        ([1] * 33, 16, 3),
    ],
)
def test_whole_units_fill_few_pieces(sizes: list[int], most: int, pieces: int) -> None:
    """A unit that is larger than a piece may be comes alone."""
    found = list(divide(batch(sizes), most))
    assert len(found) == pieces
    for piece in found:
        assert piece.units.count == 1 or piece.units.items <= most
        assert piece.units.sizes is not None
        assert (piece.units.sizes[1:] >= piece.units.sizes[:-1]).all()
        assert piece.before is not None
        assert torch.equal(piece.before[piece.units.of_item], piece.targets.float())
    kept = torch.cat([piece.targets for piece in found])
    assert torch.equal(kept.sort().values, batch(sizes).targets)


def test_items_are_divided_in_their_order() -> None:
    """Without copies, and in pieces of nearly one size."""
    inputs = torch.arange(40.0)[:, None]
    found = list(divide(Piece(inputs, torch.arange(40), Units.of_items(40)), 16))
    assert [len(piece.inputs) for piece in found] == [16, 16, 8]
    assert torch.equal(torch.cat([piece.inputs for piece in found]), inputs)
    assert found[1].inputs.data_ptr() == inputs[16:].data_ptr()
