"""Watches the tensor operations of a pass: their memory, and which vectorised ones may have a remainder."""

import math
from math import gcd
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from wholegrain.clipping.batch_invariance import WIDE


class RemainderWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records of which number of items a batch must be a multiple, so that no elementwise function has a remainder.

    Vectorised code computes many values at a time and the remainder one by one, with other instructions, which may
    round differently. Multiples of WIDE values have no remainder.
    """

    def __init__(self, items: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._items, self.multiple = items, 1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: see MemoryWatch."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not _is_safe(func.overloadpacket.__name__.strip("_"), args, kwargs or {}):
            for each in made if isinstance(made, tuple | list) else (made,):
                if isinstance(each, Tensor) and each.is_floating_point() and each.numel() % self._items == 0:
                    self.multiple = max(self.multiple, WIDE // gcd(WIDE, each.numel() // self._items))
        return made


# Operations that need no multiples, by name and by reason. Any other is assumed to have a remainder, so that a new
# name costs speed and never bits. That torch's kernels keep the second list's promise is tested value by value.
# fmt: off
MOVES = frozenset({
    "arange", "as_strided", "cat", "clone", "constant_pad_nd", "contiguous", "copy", "detach", "diagonal", "embedding",
    "empty", "empty_like", "empty_strided", "expand", "fill", "flatten", "flip", "full", "gather", "im2col", "index",
    "index_put", "index_select", "lift_fresh", "masked_fill", "new_empty", "new_empty_strided", "new_zeros",
    "ones_like", "permute", "repeat", "reshape", "reshape_alias", "resolve_conj", "scatter", "select",
    "select_backward", "slice", "slice_backward", "split", "split_with_sizes", "squeeze", "stack", "t", "to",
    "to_copy", "transpose", "unbind", "unflatten", "unfold", "unsafe_view", "unsqueeze", "view", "where", "zero",
    "zeros", "zeros_like",
})
"""Compute nothing: values are copied, chosen, or seen in another shape."""
ROUNDED = frozenset({
    "abs", "add", "clamp", "clamp_min", "div", "eq", "ge", "gt", "le", "lt", "maximum", "minimum", "mul", "ne", "neg",
    "reciprocal", "relu", "rsqrt", "sqrt", "square", "sub", "threshold_backward",
})
"""One or two operations of IEEE 754 for each value, which has one right result by whatever instruction."""
ROWS = frozenset({
    "addmm", "addmv", "baddbmm", "bmm", "col2im", "conv1d", "conv2d", "convolution", "convolution_backward",
    "index_add", "linalg_vecdot", "linalg_vector_norm", "max", "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward", "mean", "mm", "scatter_add", "softmax", "sum",
})
"""Add up, or normalise, within rows: the trial compares these rows bit by bit in every size."""
# fmt: on
SAFE = MOVES | ROUNDED | ROWS


def _is_safe(name: str, args: Any, options: Any) -> bool:
    if name == "pow":
        return not isinstance(args[1], Tensor) and bool(args[1] == 2)
    alpha = options.get("alpha", 1)
    return name in SAFE and math.frexp(abs(alpha))[0] == 0.5  # a power of two: the product is exact


class MemoryWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of all tensors that are made, and keeps them: what is freed would be made again at one place in
    one process and at another in the next, and how many groups a sum has must follow from shapes alone.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._kept: list[Tensor] = []

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self._sizes.values())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to keep its compiler out of here, torch would first import it, which takes 40 MB and seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self._kept.append(value)
                storage = value.untyped_storage()
                self._sizes[storage.data_ptr()] = max(storage.nbytes(), self._sizes.get(storage.data_ptr(), 0))
        return result
