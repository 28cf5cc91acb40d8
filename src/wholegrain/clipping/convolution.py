"""Each unit's gradient of a convolution's kernel and bias: any number of dimensions, transposed ones too.

A convolution whose groups are units has one kernel for each of them, so that the library's own gradient of its kernels
is every unit's at once. Of a kernel that is much larger than what it sees, nothing is formed.
"""

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.clip_units import UnitRun
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.parameters import Slot

if TYPE_CHECKING:
    from wholegrain.clipping.ends import EndUse

SEVERAL = 2
"""Groups that a convolution has at least: libraries have other kernels for one."""
LARGE = 4
"""A kernel so many times as large as what it sees and gives in an item is not formed for every unit."""


def form_convolution(use: "EndUse") -> Share:
    """The gradients of kernel and bias."""
    g = use["grad_output"]
    if 1 in use.slots and _is_large(use):
        return _by_patches(use)
    held: list[tuple[Slot, Tensor]] = []
    if 2 in use.slots:
        held.append((use.slots[2], use.units.pool(g.flatten(2).sum(2))))
    if 1 in use.slots:
        formed = [_form_run(use, run) for run in use.units.runs]
        held.append((use.slots[1], formed[0] if len(formed) == 1 else torch.cat(formed)))
    return Rows(held)


def _form_run(use: "EndUse", run: UnitRun) -> Tensor:
    """Gradients of the kernel of units that have equally many items [unit, …]."""
    weight, count = use["weight"], max(run.count, SEVERAL)
    g, x = (_side_by_side(_several(use[name][run.items], run), run.size) for name in ("grad_output", "input"))
    kernels = weight[:1, :1].expand(count * weight.shape[0], *weight.shape[1:])  # of which only the shape is asked
    found: Tensor = torch.ops.aten.convolution_backward(
        g, x, kernels, None, use["stride"], use["padding"], use["dilation"], use["transposed"], use["output_padding"],
        count * use["groups"], [False, True, False],
    )[1]  # fmt: skip
    return found.reshape(count, *weight.shape)[: run.count]


def _several(images: Tensor, run: UnitRun) -> Tensor:
    """Images of a run's units, and of the only one once more."""
    return images if run.count >= SEVERAL else torch.cat([images] * SEVERAL)


def _side_by_side(images: Tensor, size: int) -> Tensor:
    """[item of its unit, unit · channel, …]."""
    return images.reshape(-1, size, *images.shape[1:]).transpose(0, 1).flatten(1, 2)


def _is_large(use: "EndUse") -> bool:
    """Whether the kernel is so much larger than its factors that products of places with places are cheaper."""
    g, weight = use["grad_output"], use["weight"]
    simple = weight.dim() == 4 and use["groups"] == 1 and not use["transposed"]
    return simple and weight.numel() > LARGE * prod(g.shape[2:]) * (weight.shape[0] + prod(weight.shape[1:]))


def _by_patches(use: "EndUse") -> Outer:
    """The kernel as a matrix that is applied at every place."""
    g, weight = use["grad_output"], use["weight"]
    patches = torch.nn.functional.unfold(
        use["input"], weight.shape[2:], dilation=use["dilation"], padding=use["padding"], stride=use["stride"]
    )
    slot = Slot(use.slots[1].name, (weight.shape[0], prod(weight.shape[1:])))
    biases = (use.slots[2],) if 2 in use.slots else ()
    return Outer(g.flatten(2).transpose(1, 2), ((slot, patches.transpose(1, 2)),), biases)
