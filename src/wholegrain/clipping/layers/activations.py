"""Layers without parameters, written out so that a chain of layers needs no autograd at all."""

from typing import Any

import torch
from torch import Tensor, nn

from wholegrain.clipping.layers.base import Gradients, Needed, Outward, RuleError, Space

aten = torch.ops.aten
THRESHOLD_BACKWARD = aten.threshold_backward.grad_input
TANH_BACKWARD = aten.tanh_backward.grad_input
SIGMOID_BACKWARD = aten.sigmoid_backward.grad_input


class InPlace:
    """A function of single values that overwrites its input: a layer before it must not need its own output."""

    def compute(self, x: Tensor) -> Tensor:
        """Overwrites x."""
        raise NotImplementedError

    def reverse(self, g: Tensor, y: Tensor) -> Tensor:
        """From the gradient of the output y that of the input, which overwrites g."""
        raise NotImplementedError

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The output is all that is kept."""
        y = self.compute(inputs[0])
        return y, y

    def backward(self, space: Space, saved: Tensor, outward: Outward, needed: Needed) -> Gradients:
        """No parameters, no shares."""
        (g,) = outward
        assert g is not None
        return (self.reverse(g, saved),), ()


class Relu(InPlace):
    """max(x, 0)."""

    def compute(self, x: Tensor) -> Tensor:
        """By the library."""
        return x.relu_()

    def reverse(self, g: Tensor, y: Tensor) -> Tensor:
        """Nothing where the output is 0."""
        return THRESHOLD_BACKWARD(g, y, 0, grad_input=g)  # type: ignore[no-any-return]


class Tanh(InPlace):
    """tanh."""

    def compute(self, x: Tensor) -> Tensor:
        """By the library."""
        return x.tanh_()

    def reverse(self, g: Tensor, y: Tensor) -> Tensor:
        """g·(1 − y²)."""
        return TANH_BACKWARD(g, y, grad_input=g)  # type: ignore[no-any-return]


class Sigmoid(InPlace):
    """The logistic function."""

    def compute(self, x: Tensor) -> Tensor:
        """By the library."""
        return x.sigmoid_()

    def reverse(self, g: Tensor, y: Tensor) -> Tensor:
        """g·y·(1 − y)."""
        return SIGMOID_BACKWARD(g, y, grad_input=g)  # type: ignore[no-any-return]


class Reshape:
    """Flatten and unflatten."""

    def __init__(self, module: nn.Module) -> None:
        self._reshape = module.forward  # without hooks, which a chain has none of
        self.lays_out_rows = type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The module itself."""
        return self._reshape(inputs[0]), inputs[0].shape

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """Back to the shape that came in."""
        (g,) = outward
        return (g.reshape(saved) if g is not None and needed[0] else None,), ()


class MaxPool:
    """The largest of each window, with channels last, where the library is many times faster.

    Its input is overwritten in the backward pass: a layer before it must not need its own output.
    """

    def __init__(self, module: nn.MaxPool2d) -> None:
        if module.return_indices:
            raise RuleError("it returns indices")
        stride = module.stride or module.kernel_size
        sizes = (module.kernel_size, stride, module.padding, module.dilation)
        self._window = (*map(_pair, sizes), module.ceil_mode)

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The library's, keeping where each maximum was."""
        x = inputs[0].contiguous(memory_format=torch.channels_last)
        y, where = aten.max_pool2d_with_indices(x, *self._window)
        return y, (x, where)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """Each gradient goes to where its maximum was."""
        (g,), (x, where) = outward, saved
        if g is None or not needed[0]:
            return (None,), ()
        g = g.contiguous(memory_format=torch.channels_last)
        # Only the shape of x matters now: the gradient takes its place.
        aten.max_pool2d_with_indices_backward.grad_input(g, x, *self._window, where, grad_input=x)
        return (x,), ()


class Copy:
    """Between a layer that needs its output and one that overwrites its input."""

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """A copy."""
        return inputs[0].clone(), None

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """The gradient as it is."""
        return outward, ()


class ByAutograd:
    """Any other layer without parameters: a small graph of its own."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """The module itself, with its history."""
        with torch.inference_mode(False), torch.enable_grad():
            x = inputs[0].clone()  # an ordinary tensor: those of inference have no history
            x = x.requires_grad_() if x.is_floating_point() else x
            # Another copy, because a module may work in place.
            y = self._module(x * 1 if x.requires_grad else x)
        return y.detach(), (x, y)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """By that graph."""
        (g,), (x, y) = outward, saved
        if not needed[0] or not y.requires_grad:
            return (None,), ()
        with torch.inference_mode(False):
            (gx,) = torch.autograd.grad(y, x, None if g is None else g.clone())
        # A gradient that is one value spread over many places cannot be overwritten by the layer before.
        return (gx.contiguous() if 0 in gx.stride() else gx,), ()


def _pair(value: int | tuple[int, ...]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
