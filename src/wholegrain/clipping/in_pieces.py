"""Operations that are recorded as others, so that fewer kinds need a proof: answers, pieces, and views undone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from wholegrain.clipping.tape import aten

Run = Callable[..., Any]

SKIPPED = frozenset({aten._assert_tensor_metadata.default, aten._linalg_check_errors.default})
"""They give nothing, and refuse shapes, which are known here, or values, of which the results then are not finite."""
CHOICES = frozenset({aten._fused_sdp_choice.default, aten.is_same_size.default})
"""They tell something that hangs on shapes alone."""


def choose(func: Any, args: Any, kwargs: Any) -> Any:
    """As torch would on tensors of the host, whose values it does not look at."""
    args = [_host(each) if isinstance(each, Tensor) else each for each in args]
    return func(*args, **{name: _host(each) if isinstance(each, Tensor) else each for name, each in kwargs.items()})


def _host(like: Tensor) -> Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return made.requires_grad_(like.requires_grad) if made.is_floating_point() else made


def _split(run: Run, x: Tensor, size: int | list[int], dim: int = 0) -> list[Tensor]:
    whole = x.shape[dim]
    sizes = size if isinstance(size, (list, tuple)) else [min(size, whole - k) for k in range(0, whole, size)]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return [run(aten.slice.Tensor, x, dim, start, start + each) for start, each in zip(starts, sizes, strict=True)]


def _unbind(run: Run, x: Tensor, dim: int = 0) -> list[Tensor]:
    return [run(aten.select.int, x, dim, k) for k in range(x.shape[dim])]


def _by_vector(run: Run, x: Tensor, vector: Tensor) -> Any:
    return run(aten.squeeze.dim, run(aten.mm.default, x, run(aten.unsqueeze.default, vector, 1)), 1)


def _log_sigmoid(run: Run, x: Tensor) -> Any:
    """Without what torch keeps for the way back, which has a size of its own on each device."""
    rest = run(aten.log1p.default, run(aten.exp.default, run(aten.neg.default, run(aten.abs.default, x))))
    return run(aten.sub.Tensor, run(aten.clamp_max.default, x, 0), rest), run(aten.zeros.default, [0], dtype=x.dtype)


def _log_sigmoid_back(run: Run, grad: Tensor, x: Tensor, _: Tensor) -> Any:
    return run(aten.mul.Tensor, grad, run(aten.sigmoid.default, run(aten.neg.default, x)))


def _dot(run: Run, one: Tensor, other: Tensor) -> Any:
    return run(aten.sum.dim_IntList, run(aten.mul.Tensor, one, other), [0])


def _trilinear(
    run: Run, a: Tensor, b: Tensor, c: Tensor, new_a: list[int], new_b: list[int], new_c: list[int],
    dims: list[int], unroll: int = 1,
) -> Any:  # fmt: skip
    for new in sorted(new_a):
        a = run(aten.unsqueeze.default, a, new)
    for new in sorted(new_b):
        b = run(aten.unsqueeze.default, b, new)
    for new in sorted(new_c):
        c = run(aten.unsqueeze.default, c, new)
    product = run(aten.mul.Tensor, run(aten.mul.Tensor, a, b), c)
    return run(aten.sum.dim_IntList, product, dims) if dims else product


def _fill(target: Any, given: int, taken: int) -> Run:
    """Filled with one value, however the shape was told.

    What was only made room for is zeros: memory that nobody has written into may hold anybody's values.
    """

    def made(run: Run, *args: Any, **kwargs: Any) -> Any:
        like, rest = (args[0], args[1:]) if isinstance(args[0], Tensor) else (None, args)
        sizes = () if given == 0 else rest[:1]
        size = list(like.shape) if like is not None and not sizes else list(sizes[0])
        dtype = kwargs.get("dtype") or (like.dtype if like is not None else None)
        values = rest[len(sizes) : len(sizes) + taken]
        return run(target, size, *values, dtype=dtype)

    return made


PIECES: dict[Any, Run] = {
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split,
    aten.unbind.int: _unbind,
    aten.mv.default: _by_vector,
    aten.dot.default: _dot,
    aten._trilinear.default: _trilinear,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _log_sigmoid_back,
    aten.empty.memory_format: _fill(aten.zeros.default, 1, 0),
    aten.empty_strided.default: _fill(aten.zeros.default, 1, 0),
    aten.empty_like.default: _fill(aten.zeros.default, 0, 0),
    aten.new_empty.default: _fill(aten.zeros.default, 1, 0),
    aten.new_empty_strided.default: _fill(aten.zeros.default, 1, 0),
    aten.new_zeros.default: _fill(aten.zeros.default, 1, 0),
    aten.new_ones.default: _fill(aten.ones.default, 1, 0),
    aten.new_full.default: _fill(aten.full.default, 1, 1),
    aten.zeros_like.default: _fill(aten.zeros.default, 0, 0),
    aten.ones_like.default: _fill(aten.ones.default, 0, 0),
    aten.full_like.default: _fill(aten.full.default, 0, 1),
}


def undo(emit: Callable[..., Any], func: Any, base: Any, new: Any, shape: Any, args: Any) -> Any:
    """What a base becomes when this is written into its view; None where nobody has worked that out."""
    if func in SAME:
        return new
    if func in SAME_ORDER:
        return emit(aten.reshape.default, (new, list(shape)), {})
    if func in (aten.t.default, aten.transpose.int):
        return emit(func, (new, *args), {})
    if func is aten.permute.default:
        order = [dim % len(shape) for dim in args[0]]
        return emit(func, (new, [order.index(dim) for dim in range(len(order))]), {})
    if func is aten.select.int:
        return emit(aten.select_scatter.default, (base, new, *args), {})
    if func is aten.slice.Tensor:
        return emit(aten.slice_scatter.default, (base, new, *args), {})
    return None


SAME_ORDER = frozenset({
    aten.view.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
})  # fmt: skip
SAME = frozenset({aten.alias.default, aten.detach.default, aten.lift_fresh.default})
"""The same value, as another tensor of Python's."""


class Plainly(TorchFunctionMode):
    """Functions that look at values to check them, or that torch cannot take row by row, from simpler ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = PLAIN[func](*args, **(kwargs or {})) if func in PLAIN else None
        return func(*args, **(kwargs or {})) if made is None else made


def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor | None:
    return None if num_classes < 0 else (x[..., None] == torch.arange(num_classes)).long()


def _bag(x: Tensor, weight: Tensor, offsets: Any = None, mode: str = "mean", **options: Any) -> Tensor | None:
    options.pop("norm_type", None)
    if x.dim() != 2 or any(each is not None and each is not False for each in (offsets, *options.values())):
        return None
    taken = functional.embedding(x, weight)
    return taken.amax(1) if mode == "max" else taken.sum(1) if mode == "sum" else taken.mean(1)


def _reduce(values: Tensor, reduction: str) -> Tensor | None:
    if reduction == "batchmean":
        return values.sum() / values.shape[0]
    return {"none": values, "mean": values.mean(), "sum": values.sum()}[reduction]


def _kl(x: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False, **old: Any) -> Tensor | None:
    values = target.exp() * (target - x) if log_target else torch.xlogy(target, target) - target * x
    return None if any(old.values()) else _reduce(values, reduction)


def _soft_margin(x: Tensor, target: Tensor, *, reduction: str = "mean", **old: Any) -> Tensor | None:
    return None if any(old.values()) else _reduce(functional.softplus(-target * x), reduction)


def _multi_margin(
    x: Tensor, target: Tensor, *, p: int = 1, margin: float = 1, weight: Tensor | None = None,
    reduction: str = "mean", **old: Any,
) -> Tensor | None:  # fmt: skip
    if x.dim() != 2 or any(old.values()):
        return None
    above = (margin - x.gather(1, target[:, None]) + x).relu() ** p
    above = above if weight is None else above * weight[target][:, None]
    others = target[:, None] != torch.arange(x.shape[1])
    return _reduce((above * others).mean(1), reduction)


PLAIN: dict[Any, Callable[..., Tensor | None]] = {
    functional.one_hot: _one_hot,
    functional.embedding_bag: _bag,
    functional.kl_div: _kl,
    functional.soft_margin_loss: _soft_margin,
    functional.multi_margin_loss: _multi_margin,
}
"""None where torch's own has to do. Torch gives their arguments by name."""
