"""Which tensors of a forward pass have a row for each item: told by passes over different numbers of items.

What a batch is long by chance, a constant may be, too. So a model is first run with two numbers of items that share no
divisor: a length that follows them counts items, any other does not.

The same passes show whether a model looks at the values of its inputs to decide how to compute, as in `if
mask.all()`. Then an item's company would decide on how it is computed, and such a model is not run in batches.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wholegrain.gradients.layers.base import RuleError

PAIRS = ((5, 7), (11, 13), (17, 19))
"""Numbers of items to try: those after the first are for models that have a constant of such a length."""
DECIDES = frozenset({
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "item", "tolist", "equal", "allclose", "nonzero",
    "is_nonzero", "argwhere", "numpy",
})  # fmt: skip
"""What makes of a tensor's values a value of Python's, or a shape."""
SHAPES = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "new_zeros", "new_ones",
                    "new_full", "new_empty", "new_tensor", "size", "dim", "__len__"})  # fmt: skip
"""What depends on a tensor's shape and kind, not on its values."""


class ShapeBook:
    """Along which dimension each noted tensor counts items, by the order of noting; None for those that do not."""

    def __init__(self) -> None:
        self._axes: list[tuple[int | None, ...]] = []
        self._next = 0
        self.items = 0
        """Of the pass that is probed; 0 in all others."""
        self.found: list[tuple[int | None, ...]] = []

    def begin(self) -> None:
        """A pass begins."""
        self._next = 0

    def axes(self, tensors: Iterable[Tensor]) -> tuple[int | None, ...]:
        """Of these tensors, which must be asked for in every pass in the same order."""
        if self.items:
            axes = tuple(_counting_axis(tensor, self.items) for tensor in tensors)
            self.found.append(axes)
            return axes
        self._next += 1
        if self._next > len(self._axes):
            raise RuleError("it computes something else than it was tried with")
        return self._axes[self._next - 1]

    def keep(self, one: list[tuple[int | None, ...]], other: list[tuple[int | None, ...]]) -> bool:
        """Believe what two passes have found, if they agree."""
        if one != other:
            return False
        self._axes = one
        return True


class ValueWatch(TorchFunctionMode):
    """Follows what depends on the inputs' values, and refuses that it decides on what is computed."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self._depend: dict[int, Tensor] = {}  # kept, so that no other tensor gets the same identity
        self.mark(inputs)

    def mark(self, values: Any) -> None:
        """These depend on the inputs."""
        self._depend.update({id(each): each for each in tree_leaves(values) if isinstance(each, Tensor)})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        depends = any(id(each) in self._depend for each in _tensors(args, kwargs))
        if depends and name in DECIDES:
            raise RuleError(f"it decides by the values of its inputs how to compute ({name.strip('_')})")
        made = func(*args, **(kwargs or {}))
        if depends and name not in SHAPES:
            self.mark(made)
            if name.endswith("_") and isinstance(args[0], Tensor):  # in place
                self.mark(args[0])
        return made


def _counting_axis(tensor: Tensor, items: int) -> int | None:
    """The first dimension that is a multiple of the items; later ones only where it is just as many."""
    if tensor.dim() and tensor.shape[0] and tensor.shape[0] % items == 0:
        return 0
    return next((d for d, size in enumerate(tensor.shape) if size == items), None)


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for each in (*args, *(kwargs or {}).values()):
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple | list):
            yield from (inner for inner in each if isinstance(inner, Tensor))


def copies(inputs: Tensor, items: int) -> Tensor:
    """A batch of so many copies of its first item."""
    return inputs[:1].expand(items, *inputs.shape[1:]).clone()


def outside_watchers() -> Any:
    """Where operations are neither counted nor seen by the watchers of a trial."""
    return torch.utils._python_dispatch._disable_current_modes()
