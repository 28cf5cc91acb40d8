"""What a rule is: a layer's forward and backward pass written out, so that autograd never forms a weight's gradient."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.products import current
from wholegrain.clipping.workspace import Workspace


@dataclass(eq=False, slots=True)  # not frozen: one is made for each layer and step, and freezing triples its cost
class Space:
    """Where one use of one layer may put its buffers, and whose gradients the pass is for."""

    workspace: Workspace
    key: Hashable
    units: Units
    items: int

    def take(self, name: str, shape: tuple[int, ...], like: Tensor, zero: bool = False) -> Tensor:
        """A buffer of this use; see Workspace.take."""
        return self.workspace.take((self.key, name), shape, like, zero)

    def lend(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory for as long as anybody refers to it; see Workspace.lend."""
        return self.workspace.lend(shape, like)

    def borrow(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A buffer that every use may overwrite: for what does not outlive a call."""
        return self.workspace.take(name, shape, like)


Outward = tuple[Tensor | None, ...]
"""Gradients of a layer's outputs; None where an output was not used."""
Needed = tuple[bool, ...]
"""Which inputs' gradients are asked for."""
Gradients = tuple[tuple[Tensor | None, ...], tuple[Share, ...]]
"""Of the inputs; and the shares of the parameters."""


class Layer(Protocol):
    """A differentiable function of tensors, some of whose parameters may be trainable.

    Guarantee: item i of every output, and of every gradient, depends on item i of the inputs alone.
    """

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Any, Any]:
        """Outputs (a tensor or a tuple of them), and whatever the backward pass needs."""
        ...

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """Gradients of the inputs that are needed, and the shares that the parameters have."""
        ...


class RuleError(Exception):
    """A rule does not cover this use of its layer."""


@dataclass(frozen=True)
class ModuleSlots:
    """A module's trainable parameters by their name in the module, as slots of the model's vector."""

    slots: dict[str, Slot]

    def slot(self, name: str) -> Slot | None:
        """The slot of a parameter, or None where it is absent or frozen."""
        return self.slots.get(name)

    def within(self, part: str) -> "ModuleSlots":
        """Those of a part of the module, by their name in that part."""
        first = f"{part}."
        return ModuleSlots({name[len(first) :]: slot for name, slot in self.slots.items() if name.startswith(first)})

    def require(self, *names: str) -> None:
        """Refuse parameters other than these: a module that was given others computes something else."""
        others = set(self.slots) - set(names)
        if others:
            raise RuleError(f"it has parameters that are not its own kind's: {', '.join(sorted(others))}")


VECTOR = 16
"""Values of the widest vector register: rows that are a multiple of it long begin at full vectors."""


def matrix_product(
    space: Space, rows: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Rows [row, in] times weight [in, out], plus bias [out].

    For rows of odd length libraries have kernels that add up in another order by where a row begins in memory. In an
    `aligned` workspace rows are first copied to where they all begin alike, so that each comes out the same wherever it
    stands; a single output is two, because libraries treat one as a product with a vector. In C neither is needed.
    """
    products = current()
    if space.workspace.aligned and not products.fixed(rows, weight):
        rows = align_rows(space, rows)
        if weight.shape[1] == 1:
            single = torch.mm(rows, weight.expand(-1, 2).contiguous())[:, :1]
            single = single.contiguous() if bias is None else single + bias
            return single if out is None else out.copy_(single)
    out = rows.new_empty(rows.shape[0], weight.shape[1]) if out is None else out
    return products.multiply(rows, weight, bias, out)


def form_early(share: Share, space: Space) -> Share:
    """The gradients of a share's units, where it would form them later on; else the share."""
    if not isinstance(share, Outer) or not share.forms_units(space.units):
        return share
    space.workspace.watch(*share.rows())
    # In memory of activations that the way back is done with: no buffers are held beside them.
    return share.form(space.units, space.lend)


def align_rows(space: Space, rows: Tensor) -> Tensor:
    """The rows, or in an aligned workspace a copy of which each begins at a full vector."""
    if not space.workspace.aligned:
        return rows
    begins = rows.stride(0) % VECTOR == 0 and rows.stride(1) == 1 and rows.storage_offset() % VECTOR == 0
    if begins:
        return rows
    width = -(-rows.shape[1] // VECTOR) * VECTOR
    buffer = space.borrow(f"aligned {width}", (rows.shape[0], width), rows)[:, : rows.shape[1]]
    return buffer.copy_(rows)


def by_item(rows: Tensor, items: int) -> Tensor:
    """[item, value] as it is, or [item, position, value] for any number of dimensions between."""
    if rows.dim() == 2 and rows.shape[0] == items:
        return rows
    if rows.dim() < 2 or rows.shape[0] % items:
        raise RuleError(f"its input has shape {list(rows.shape)} for {items} items")
    return rows.reshape(items, -1, rows.shape[-1])
