"""Whether a model looks at the values of its inputs to decide how to compute, as in `if mask.all(): mask = None`.

Then an item's company would decide on how it is computed, if only by a last bit, and such a model is not run in
batches. Values are followed from the inputs through every operation of torch.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wholegrain.gradients.layers.base import RuleError

DECIDES = frozenset({
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "item", "tolist", "equal", "allclose", "nonzero",
    "is_nonzero", "argwhere", "numpy", "__array__", "masked_select", "unique", "unique_consecutive",
})  # fmt: skip
"""What makes of a tensor's values a value of Python's, or a shape."""
SHAPES = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "new_zeros", "new_ones",
                    "new_full", "new_empty", "new_tensor", "size", "dim", "__len__"})  # fmt: skip
"""What depends on a tensor's shape and kind, not on its values."""


def find_decision(compute: Callable[[Tensor], Any], inputs: Tensor) -> str | None:
    """By what a function decides on values of these inputs; None where it does not."""
    given = inputs.clone()
    try:
        with torch.no_grad(), ValueWatch(given):
            compute(given)
    except RuleError as error:
        return str(error)
    except Exception as error:  # what is not seen is not trusted; where the function itself fails, it will say so
        return f"what it does with the values of its inputs cannot be followed ({type(error).__name__})"
    return None


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


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for each in (*args, *(kwargs or {}).values()):
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple | list):
            yield from (inner for inner in each if isinstance(inner, Tensor))
