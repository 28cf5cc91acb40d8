"""Squared norms and sums of shares against gradients that are formed one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from effort import examples
from wholegrain.clipping import bookkeeping, ghost_norms
from wholegrain.clipping.bookkeeping import Rows, chunks
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.gradient_norms import gradient_lengths, merge_uses
from wholegrain.clipping.parameter_sums import LazyZeros, SingleSums
from wholegrain.clipping.parameters import Slot, Views

W, B, V = Slot("w"), Slot("b"), Slot("v")


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def formed(outward: Tensor, inward: Tensor, units: Units) -> tuple[Tensor, Tensor]:
    """Each unit's gradients of weight [unit, out, in] and bias [unit, out]."""
    return units.pool(torch.einsum("itp,itq->ipq", outward, inward)), units.pool(outward.sum(1))


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5).map(sorted),
    positions=st.integers(1, 4),
    widths=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    first=st.booleans(),
    biases=st.integers(0, 2),
    small=st.sampled_from((0, 1 << 19)),
    chunk=st.sampled_from((1, 1 << 22)),
)
@examples(60)
def test_outer(
    sizes: list[int], positions: int, widths: tuple[int, int], first: bool, biases: int, small: int,
    chunk: int,
) -> None:  # fmt: skip
    units, items = Units.of_sizes(np.array(sizes)), sum(sizes)
    outward, inward = drawn(0, items, positions, widths[0]), drawn(1, items, positions, widths[1])
    weight, bias = formed(outward, inward, units)
    expected = weight.flatten(1).square().sum(1) + biases * bias.square().sum(1)
    turn = (lambda rows: rows.transpose(0, 1).contiguous()) if first else (lambda rows: rows)
    slots = tuple(Slot(f"b{k}") for k in range(biases))
    share = Outer(turn(outward), ((W, turn(inward)),), slots, positions_first=first)
    weights = drawn(2, units.count)
    views = {"w": torch.full(widths, torch.nan, dtype=torch.float64)}
    views |= {slot.name: torch.full_like(bias[0], torch.nan) for slot in slots}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ghost_norms, "SMALL", small)
        patch.setattr(bookkeeping, "CHUNK", chunk)
        torch.testing.assert_close(share.lengths(units).squared, expected)
        share.add(units, units.whole, weights, SingleSums(LazyZeros(Views(torch.empty(0), views))))
    torch.testing.assert_close(views["w"], torch.einsum("u,upq->pq", weights, weight))
    for slot in slots:
        torch.testing.assert_close(views[slot.name], weights @ bias)


def test_two_uses_of_one_parameter_are_summed_before_they_are_squared() -> None:
    units, rows = Units.of_items(3), drawn(0, 3, 4)
    both = [Rows([(W, rows)]), Rows([(W, -rows), (B, rows)])]
    torch.testing.assert_close(gradient_lengths(merge_uses(both), units).squared, rows.square().sum(1))


def test_shares_that_are_tangled_through_a_third() -> None:
    units, a, b = Units.of_items(3), drawn(0, 3, 4), drawn(1, 3, 4)
    tangled = [Rows([(W, a)]), Rows([(B, b)]), Rows([(W, a), (B, a)]), Rows([(V, b)])]
    expected = (2 * a).square().sum(1) + (a + b).square().sum(1) + b.square().sum(1)
    torch.testing.assert_close(gradient_lengths(merge_uses(tangled), units).squared, expected)


def test_squares_do_not_change_what_is_held() -> None:
    units, held = Units.of_items(3), drawn(0, 3, 4)
    norms = held.square().sum(1)
    share = Rows([(W, held)], squares=norms.clone())
    for _ in range(2):
        torch.testing.assert_close(gradient_lengths(merge_uses([share, Rows([(B, held)])]), units).squared, 2 * norms)


@given(st.integers(0, 50), st.integers(0, 10))
def test_chunks_cover_all_units_once(count: int, values: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bookkeeping, "CHUNK", 7)
        parts = list(chunks(count, values))
    assert [unit for part in parts for unit in range(part.start, part.stop)] == list(range(count))
    assert all((part.stop - part.start) * values <= 7 or part.stop - part.start == 1 for part in parts)
