"""Parts of a batch that are computed at once: whole units, as many as memory and the sizes of passes allow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.clipping.batch_invariance import FixedPlaces, round_size_up
from wholegrain.clipping.clip_units import UnitRun, Units, sort_into_runs
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.rounding import SUM
from wholegrain.clipping.sum_groups import SumGroups


@dataclass(eq=False, slots=True)  # not frozen: some are made for each step, and freezing triples their cost
class Piece:
    """Whole units of a batch that are computed at once.

    A unit's gradient is multiplied by `before` when it is measured and summed, by `after` only when it is summed: the
    mean of a subject's gradients, or the mean of its clipped gradients. `numbers` say to which group of the sum a unit
    belongs; None where there is one group. `shares` are the parts of its group's rounding that each unit may have; a
    whole group's add up to 1.
    """

    inputs: Tensor
    targets: Tensor
    units: Units
    before: Tensor | None = None  # [unit]
    after: Tensor | None = None  # [unit]
    numbers: NDArray[np.int64] | None = None  # [unit]
    shares: NDArray[np.float64] | None = None  # [unit]; None before they are known, and where nothing is clipped

    def tolerance(self, units: slice, clip: Clip) -> float:
        """How far the sum of these units may be off."""
        return SUM * clip.norm * (1.0 if self.shares is None else float(self.shares[units].sum()))


def arrange_batch(
    inputs: Tensor,
    targets: Tensor,
    groups: Tensor,
    clip: Clip,
    kind: torch.dtype,
    numbers: NDArray[np.int64] | None,
) -> Piece:
    """The whole batch with its units: subjects where they are clipped as one, otherwise items."""
    if clip.per is ClipPer.SUBJECT:
        order, sizes = sort_into_runs(groups, numbers)
        units = Units.of_sizes(sizes)
        before = units.sizes.to(kind).reciprocal_() if clip.pool is Pool.MEAN and units.sizes is not None else None
        if order is not None:
            inputs, targets = inputs[order], targets[order]
            numbers = None if numbers is None else numbers[order.numpy()][np.cumsum(sizes) - 1]
        return Piece(inputs, targets, units, before=before, numbers=numbers)
    after = None
    if clip.per is ClipPer.ITEM and clip.pool is Pool.MEAN:
        after = 1 / torch.bincount(groups).to(kind)[groups]
    if numbers is not None and (numbers[1:] < numbers[:-1]).any():
        order = torch.from_numpy(np.argsort(numbers, kind="stable"))
        inputs, targets, numbers = inputs[order], targets[order], numbers[order.numpy()]
        after = None if after is None else after[order]
    return Piece(inputs, targets, Units.of_items(inputs.shape[0]), after=after, numbers=numbers)


def fill_up(piece: Piece, size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of so many items: what is missing is the first item again, which costs nothing."""
    inputs, targets = piece.inputs, piece.targets
    more = size - inputs.shape[0]
    if not more:
        return inputs, targets
    return (
        torch.cat([inputs, inputs[:1].expand(more, *inputs.shape[1:])]),
        torch.cat([targets, targets[:1].expand(more, *targets.shape[1:])]),
    )


def take_part(batch: Piece, start: int, stop: int) -> Piece:
    """Neighbouring units from `start` to `stop`."""
    units, sizes = slice(start, stop), batch.units.sizes
    ends = None if sizes is None else np.concatenate([[0], np.cumsum(sizes.numpy())])
    items = units if ends is None else slice(int(ends[start]), int(ends[stop]))
    return Piece(
        batch.inputs[items],
        batch.targets[items],
        Units.of_items(stop - start) if sizes is None else Units.of_sizes(sizes[units].numpy()),
        None if batch.before is None else batch.before[units],
        None if batch.after is None else batch.after[units],
        None if batch.numbers is None else batch.numbers[units],
        None if batch.shares is None else batch.shares[units],
    )


def take_some(piece: Piece, chosen: Tensor) -> Piece:
    """The units that a mask [unit] chooses."""
    items, sizes = piece.units.spread(chosen), piece.units.sizes
    return Piece(
        piece.inputs[items],
        piece.targets[items],
        Units.of_items(int(chosen.sum())) if sizes is None else Units.of_sizes(sizes[chosen].numpy()),
        None if piece.before is None else piece.before[chosen],
        None if piece.after is None else piece.after[chosen],
        None if piece.numbers is None else piece.numbers[chosen.numpy()],
        None if piece.shares is None else piece.shares[chosen.numpy()],
    )


def each_unit(count: int) -> Iterator[Tensor]:
    """A mask of its own for every unit."""
    for unit in range(count):
        one = torch.zeros(count, dtype=torch.bool)
        one[unit] = True
        yield one


def divide(block: Piece, most_items: int) -> Iterator[Piece]:
    """Pieces of at most so many items; a unit that is larger comes alone."""
    units = block.units
    items = units.whole.items.stop
    even = _divide_evenly(items, most_items)
    if units.sizes is None:
        for start in range(0, units.count, even):
            yield take_part(block, start, min(units.count, start + even))
    elif items <= even or units.count == 1:
        yield block
    else:
        # In even pieces, unless sizes do not fit into as few of them.
        packed = min((pack_units(units.runs, most) for most in (even, most_items)), key=len)
        for chosen in packed:
            yield take_some(block, chosen)


def whole_groups(piece: Piece, grouping: SumGroups) -> Iterator[Piece]:
    """Each group of the sum by itself; the piece, where it is one."""
    if grouping.single:
        yield piece
        return
    for _, group in grouping.groups(piece.units, piece.numbers):
        yield take_part(piece, group.units.start, group.units.stop)


def pack_units(runs: Sequence[UnitRun], most_items: int) -> list[Tensor]:
    """The units of each piece as a mask [unit]: the largest that still fits comes next, so that few places stay empty.

    >>> [chosen.tolist() for chosen in pack_units(Units.of_sizes(np.array([1, 2, 2, 3])).runs, 4)]
    [[True, False, False, True], [False, True, True, False]]
    """
    left, packed = [run.count for run in runs], []
    while any(left):
        chosen, room = torch.zeros(runs[-1].units.stop, dtype=torch.bool), most_items
        for k in range(len(runs) - 1, -1, -1):
            run, empty = runs[k], room == most_items
            taken = min(left[k], max(room // run.size, 1 if empty and run.size > most_items else 0))
            first = run.units.stop - left[k]
            chosen[first : first + taken] = True
            left[k], room = left[k] - taken, room - taken * run.size
        packed.append(chosen)
    return packed


def _divide_evenly(items: int, most: int) -> int:
    """The same number of pieces, but of nearly equal sizes, in steps in which passes are filled up.

    >>> _divide_evenly(512, 145), _divide_evenly(100, 145), _divide_evenly(300, 145)
    (128, 145, 104)
    """
    even = round_size_up(-(-items // -(-items // most)), 1)
    return even if items > most and even <= most else most


def pad_to_places(block: Piece, run: UnitRun) -> Iterator[Piece]:
    """A group in passes in which every unit has its own place; who only fills up counts nothing."""
    assert block.numbers is not None
    alone = block.units.sizes is None
    for chosen, real in FixedPlaces().passes(block.numbers, run.size):
        places = torch.from_numpy(chosen)
        items = (places[:, None] * run.size + torch.arange(run.size)).view(-1)
        counts = torch.from_numpy(real).to(torch.get_default_dtype())
        yield Piece(
            block.inputs[items],
            block.targets[items],
            Units.of_items(len(chosen)) if alone else Units.of_sizes(np.full_like(chosen, run.size)),
            None if block.before is None else block.before[places],
            counts if block.after is None else block.after[places] * counts,
            None,
            None if block.shares is None else block.shares[chosen] * real,
        )
