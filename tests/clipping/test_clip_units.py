import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.clipping.clip_units import Units, sort_into_runs

groupings = st.lists(st.integers(0, 9), min_size=1, max_size=20).map(torch.tensor)


@given(groupings)
def test_arranged_puts_subjects_side_by_side_and_equal_sizes_together(groups: torch.Tensor) -> None:
    order, sizes = sort_into_runs(groups)
    arrangement = groups if order is None else groups[order]
    assert sizes.tolist() == sorted(torch.bincount(groups)[torch.bincount(groups) > 0].tolist())
    subjects, counts = torch.unique_consecutive(arrangement, return_counts=True)
    assert len(subjects.unique()) == len(subjects)
    assert counts.tolist() == sizes.tolist()


@given(groupings)
def test_arranged_moves_every_item_once(groups: torch.Tensor) -> None:
    order, _ = sort_into_runs(groups)
    if order is not None:
        assert sorted(order.tolist()) == list(range(len(groups)))


@given(groupings)
def test_runs_cover_every_item_and_unit_once(groups: torch.Tensor) -> None:
    _, sizes = sort_into_runs(groups)
    units = Units.of_sizes(sizes)
    items = [item for run in units.runs for item in range(run.items.start, run.items.stop)]
    covered = [unit for run in units.runs for unit in range(run.units.start, run.units.stop)]
    assert items == list(range(len(groups)))
    assert covered == list(range(units.count))
    assert [run.size for run in units.runs] == sorted({int(size) for size in sizes})


@given(groupings)
def test_pool_sums_a_subject_and_spread_gives_it_back(groups: torch.Tensor) -> None:
    order, sizes = sort_into_runs(groups)
    units, values = Units.of_sizes(sizes), torch.arange(len(groups), dtype=torch.float64)
    arranged_groups = groups if order is None else groups[order]
    pooled = units.spread(units.pool(values))
    expected = [float(values[arranged_groups == subject].sum()) for subject in arranged_groups]
    assert pooled.tolist() == expected


@given(st.integers(1, 20))
def test_items_are_units_of_one_item(count: int) -> None:
    items, ones = Units.of_items(count), Units.of_sizes(np.ones(count, dtype=np.int64))
    rows = torch.arange(2 * count, dtype=torch.float64).view(count, 2)
    assert items.runs == ones.runs
    assert torch.equal(items.of_item, ones.of_item)
    assert torch.equal(items.pool(rows), ones.pool(rows))
    assert torch.equal(items.spread(rows[:, 0]), ones.spread(rows[:, 0]))
