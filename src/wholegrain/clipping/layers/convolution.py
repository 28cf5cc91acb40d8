"""nn.Conv1d and nn.Conv2d, with any stride, padding, dilation and groups.

Each unit's gradient is formed: with a kernel that is shared by all places of an image, products of places with places
would cost several times more. Patches are gathered with channels last, where a kernel's row is one run of memory.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wholegrain.clipping.bookkeeping import Rows
from wholegrain.clipping.clip_units import UnitRun, Units
from wholegrain.clipping.layers.base import Gradients, ModuleSlots, Needed, Outward, RuleError, Space, matrix_product
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.products import CompiledProducts, current
from wholegrain.clipping.rounding import LEAST, squared_norms

# Values of patches gathered at a time: 2 MB of float32, so that the product finds them in the cache.
PATCHES = 1 << 19
# Kernels of fewer values are thin: one product with gathered patches is faster than the library's convolution.
THIN = 64


class ConvLayer:
    """A convolution with zeros around; in one dimension, images have height 1."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d, owned: ModuleSlots) -> None:
        if module.padding_mode != "zeros":
            raise RuleError(f"its padding is '{module.padding_mode}'")
        owned.require("weight", "bias")
        self._module = module
        self._flat = isinstance(module, nn.Conv1d)
        self._weight, self._bias = owned.slot("weight"), owned.slot("bias")
        self._kernel = self._pair(module.kernel_size, 1)
        self._stride = self._pair(module.stride, 1)
        self._dilation = self._pair(module.dilation, 1)
        self._padding = self._pair(_whole_padding(module), 0)

    @staticmethod
    def of(module: nn.Conv1d | nn.Conv2d, owned: ModuleSlots) -> "ConvLayer":
        """The rule for this module."""
        return ConvLayer(module, owned)

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The library's convolution, or one product where kernels are thin."""
        (x,) = inputs
        if x.dim() != (3 if self._flat else 4) or len(x) != space.items:
            raise RuleError(f"its input has shape {list(x.shape)} for {space.items} items")
        x = x[:, :, None] if self._flat else x
        if self._module.groups == 1 and self._kernel[0] * self._kernel[1] * x.shape[1] <= THIN:
            y = self._by_patches(space, x)
        else:
            # Channels first, which the library convolves and, above all, differentiates faster on CPU.
            x = x.contiguous()
            y = torch.conv2d(
                x, self._kernels(), self._biases(), self._stride, self._padding, self._dilation, self._module.groups
            )
        return (y[:, :, 0] if self._flat else y), x

    def backward(self, space: Space, saved: Tensor, outward: Outward, needed: Needed) -> Gradients:
        """The library's gradient of the input; each unit's gradient of kernel and bias."""
        (g,) = outward
        assert g is not None
        g = g[:, :, None] if self._flat else g
        gx = self._inward(saved, g) if needed[0] else None
        trains = self._weight or self._bias
        shares = (self._share(space, saved, g),) if trains else ()
        return (gx[:, :, 0] if gx is not None and self._flat else gx,), shares

    def _pair(self, values: tuple[int, ...], filler: int) -> tuple[int, int]:
        return (filler, values[0]) if self._flat else (values[0], values[1])

    def _kernels(self) -> Tensor:
        weight = self._module.weight.data
        return weight[:, :, None] if self._flat else weight

    def _biases(self) -> Tensor | None:
        return None if self._module.bias is None else self._module.bias.data

    def _inward(self, x: Tensor, g: Tensor) -> Tensor:
        gradient: Tensor = torch.ops.aten.convolution_backward(
            g.contiguous(), x, self._kernels(), None, self._stride, self._padding, self._dilation, False, [0, 0],
            self._module.groups, [True, False, False],
        )[0]  # fmt: skip
        # Channels last is what pooling before it works on.
        return gradient.contiguous(memory_format=torch.channels_last)

    def _by_patches(self, space: Space, x: Tensor) -> Tensor:
        patches = _Patches(self, space, x)
        y = space.take("y", (len(x), *patches.places, self._module.out_channels), x)
        kernels = self._kernels().permute(2, 3, 1, 0).reshape(-1, self._module.out_channels)
        bias = self._biases()
        for piece in patches.pieces(Units.of_items(len(x)).runs[0]):
            rows, out = piece.gathered.flatten(0, -2), y[piece.items].view(-1, y.shape[-1])
            matrix_product(space, rows, kernels, bias, out)
        return y.permute(0, 3, 1, 2)

    def _share(self, space: Space, x: Tensor, g: Tensor) -> Rows:
        last = g.permute(0, 2, 3, 1).contiguous()  # [item, high, wide, out]
        held, squares = [], []
        if self._bias:
            bias = space.units.pool(last.sum((1, 2)))
            held.append((self._bias, bias))
            squares.append(squared_norms(bias))
        if self._weight:
            formed, square = self._form(space, x, last)
            held.append((self._weight, formed))
            squares.append(square)
        return Rows(held, self._fold, sum(squares[1:], squares[0]))

    def _form(self, space: Space, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Each unit's gradient of the kernel, and its squared norm while it is in the cache."""
        groups, width = self._module.groups, last.shape[-1] // self._module.groups
        patches = _Patches(self, space, x)
        formed = space.take("formed", (space.units.count, groups, width, patches.values // groups), x)
        squares = formed.new_empty(space.units.count)
        for run in space.units.runs:
            if self._forms_in_c(formed) and patches.hold(run):
                self._form_in_c(patches, run, last, formed, squares)
                continue
            for piece in patches.pieces(run):
                out = formed[piece.units]
                rows = piece.gathered.view(len(out), -1, groups, patches.values // groups)
                ends = last[piece.items].view(len(out), -1, groups, width)
                for k in range(groups):
                    left, right = ends[:, :, k].transpose(1, 2), rows[:, :, k]
                    torch.baddbmm(out[:, k], left, right, beta=0 if piece.begins else 1, out=out[:, k])
                squares[piece.units] = squared_norms(out.flatten(1))
        return formed, squares

    def _forms_in_c(self, formed: Tensor) -> bool:
        """Sizes of the layer decide."""
        products, (out, inner) = current(), formed.shape[2:]
        compiled = isinstance(products, CompiledProducts) and products.forms(out, inner, formed.dtype)
        return compiled and self._module.groups == 1

    def _form_in_c(self, patches: "_Patches", run: UnitRun, last: Tensor, formed: Tensor, squares: Tensor) -> None:
        """The same in C, for units whose patches are gathered at once."""
        products = current()
        assert isinstance(products, CompiledProducts)
        found = torch.zeros(formed.shape[0], dtype=torch.float64)
        for piece in patches.pieces(run):
            count = piece.units.stop - piece.units.start
            ends = last[piece.items].view(count, -1, last.shape[-1])
            rows = piece.gathered.view(count, -1, patches.values)
            products.form_units([(1, slice(0, count))], ends, rows, formed[piece.units], found[piece.units])
        squares[run.units] = found[run.units].to(squares.dtype) + LEAST * formed[0].numel()

    def _fold(self, slot: Slot, rows: Tensor) -> Tensor:
        """From [unit, group, out, high, wide, in] to the kernel's [unit, out, in, high, wide]."""
        if slot == self._bias:
            return rows
        out = self._module.out_channels
        apart = rows.reshape(len(rows), out, *self._kernel, -1).permute(0, 1, 4, 2, 3)
        return apart.reshape(len(rows), *self._module.weight.shape)


class _Piece(NamedTuple):
    """Patches of some items [item, place, group × patch], the units they belong to, and whether those begin here."""

    items: slice
    units: slice
    gathered: Tensor
    begins: bool


class _Patches:
    """The places of an image that a kernel sees, gathered some items at a time."""

    def __init__(self, layer: ConvLayer, space: Space, x: Tensor) -> None:
        self._layer, self._space = layer, space
        (high, wide), (down, across) = layer._kernel, layer._padding
        shape = (len(x), x.shape[2] + 2 * down, x.shape[3] + 2 * across, x.shape[1])
        self._padded = space.take(f"padded{shape[1:]}", shape, x, zero=True)
        self._padded[:, down : shape[1] - down, across : shape[2] - across].copy_(x.permute(0, 2, 3, 1))
        self.places = tuple(
            (size - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, dilation in zip(
                shape[1:3], (high, wide), layer._stride, layer._dilation, strict=True
            )
        )
        self.values = high * wide * x.shape[1]

    @property
    def _most(self) -> int:
        """Items at a time."""
        return max(1, PATCHES // (self.places[0] * self.places[1] * self.values))

    def hold(self, run: UnitRun) -> bool:
        """Whether a unit of this run is gathered at once."""
        return run.size <= self._most

    def pieces(self, run: UnitRun) -> Iterator[_Piece]:
        """Some whole units at a time, or a unit in parts where it is large."""
        most = self._most
        step = run.size * (most // run.size) or most
        for start, stop, begins in _steps(run, step):
            first = run.units.start + (start - run.items.start) // run.size
            units = slice(first, first + max(1, (stop - start) // run.size))
            yield _Piece(slice(start, stop), units, self._gather(start, stop), begins)

    def _gather(self, start: int, stop: int) -> Tensor:
        layer, groups = self._layer, self._layer._module.groups
        item, row, column, _ = self._padded.stride()
        inner = self._padded.shape[-1] // groups
        (down, across), (deep, broad) = layer._stride, layer._dilation
        shape = (stop - start, *self.places, groups, *layer._kernel, inner)
        strides = (item, row * down, column * across, inner, row * deep, column * broad, 1)
        seen = self._padded.as_strided(shape, strides, self._padded.storage_offset() + start * item)
        gathered = self._space.borrow("patches", shape, self._padded)
        gathered.copy_(seen)
        return gathered.view(stop - start, self.places[0] * self.places[1], self.values)


def _steps(run: UnitRun, step: int) -> Iterator[tuple[int, int, bool]]:
    """Items from, to, and whether a unit begins there; steps end where units end."""
    span = run.size * run.count if step >= run.size else run.size
    for begin in range(run.items.start, run.items.stop, span):
        for start in range(begin, begin + span, step):
            yield start, min(begin + span, start + step), start == begin or step >= run.size


def _whole_padding(module: nn.Conv1d | nn.Conv2d) -> tuple[int, ...]:
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return (0,) * len(module.kernel_size)
        needs = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        if any(need % 2 for need in needs):
            raise RuleError("its padding is not the same on both sides")
        return tuple(need // 2 for need in needs)
    return tuple(module.padding)
