"""A model's forward and backward pass as a list of ATen operations, recorded once without any values.

Whatever a module is made of (hooks, parametrisations, wrappers, functional code), what it does to a batch is a list of
operations, and afterwards only that list is run. Tensors have shapes here and no values: a model that looks at a value
to decide how to compute cannot be recorded, and is refused with the operation and the line that looked.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
SIZES = (31, 37)
"""Numbers of rows that are traced: what differs between the two counts rows, and a prime is no other size."""
TORCH = str(Path(torch.__file__).parent)
HERE = str(Path(__file__).parent)
SEEDED = torch.Tag.nondeterministic_seeded


class NotTraceable(Exception):
    """A fact about a model's program because of which its rows cannot be proved to stay apart; and where it stands."""

    def __init__(self, reason: str, line: str = "") -> None:
        super().__init__(f"{reason} ({line})" if line else reason)
        self.reason, self.line = reason, line


@dataclass(frozen=True)
class Ref:
    """A value of the program, by its number."""

    number: int


@dataclass(eq=False)
class Op:
    """One operation: its arguments, in which values are references, and the numbers of what it gives."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]
    line: str
    several: bool
    """Whether it gives a tuple, however long."""

    @property
    def inputs(self) -> list[int]:
        """The numbers of its arguments, in order."""
        return list(_refs((self.args, self.kwargs)))

    @property
    def name(self) -> str:
        """As torch calls it, without the overload."""
        return str(self.target.name()).partition("::")[2].partition(".")[0]

    @property
    def mutates(self) -> bool:
        """Whether it writes into an argument."""
        return bool(self.target._schema.is_mutable)


@dataclass(eq=False)
class Tape:
    """All operations in their order, with the shape of every value, tensors that are kept, and inputs and outputs."""

    rows: int
    ops: list[Op] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    """A tensor without memory for each value."""
    inputs: dict[str, int] = field(default_factory=dict)
    constants: dict[int, Tensor] = field(default_factory=dict)
    outputs: list[int | None] = field(default_factory=list)

    def shape(self, number: int) -> tuple[int, ...]:
        """Of a value."""
        return tuple(self.values[number].shape)


def _refs(tree: Any) -> Iterator[int]:
    if isinstance(tree, Ref):
        yield tree.number
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from _refs(each)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _refs(each)


class Shadow(Tensor):
    """A tensor of the host that has a shape and no values."""

    empty: Tensor
    number: int

    @staticmethod
    def __new__(cls, empty: Tensor, number: int) -> "Shadow":
        """For a tensor without memory, which is a value with this number."""
        made: Shadow = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, empty.shape, strides=empty.stride(), storage_offset=empty.storage_offset(), dtype=empty.dtype,
            layout=empty.layout, device="cpu", requires_grad=False,
        )  # fmt: skip
        made.empty, made.number = empty, number
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<{self.dtype} of shape {list(self.shape)}>"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotTraceable("a value of the batch is used after the model was recorded")


class Recorder(TorchDispatchMode):
    """Records every operation on shadows; what has to do with none of them is computed at once, and kept."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.tape = Tape(rows)
        self._kept: dict[int, int] = {}
        self._own: set[int] = set()
        """Memory of tensors that were made while the model ran."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes a second

    def input(self, name: str, like: Tensor, shape: Sequence[int] | None = None) -> Shadow:
        """A value that is given from outside."""
        with torch._C._DisableTorchDispatch():  # an input is no operation of the program
            empty = torch.empty(tuple(like.shape if shape is None else shape), dtype=like.dtype, device="meta")
            made = self._shadow(empty)
        self.tape.inputs[name] = made.number
        return made

    def _shadow(self, empty: Tensor) -> Shadow:
        self.tape.values.append(empty)
        return Shadow(empty, len(self.tape.values) - 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in _tensors((args, kwargs))]
        shadows = any(isinstance(each, Shadow) for each in tensors)
        if SEEDED in func.tags and not _draws_nothing(func, args, kwargs):
            raise NotTraceable(f"it draws random numbers by {_plain(func)}", find_line())
        if not shadows and not self._counts_rows((args, kwargs)):
            return self._compute(func, tensors, args, kwargs)
        return self._record(func, args, kwargs)

    def _compute(self, func: Any, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        """What depends on no input, for good; nothing that was there before may be written into."""
        if func._schema.is_mutable:
            self._require_own(func, args[0])
        made = func(*args, **kwargs)
        given = {each.untyped_storage()._cdata for each in tensors}
        self._own.update(each.untyped_storage()._cdata for each in _tensors(made) if not given)
        self._own.update(key for each in _tensors(made) if (key := each.untyped_storage()._cdata) not in given)
        return made

    def _require_own(self, func: Any, target: Any) -> None:
        if isinstance(target, Tensor) and target.untyped_storage()._cdata not in self._own:
            raise NotTraceable(f"it changes a tensor that it keeps ({_plain(func)})", find_line())

    def _counts_rows(self, tree: Any) -> bool:
        """Whether a size among the arguments counts rows."""
        return any(each % self.tape.rows == 0 and each > 0 for each in _sizes(tree))

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        line = find_line()
        special = _without_record(func, args)
        if special is not None:
            return special
        if func in READS:
            raise NotTraceable("it decides by the values of its inputs how to compute", line)
        if func._schema.is_mutable and not isinstance(args[0], Shadow):
            if isinstance(args[0], Tensor) and args[0].untyped_storage()._cdata in self._own:
                raise NotTraceable(f"it writes the batch into a tensor that has no rows ({_plain(func)})", line)
            raise NotTraceable(f"it changes a tensor that it keeps ({_plain(func)})", line)
        empty_args, empty_kwargs = tree_map(self._empty, (args, kwargs))
        if "device" in empty_kwargs and empty_kwargs["device"] is not None or _is_factory(func):
            empty_kwargs = {**empty_kwargs, "device": torch.device("meta")}
        try:
            found = func(*empty_args, **empty_kwargs)
        except NotImplementedError as error:
            raise NotTraceable(f"the shape of what {_plain(func)} gives depends on values", line) from error
        made = self._give(func, args, found)
        outs = tuple(each.number for each in _tensors(made))
        refs = tree_map(self._ref, (args, {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}))
        self.tape.ops.append(Op(func, refs[0], refs[1], outs, line, isinstance(made, (tuple, list))))
        return made

    def _give(self, func: Any, args: Any, found: Any) -> Any:
        """Shadows of what was found; what is written in place is the argument itself."""
        if func._schema.is_mutable and isinstance(found, Tensor) and isinstance(args[0], Shadow):
            if found is args[0].empty:
                return args[0]
        return tree_map(lambda each: self._shadow(each) if isinstance(each, Tensor) else each, found)

    def _empty(self, each: Any) -> Any:
        if isinstance(each, Shadow):
            return each.empty
        return each.to("meta") if isinstance(each, Tensor) else each

    def _ref(self, each: Any) -> Any:
        if isinstance(each, Shadow):
            return Ref(each.number)
        return Ref(self._keep(each)) if isinstance(each, Tensor) else each

    def _keep(self, tensor: Tensor) -> int:
        """The number of a tensor that the program keeps, by what it is now; a later value in it is seen, too."""
        key = id(tensor)
        if key not in self._kept:
            self.tape.values.append(tensor.detach().to("meta"))
            self._kept[key] = len(self.tape.values) - 1
            self.tape.constants[self._kept[key]] = tensor.detach()
            self._alive = [*getattr(self, "_alive", ()), tensor]  # an id is a name only as long as its tensor lives
        return self._kept[key]


READS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.item.default}
"""Operations that tell a value."""


def _without_record(func: Any, args: Any) -> Any:
    """What is answered, and no operation of the program."""
    if func is aten._fused_sdp_choice.default:
        return _choose_attention(*args)
    if func in (aten.sym_size.default, aten.sym_stride.default):
        return None
    return None


def _choose_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Any) -> int:
    """1 for the host's own kernel, where torch would take it, and 0 for plain products."""
    plain = (
        query.dim() == 4
        and query.shape[-1] == value.shape[-1]
        and all(each.stride(-1) == 1 for each in (query, key, value))
    )
    same = query.shape[1] == key.shape[1] and key.shape[1] == value.shape[1] and query.shape[0] == key.shape[0]
    return int(
        plain and same and query.dtype in (torch.float32, torch.float64) and (mask is None or not mask.requires_grad)
    )


def _draws_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function that may draw random numbers was told not to."""
    name = _plain(func)
    if name.startswith("_scaled_dot_product"):
        chance = kwargs.get("dropout_p", args[3] if len(args) > 3 else 0.0)
        return chance == 0.0
    if name == "_fused_sdp_choice":
        return True
    if name == "rrelu_with_noise":
        return not (args[4] if len(args) > 4 else kwargs.get("training", False))
    return False


@cache
def _is_factory(func: Any) -> bool:
    return any(each.name == "device" for each in func._schema.arguments)


@cache
def _plain(func: Any) -> str:
    return str(func.name()).partition("::")[2].partition(".")[0]


def _tensors(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _tensors(each)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def _sizes(tree: Any) -> Iterator[int]:
    if isinstance(tree, bool):
        return
    if isinstance(tree, int):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _sizes(each)


def find_line() -> str:
    """Where in somebody's own code the program is: the outermost line that is neither torch's nor of this package."""
    frame: FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(HERE):
            if found:
                break
        elif not name.startswith((TORCH, "<")) and "contextlib" not in name:
            if "site-packages" not in name or not found:
                found = f"{Path(name).name}, line {frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return found


LOCK = threading.RLock()


@contextmanager
def as_compiled() -> Iterator[None]:
    """Libraries take no shortcut that hangs on values where torch says that a program is compiled."""
    before = torch.compiler._is_compiling_flag  # type: ignore[attr-defined]
    torch.compiler._is_compiling_flag = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before  # type: ignore[attr-defined]


def record(rows: int, program: Callable[[Recorder], Sequence[Tensor | None]]) -> Tape:
    """The operations of a program that is given a recorder to make its inputs with."""
    recorder = Recorder(rows)
    drawn = random.getstate(), np.random.get_state()[1:3], torch.get_rng_state()  # noqa: NPY002
    try:
        with LOCK, as_compiled(), recorder:
            outputs = program(recorder)
            recorder.tape.outputs = [None if each is None else recorder._ref(each).number for each in outputs]
    except NotTraceable:
        raise
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        raise NotTraceable(f"it cannot be recorded without values: {_first_line(error)}", _line_of(error)) from error
    after = random.getstate(), np.random.get_state()[1:3], torch.get_rng_state()  # noqa: NPY002
    if not (drawn[0] == after[0] and _same(drawn[1], after[1]) and torch.equal(drawn[2], after[2])):
        raise NotTraceable("it draws random numbers that belong to no item")
    return recorder.tape


def _same(one: Any, other: Any) -> bool:
    return bool((one[0] == other[0]).all() and one[1] == other[1])


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _line_of(error: BaseException) -> str:
    """The innermost line of somebody's own code in a traceback."""
    found, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((TORCH, HERE, "<")):
            found = f"{Path(name).name}, line {trace.tb_lineno}, in {trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return found
