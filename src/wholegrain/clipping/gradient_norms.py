"""Norms of whole gradients from what all layers kept; gradients of a shared parameter are summed first."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import CHUNK, Lengths, Share, chunks, distrust_lost, join_runs
from wholegrain.clipping.clip_units import UnitRun, Units
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.rounding import rounding_bound, squared_norms


class Uses(NamedTuple):
    """All shares of a pass; and the same in groups that have no parameter in common."""

    shares: Sequence[Share]
    groups: Sequence[Sequence[Share]]


def gradient_lengths(uses: Uses, units: Units) -> Lengths:
    """Of each unit's whole gradient."""
    assert uses.shares, "a model without trainable parameters is refused before"
    return add_lengths([group_lengths(group, units) for group in uses.groups])


def group_lengths(group: Sequence[Share], units: Units) -> Lengths:
    """Of each unit's gradient in the parameters of one group."""
    return group[0].lengths(units) if len(group) == 1 else _lengths_of_shared(group, units)


def add_lengths(found: Sequence[Lengths]) -> Lengths:
    """Of gradients in all of these parameters."""
    if len(found) == 1:
        return found[0]
    squared = sum((each.squared for each in found[1:]), found[0].squared)
    if all(each.apart is None for each in found):
        return Lengths(squared)
    parts = [each.squared if each.apart is None else each.apart for each in found]
    return Lengths(squared, sum(parts[1:], parts[0]))


def merge_uses(shares: Sequence[Share]) -> Uses:
    """The same shares, with all uses of one layer as a single share: norms and sums must come from the same products.

    Uses that pull against each other leave a small difference of large numbers; rounded in one way for the norm and in
    another for the sum, it would let a contribution through that is longer than the clip norm.
    """
    touched = [slot.name for share in shares for slot in share.slots]
    if len(set(touched)) == len(touched):
        return Uses(shares, [(share,) for share in shares])
    groups = [_merge_group(group) for group in _apart(shares)]
    return Uses([share for group in groups for share in group], groups)


def _merge_group(group: Sequence[Share]) -> Sequence[Share]:
    merged = _as_one_use(group) if len(group) > 1 else None
    return group if merged is None else (merged,)


def _apart(shares: Sequence[Share]) -> list[list[Share]]:
    """Shares in groups that have no parameter in common."""
    groups: list[tuple[set[str], list[Share]]] = []
    for share in shares:
        names, members = {slot.name for slot in share.slots}, [share]
        for other in [group for group in groups if group[0] & names and _overlap(group[1], share)]:
            groups.remove(other)
            names, members = names | other[0], other[1] + members
        groups.append((names, members))
    return [members for _, members in groups]


def _overlap(group: Sequence[Share], share: Share) -> bool:
    """Whether a parameter is touched twice."""
    return any(one.name == other.name for member in group for one in member.slots for other in share.slots)


def _lengths_of_shared(group: Sequence[Share], units: Units) -> Lengths:
    """Several uses of one parameter: their gradients are summed first, and later added up share by share."""
    roots = [share.apart(units).sqrt_() for share in group]
    apart = sum(roots[1:], roots[0]).square_()
    found = []
    for run in units.runs:
        # Of this run's own units alone: who else is in the batch must not decide whose norm is trusted.
        most = max(share.terms(units, run.size) for share in group)
        off = rounding_bound(most + len(group), apart.dtype)
        found.append(distrust_lost(_form_together(group, units, run), apart[run.units], 2 * off, off))
    return join_runs(found)


def _as_one_use(group: Sequence[Share]) -> Outer | None:
    """A layer that is used k times is a layer used once, with k times the positions."""
    if not all(isinstance(share, Outer) and share.slots == group[0].slots for share in group):
        return None
    uses = [share for share in group if isinstance(share, Outer) and not share.positions_first]
    if len(uses) != len(group):
        return None
    slots = [slot for slot, _ in uses[0].factors]
    inward = [torch.cat([_with_positions(use.factors[k][1]) for use in uses], 1) for k in range(len(slots))]
    outward = torch.cat([_with_positions(use.outward) for use in uses], 1)
    return Outer(outward, tuple(zip(slots, inward, strict=True)), uses[0].biases)


def _with_positions(rows: Tensor) -> Tensor:
    return rows if rows.dim() == 3 else rows[:, None]


def _form_together(group: Sequence[Share], units: Units, run: UnitRun) -> Tensor:
    """Squared norms of the units of one run, with every gradient of the group formed, some units at a time."""
    parts = []
    for chosen in chunks(run.count, CHUNK // 4):
        sums: dict[str, Tensor] = {}
        for share in group:
            for slot, formed in share.gradients(units, run, chosen):
                flat = formed.reshape(formed.shape[0], -1)
                sums[slot.name] = sums[slot.name] + flat if slot.name in sums else flat
        squares = [squared_norms(rows) for rows in sums.values()]
        parts.append(sum(squares[1:], squares[0]))
    return torch.cat(parts)
