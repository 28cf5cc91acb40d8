"""Parameters that are read outside a layer with a rule: what the common operations do with them, item by item.

A forward pass is watched for operations on parameters. What involves parameters and constants alone is an expression,
whose history autograd keeps: a slice of a position table, 1 + a weight, a looked-up row. Where an expression meets
items there are rules for the operation: sums, products, matrix products, look-ups, copies for every item. Any other
operation is not covered, and the module whose parameter it is computes its own gradients by vmap.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wholegrain.clipping.bookkeeping import Fold, Rows, Share
from wholegrain.clipping.layers.base import Layer, RuleError
from wholegrain.clipping.layers.broadcast import Product, Repeat, Sum
from wholegrain.clipping.layers.embedding import EmbeddingLayer
from wholegrain.clipping.layers.linear import LinearLayer
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.shape_probe import ShapeRecord
from wholegrain.clipping.vmap_gradients import silence_vmap

PLAIN = (int, float, str, type(None), torch.dtype, torch.device)
"""Arguments in which there is no tensor."""


class UncoveredUseError(RuleError):
    """A parameter is used by an operation that has no rule."""

    def __init__(self, name: str, operation: str) -> None:
        super().__init__(f"its parameter '{name.rpartition('.')[2]}' is used by '{operation.strip('_')}'")
        self.parameter = name


@dataclass(frozen=True, eq=False)
class Root:
    """Where an expression begins: a parameter, or rows of it that were looked up."""

    leaf: Tensor
    slot: Slot
    fold: Fold | None = None

    def share(self, rows: Tensor) -> Share:
        """Of each unit's gradient [unit, *leaf.shape]."""
        return Rows([(self.slot, rows)], self.fold)


@dataclass(frozen=True, eq=False)
class Expression:
    """A function of parameters and constants; its tensor has a history from its roots."""

    value: Tensor
    roots: tuple[Root, ...]

    def pull_back(self, rows: Tensor) -> tuple[Share, ...]:
        """From each unit's gradient of the expression to the shares of its roots."""
        if self.roots[0].leaf is self.value:
            return (self.roots[0].share(rows),)
        leaves = [root.leaf for root in self.roots]
        with torch.enable_grad(), silence_vmap():
            found = torch.autograd.grad(
                self.value, leaves, rows, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        return tuple(root.share(each) for root, each in zip(self.roots, found, strict=True) if each is not None)

    def matrix(self) -> tuple[Slot, bool] | None:
        """The parameter that this is a view of, and whether it is turned round; None where it is something else."""
        (leaf, slot), value = (self.roots[0].leaf, self.roots[0].slot), self.value
        if len(self.roots) > 1 or self.roots[0].fold or slot.rows or leaf.dim() != 2:
            return None
        if value.data_ptr() != leaf.data_ptr():
            return None
        if value.shape == leaf.shape and value.stride() == leaf.stride():
            return slot, False
        turned = value.shape == leaf.shape[::-1] and value.stride() == leaf.stride()[::-1]
        return (slot, True) if turned else None


def _tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Of arguments or a result. Torch's own flattening takes longer than many an operation, so few values need it."""
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif not isinstance(each, PLAIN):
            found.extend(leaf for leaf in tree_leaves(each) if isinstance(leaf, Tensor))
    return found


class Host(Protocol):
    """What watching needs of the program around it."""

    def apply(self, layer: Layer, *inputs: Tensor) -> Any:
        """One use of a layer."""
        ...


class ParameterWatch(TorchFunctionMode):
    """Sees what a forward pass does with parameters, and puts rules in place of it."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], shapes: ShapeRecord, host: Host) -> None:
        super().__init__()
        self._roots = [Expression(p, (Root(p, Slot(name)),)) for name, p in parameters.items()]
        self._shapes, self._host = shapes, host
        self._known: dict[int, Expression] = {}
        self._layers: dict[Hashable, Layer] = {}
        self.used = False
        """Whether anything was there to be seen."""
        self.reset()

    def reset(self) -> None:
        """Forget the expressions of the pass before."""
        self._known = {id(root.value): root for root in self._roots}

    def leave(self, names: set[str]) -> None:
        """Watch these parameters no longer: their module has other means."""
        self._roots = [root for root in self._roots if root.roots[0].slot.name not in names]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = _tensors_in((*args, *kwargs.values()))
        known = [self._known[id(each)] for each in flat if id(each) in self._known]
        return self._use(func, args, kwargs, flat, known) if known else func(*args, **kwargs)

    def _use(self, func: Any, args: Any, kwargs: Any, flat: list[Tensor], known: list[Expression]) -> Any:
        name = getattr(func, "__name__", str(func))
        self.used = True
        if name in ("__get__", "__set__", "size", "dim", "stride", "numel", "is_floating_point", "is_contiguous"):
            made = func(*args, **kwargs)
            return self._remember(made, known) if isinstance(made, Tensor) and made.requires_grad else made
        others = [each for each in flat if id(each) not in self._known]
        axes = self._shapes.axes(others)
        if all(axis is None for axis in axes) and not any(each.requires_grad for each in others):
            return self._express(func, args, kwargs, known)
        rule = RULES.get(name)
        made = NotImplemented if rule is None else rule(self, name, args, kwargs)
        if made is NotImplemented:
            raise UncoveredUseError(known[0].roots[0].slot.name, name)
        return made

    def _express(self, func: Any, args: Any, kwargs: Any, known: list[Expression]) -> Any:
        made = func(*args, **kwargs)
        tensors = [each for each in _tensors_in((made,)) if each.requires_grad]
        axes = self._shapes.axes(tensors)
        if all(axis is None for axis in axes):
            for each in tensors:
                self._remember(each, known)
            return made
        name = getattr(func, "__name__", str(func))
        if name not in REPEATS or len(known) != 1 or axes[0] != 0:
            raise UncoveredUseError(known[0].roots[0].slot.name, name)
        repeat = partial(_call_with, func, args, kwargs)
        return self._host.apply(Repeat(known[0].value, known[0].pull_back, repeat))

    def _remember(self, made: Tensor, known: list[Expression]) -> Tensor:
        if id(made) not in self._known:
            roots = {id(root.leaf): root for each in known for root in each.roots}
            self._known[id(made)] = Expression(made, tuple(roots.values()))
        return made

    def of(self, value: Any) -> Expression | None:
        """The expression that this is, if it is one."""
        return self._known.get(id(value))

    def apply(self, layer: Layer, *inputs: Tensor) -> Any:
        """One use of a layer."""
        return self._host.apply(layer, *inputs)

    def apply_one(self, key: Hashable, make: Callable[[], Layer], *inputs: Tensor) -> Any:
        """One use of the layer that has this key, which is made once: buffers belong to a layer from step to step."""
        if key not in self._layers:
            self._layers[key] = make()
        return self._host.apply(self._layers[key], *inputs)

    def call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Another operation, watched like any other."""
        return self.__torch_function__(func, (), args, kwargs)

    def axis(self, x: Tensor) -> int:
        """Along which dimension a tensor counts items."""
        (axis,) = self._shapes.axes([x])
        if axis is None:
            raise RuleError(f"a tensor of shape {list(x.shape)} does not count items")
        return axis

    def look_up(self, tokens: Tensor, table: Expression, padding: int | None) -> Any:
        """Rows of a table: each item's own, or the same for all of them."""
        view = table.matrix()
        if view is None or view[1]:
            return NotImplemented
        leaf, slot = table.roots[0].leaf, view[0]
        (axis,) = self._shapes.axes([tokens])
        if axis is not None:
            make = partial(EmbeddingLayer.of_table, lambda: leaf.data, slot, padding)
            return self.apply_one(("table", slot, padding), make, tokens)
        return self.share_rows(tokens, leaf.data, slot, padding)

    def share_rows(self, tokens: Tensor, table: Tensor, slot: Slot, padding: int | None) -> Tensor:
        """The same rows of a table for all items, as an expression."""
        self.used = True
        rows, numbers = torch.unique(tokens, return_inverse=True)
        in_order = rows.numel() == tokens.numel() and bool((numbers.reshape(-1) == torch.arange(rows.numel())).all())
        looked_up = table[rows].requires_grad_()
        root = Root(looked_up, slot, _Scatter(rows, table.shape[0]))
        if in_order and int(rows[-1] - rows[0]) == rows.numel() - 1:
            root = Root(looked_up, Slot(slot.name, (int(rows[0]), int(rows[-1]) + 1)))
        with torch.enable_grad():
            chosen: Tensor = looked_up.view(*tokens.shape, -1) if in_order else looked_up[numbers]
            if padding is not None and bool((tokens == padding).any()):
                still = (tokens == padding)[..., None]
                chosen = torch.where(still, chosen.detach(), chosen)
        self._known[id(looked_up)] = Expression(looked_up, (root,))
        self._known[id(chosen)] = Expression(chosen, (root,))
        return chosen


@dataclass(frozen=True, eq=False)
class _Scatter:
    """Looked-up rows in their places of the whole table."""

    rows: Tensor
    count: int

    def __call__(self, slot: Slot, rows: Tensor) -> Tensor:
        held = rows.reshape(rows.shape[0], self.rows.numel(), -1)
        return held.new_zeros(held.shape[0], self.count, held.shape[2]).index_copy_(1, self.rows, held)


def _call_with(func: Any, args: Any, kwargs: Any, e: Tensor) -> Tensor:
    made: Tensor = func(e, *args[1:], **kwargs)
    return made


def _add(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    return _binary(watch, args, kwargs, lambda e, axis: Sum(e.value, e.pull_back, axis))


def _multiply(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    return _binary(watch, args, kwargs, lambda e, axis: Product(e.value, e.pull_back, axis))


def _subtract(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 2 or name == "__rsub__" or watch.of(args[1]) is None:
        return NotImplemented
    return _binary(watch, args, kwargs, lambda e, axis: Sum(e.value, e.pull_back, axis, sign=-1))


def _divide(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 2 or name == "__rtruediv__" or watch.of(args[1]) is None:
        return NotImplemented
    with torch.enable_grad():
        inverse = watch.call(torch.reciprocal, args[1])
    return watch.call(torch.mul, args[0], inverse)


def _binary(watch: ParameterWatch, args: Any, kwargs: Any, make: Callable[[Expression, int], Layer]) -> Any:
    """An operation of an expression and a tensor of items, in either order."""
    if kwargs or len(args) != 2:
        return NotImplemented
    one, other = watch.of(args[0]), watch.of(args[1])
    if (one is None) is (other is None):
        return NotImplemented
    e, x = (one, args[1]) if one is not None else (other, args[0])
    assert e is not None
    if not isinstance(x, Tensor) or x.dtype is not e.value.dtype:
        return NotImplemented
    # Broadcasting counts dimensions from the last one.
    axis = watch.axis(x) + max(0, e.value.dim() - x.dim())
    return watch.apply(make(e, axis), x)


def _linear(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    """Of x and W: x Wᵀ + b."""
    x, weight, bias = _three(args, kwargs, ("input", "weight", "bias"))
    return _product(watch, x, weight, bias, turned=False)


def _matmul(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    """Of x and W: x W."""
    if kwargs or len(args) != 2 or name == "__rmatmul__":
        return NotImplemented
    return _product(watch, args[0], args[1], None, turned=True)


def _addmm(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    """Of b, x and W: b + x W."""
    return NotImplemented if kwargs or len(args) != 3 else _product(watch, args[1], args[2], args[0], turned=True)


def _product(watch: ParameterWatch, x: Any, weight: Any, bias: Any, turned: bool) -> Any:
    """A matrix product with rows of items; `turned` where the weight is given as [in, out]."""
    e = watch.of(weight)
    if watch.of(x) is not None or not isinstance(x, Tensor) or watch.axis(x) != 0:
        return NotImplemented
    if e is None:  # only the bias is trained
        made = torch.matmul(x, weight) if turned else functional.linear(x, weight)
        return watch.call(torch.add, made, bias)
    view = e.matrix()
    if view is None:
        return NotImplemented
    leaf, (slot, is_view_turned) = e.roots[0].leaf, view
    # The rule's weight is [out, in]; the parameter is that, or the other way round.
    flipped = is_view_turned is not turned

    def values() -> tuple[Tensor, Tensor | None]:
        return (leaf.data.t() if flipped else leaf.data), None

    made = watch.apply_one(("matrix", slot, flipped), lambda: LinearLayer(values, slot, None, flipped), x)
    return made if bias is None else watch.call(torch.add, made, bias)


def _embed(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    tokens, table, padding = _three(args, kwargs, ("input", "weight", "padding_idx"))
    options = {**dict(zip(("max_norm", "norm_type", "scale_grad_by_freq", "sparse"), args[3:], strict=False)), **kwargs}
    e = watch.of(table)
    if e is None or options.get("max_norm") is not None or options.get("scale_grad_by_freq"):
        return NotImplemented
    return watch.look_up(tokens, e, padding)


def _layer_norm(watch: ParameterWatch, name: str, args: Any, kwargs: Any) -> Any:
    given = dict(zip(("input", "normalized_shape", "weight", "bias", "eps"), args, strict=False)) | kwargs
    if watch.of(given["input"]) is not None:
        return NotImplemented
    weight, bias = given.pop("weight", None), given.pop("bias", None)
    made = getattr(functional, name)(**given)
    made = made if weight is None else watch.call(torch.mul, made, weight)
    return made if bias is None else watch.call(torch.add, made, bias)


def _three(args: Any, kwargs: Any, names: tuple[str, str, str]) -> tuple[Any, Any, Any]:
    given = dict(zip(names, args, strict=False)) | {key: kwargs[key] for key in names if key in kwargs}
    return given[names[0]], given[names[1]], given.get(names[2])


REPEATS = frozenset({"expand", "expand_as", "repeat", "broadcast_to"})
RULES: Mapping[str, Callable[[ParameterWatch, str, Any, Any], Any]] = {
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), _add),
    **dict.fromkeys(("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"), _multiply),
    **dict.fromkeys(("sub", "sub_", "__sub__", "__rsub__", "__isub__"), _subtract),
    **dict.fromkeys(("div", "true_divide", "__truediv__", "__rtruediv__"), _divide),
    **dict.fromkeys(("matmul", "mm", "__matmul__", "__rmatmul__"), _matmul),
    "linear": _linear,
    "addmm": _addmm,
    "embedding": _embed,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
}
"""By the name of the operation, where it meets items."""
