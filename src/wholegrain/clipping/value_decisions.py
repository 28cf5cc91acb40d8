"""Whether a model looks at the values of its inputs to decide how to compute, as in `if mask.all(): mask = None`.

Then the other items of a batch would decide how an item is computed, if only in the last bit, and such a model is not
run in batches. Values are followed from the inputs through every operation of torch, by the memory that they lie in.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wholegrain.clipping.layers.base import RuleError

DECIDES = frozenset({
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__repr__", "__format__",
    "__array__", "__dlpack__", "_pack_padded_sequence", "allclose", "argwhere", "bincount", "equal", "is_nonzero",
    "item", "masked_select", "new_tensor", "nonzero", "numpy", "storage", "tensor_split", "tolist", "unique",
    "unique_consecutive", "untyped_storage",
})  # fmt: skip
"""What makes of a tensor's values a value of Python's, or a shape, by the names that programs call."""
COPIES = frozenset({"tensor", "as_tensor", "asarray"})
"""What takes the values out of a list of tensors."""
TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""The same of torch's own operations, by which it marks them: also those that no program calls by name, as in x[:n]."""
SHAPES = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros",
                    "new_ones", "new_full", "new_empty", "new_empty_strided"})  # fmt: skip
"""What depends on a tensor's shape and kind, not on its values."""


def find_decision(compute: Callable[[Tensor], Any], inputs: Tensor) -> str | None:
    """By what a function decides on values of these inputs; None where it does not."""
    given = inputs.clone()
    try:
        with torch.no_grad(), ValueFlow(given) as flow, CallWatch(flow):
            compute(given)
    except RuleError as error:
        return str(error)
    except Exception as error:  # what is not seen is not trusted; where the function itself fails, it will say so
        return f"what it does with the values of its inputs cannot be followed ({type(error).__name__})"
    return None


class ValueFlow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what depends on the inputs' values through torch's own operations, and refuses that it decides."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: dict[int, torch.UntypedStorage] = {}  # kept, so that no other memory gets the same address
        self.mark([inputs])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: see operation_watch.MemoryWatch."""
        return False

    def depends(self, values: Any) -> bool:
        """Whether any of these tensors lies in memory that depends on the inputs."""
        return any(isinstance(each, Tensor) and _memory(each)._cdata in self._kept for each in tree_leaves(values))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SHAPES or not self.depends((args, kwargs)):
            return made
        if self._chooses_by_mask(args) if name == "index" else (TAGS & set(func.tags) or _tells_a_value(made)):
            raise _refuse("item" if name == "_local_scalar_dense" else name)
        self.mark([made, *_written(func, args, kwargs or {})])
        return made

    def mark(self, values: Any) -> None:
        """These depend on the inputs, and all that shares their memory."""
        memories = [_memory(each) for each in tree_leaves(values) if isinstance(each, Tensor)]
        self._kept.update({memory._cdata: memory for memory in memories})

    def _chooses_by_mask(self, args: Any) -> bool:
        """Whether as many values are taken as a mask has: `x[mask]`, unlike `x[places]`."""
        chosen = [each for each in tree_leaves(args[1:]) if isinstance(each, Tensor)]
        return self.depends([each for each in chosen if each.dtype in MASKS])


MASKS = (torch.bool, torch.uint8)


class CallWatch(TorchFunctionMode):
    """Sees what leaves torch without one of its operations, and calls a decision by the name that a program has."""

    def __init__(self, flow: ValueFlow) -> None:
        super().__init__()
        self._flow = flow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        copies = name in COPIES and not isinstance(args[0], Tensor)
        if (name in DECIDES or copies) and self._flow.depends((args, kwargs)):
            raise _refuse(name)
        if name == "one_hot" and _classes(args, kwargs or {}) > 0:  # it only looks whether there are not more
            with torch.utils._python_dispatch._disable_current_modes():
                made = func(*args, **(kwargs or {}))
            self._flow.mark(made)
            return made
        return func(*args, **(kwargs or {}))


def _classes(args: Any, kwargs: Any) -> int:
    """How many classes `one_hot` is told to expect; -1 where it is to find the largest."""
    return int(kwargs.get("num_classes", args[1] if len(args) > 1 else -1))


def _refuse(name: str) -> RuleError:
    return RuleError(f"it decides by the values of its inputs how to compute ({name.strip('_')})")


def _tells_a_value(made: Any) -> bool:
    return any(isinstance(each, bool | int | float | complex) for each in tree_leaves(made))


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation overwrites."""
    named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    writes = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
    return [named[name] for name in writes if name in named]


def _memory(tensor: Tensor) -> torch.UntypedStorage:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    with torch._C.DisableTorchFunction():  # not to be seen by CallWatch
        return tensor.untyped_storage()
