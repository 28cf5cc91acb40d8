"""Digests tell rows apart that differ in a bit."""

import pytest
import torch

from wholegrain.clipping import row_digests
from wholegrain.clipping.row_digests import digest_rows


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 300])
def test_any_other_last_bit_gives_another_number(kind: torch.dtype, width: int) -> None:
    row = torch.randn(width, dtype=kind, generator=torch.Generator().manual_seed(0))
    rows = row.repeat(width + 1, 1)
    for k in range(width):
        rows[k, k] = torch.nextafter(rows[k, k], torch.tensor(torch.inf, dtype=kind))
    found = digest_rows(rows)
    assert not (found[:width] == found[width]).any()
    assert torch.equal(digest_rows(rows.clone()), found)


def test_it_does_not_matter_how_many_rows_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(50, 3, 5, generator=torch.Generator().manual_seed(0))
    at_once = digest_rows(rows)
    monkeypatch.setattr(row_digests, "CHUNK", 1)
    assert torch.equal(digest_rows(rows), at_once)


def test_what_is_not_a_number_is_one_kind_and_infinities_are_two() -> None:
    nan, inf = torch.nan, torch.inf
    found = digest_rows(torch.tensor([[nan, 1.0], [-nan, 1.0], [inf, 1.0], [-inf, 1.0], [3.4e38, 1.0]]))
    assert found[0] == found[1]
    assert found.unique().numel() == 4


def test_how_rows_lie_in_memory_makes_no_difference() -> None:
    rows = torch.randn(3, 700, 200, generator=torch.Generator().manual_seed(0))
    assert torch.equal(digest_rows(rows), digest_rows(rows.transpose(0, 1).contiguous().transpose(0, 1)))
