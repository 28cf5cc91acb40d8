"""Each unit's gradient of a convolution's kernel and bias: any number of dimensions, transposed ones too.

With a kernel that is shared by all places of an image, products of places with places cost several times more than the
gradient itself. Patches are gathered with channels last, where a kernel's row is one run of memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.clip_units import UnitRun, Units
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.rounding import squared_norms

if TYPE_CHECKING:
    from wholegrain.clipping.ends import EndUse

PATCHES = 1 << 19
"""Values of patches gathered at a time: 2 MB of float32, so that the product finds them in the cache."""


@dataclass(frozen=True)
class Kernel:
    """The geometry of a convolution: of each dimension its kernel, stride, padding and dilation."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def form_convolution(use: "EndUse") -> Share:
    """A transposed convolution is the same with inputs and gradients of outputs in each other's place."""
    g, x, weight = use["grad_output"], use["input"], use["weight"]
    stride, padding, dilation = (tuple(use[name]) for name in ("stride", "padding", "dilation"))
    kernel = Kernel(tuple(weight.shape[2:]), stride, padding, dilation, use["groups"])
    held: list[tuple[Slot, Tensor]] = []
    squares: list[Tensor] = []
    if 2 in use.slots:
        bias = use.units.pool(g.flatten(2).sum(2))
        held.append((use.slots[2], bias))
        squares.append(squared_norms(bias))
    if 1 in use.slots:
        ends, seen = (x, g) if use["transposed"] else (g, x)
        formed, square = _form(ends, seen, kernel, use.units)
        held.append((use.slots[1], formed))
        squares.append(square)

    def fold(slot: Slot, rows: Tensor) -> Tensor:
        """From [unit, group, out, *kernel, in] to the kernel's [unit, out, in, *kernel]."""
        if slot is not use.slots.get(1):
            return rows
        apart = rows.reshape(len(rows), weight.shape[0], *kernel.size, -1)
        return apart.movedim(-1, 2).reshape(len(rows), *weight.shape)

    return Rows(held, fold, sum(squares[1:], squares[0]))


def _form(ends: Tensor, seen: Tensor, kernel: Kernel, units: Units) -> tuple[Tensor, Tensor]:
    """Each unit's gradient of the kernel, and its squared norm while it is in the cache."""
    last = ends.movedim(1, -1).contiguous()  # [item, *place, out]
    groups, width = kernel.groups, last.shape[-1] // kernel.groups
    patches = _Patches(seen, kernel, tuple(ends.shape[2:]))
    formed = seen.new_empty(units.count, groups, width, patches.values // groups)
    squares = formed.new_empty(units.count)
    for run in units.runs:
        for items, some, gathered, begins in patches.pieces(run):
            out = formed[some]
            rows = gathered.view(len(out), -1, groups, patches.values // groups)
            own = last[items].view(len(out), -1, groups, width)
            for k in range(groups):
                left, right = own[:, :, k].transpose(1, 2), rows[:, :, k]
                torch.baddbmm(out[:, k], left, right, beta=0 if begins else 1, out=out[:, k])
            squares[some] = squared_norms(out.flatten(1))
    return formed, squares


class _Patches:
    """The places of an image that a kernel sees, gathered some items at a time."""

    def __init__(self, x: Tensor, kernel: Kernel, places: tuple[int, ...]) -> None:
        self._kernel, self._places = kernel, places
        inner = [slice(pad, pad + size) for pad, size in zip(kernel.padding, x.shape[2:], strict=True)]
        # Beyond what padding asks for there is room for the last place, as a transposed convolution may need it.
        reach = [
            max(stride * (place - 1) + dilation * (size - 1) + 1, pad + own)
            for place, size, stride, dilation, pad, own in zip(
                places, kernel.size, kernel.stride, kernel.dilation, kernel.padding, x.shape[2:], strict=True
            )
        ]
        self._padded = x.new_zeros(len(x), *reach, x.shape[1])
        self._padded[(slice(None), *inner)].copy_(x.movedim(1, -1))
        self.values = prod(kernel.size) * x.shape[1]

    def pieces(self, run: UnitRun) -> Iterator[tuple[slice, slice, Tensor, bool]]:
        """Some whole units at a time, or a large unit in parts: items, units, patches, whether the unit begins here."""
        most = max(1, PATCHES // (prod(self._places) * self.values))
        step = run.size * (most // run.size) or most
        span = run.size * run.count if step >= run.size else run.size
        for begin in range(run.items.start, run.items.stop, span):
            for start in range(begin, begin + span, step):
                stop = min(begin + span, start + step)
                first = run.units.start + (start - run.items.start) // run.size
                units = slice(first, first + max(1, (stop - start) // run.size))
                yield slice(start, stop), units, self._gather(start, stop), start == begin or step >= run.size

    def _gather(self, start: int, stop: int) -> Tensor:
        """[item, place, group · kernel · in]."""
        kernel, (item, *steps, _) = self._kernel, self._padded.stride()
        inner = self._padded.shape[-1] // kernel.groups
        shape = (stop - start, *self._places, kernel.groups, *kernel.size, inner)
        moves = [step * stride for step, stride in zip(steps, kernel.stride, strict=True)]
        within = [step * dilation for step, dilation in zip(steps, kernel.dilation, strict=True)]
        strides = (item, *moves, inner, *within, 1)
        seen = self._padded.as_strided(shape, strides, self._padded.storage_offset() + start * item)
        return seen.reshape(stop - start, prod(self._places), self.values)
