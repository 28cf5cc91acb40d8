"""A model's forward and backward pass as a list of ATen operations, recorded once without any values.

Whatever a module is made of (hooks, parametrisations, wrappers, functional code), what it does to a batch is a list of
operations, and afterwards only that list is run. Tensors have shapes here and no values: a model that looks at a value
to decide how to compute cannot be recorded, and is refused with the operation and the line that looked. It is recorded
with two numbers of rows: what differs between the two counts rows.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from wholegrain.clipping.in_pieces import CHOICES, PIECES, SAME, SKIPPED, Plainly, choose, undo
from wholegrain.clipping.tape import NotTraceable, Op, Ref, Sized, Tape, aten, compare, map_tree, name_of, simplify
from wholegrain.clipping.tape_lines import Lines, find_fault

SIZES = (31, 38)
"""Numbers of rows with which a program is recorded: seldom another size by chance, odd and even."""
SEEDED = torch.Tag.nondeterministic_seeded
TELLS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class Memory:
    """What several shadows are views of: its newest value, and why it may not be written into."""

    def __init__(self, number: int, frozen: str = "") -> None:
        self.number, self.version, self.frozen = number, 0, frozen


class Shadow(Tensor):
    """A tensor of the host that has a shape and no values."""

    memory: Memory
    number: int
    version: int
    recorder: "Recorder"
    source: "tuple[Shadow, Any, Any, Any] | None"
    """What it is a view of, and by which operation with which other arguments."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, empty: Tensor) -> "Shadow":
        """As this tensor without memory."""
        made: Shadow = torch.Tensor._make_wrapper_subclass(
            cls, empty.shape, strides=empty.stride(), storage_offset=empty.storage_offset(), dtype=empty.dtype,
            layout=empty.layout, device=torch.device("cpu"), requires_grad=False,
        )  # fmt: skip
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<{self.dtype} of shape {list(self.shape)}>"

    def data_ptr(self) -> int:
        """What a program would do with a place in memory is not recorded."""
        raise self.recorder._refuse("it asks where in memory its inputs are")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotTraceable("a value of the batch is used after the model was recorded")


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation; what depends on nothing from outside has its values, too."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.rows = Tape(rows), rows
        self.known: dict[int, Tensor] = {}
        """Values of what was made from nothing while the model ran: masks, positions."""
        self._kept: dict[int, tuple[Tensor, Shadow]] = {}
        self._lines = Lines()
        self.refused: NotTraceable | None = None
        """Kept, in case that the program goes on in another way."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes a second

    def _refuse(self, reason: str) -> NotTraceable:
        self.refused = NotTraceable(reason, self._lines.find())
        return self.refused

    def input(self, name: str, like: Tensor, shape: Sequence[int] | None = None) -> Shadow:
        """A value that is given from outside; with a shape it has rows, along its first dimension."""
        size = tuple(like.shape) if shape is None else (self.rows, *shape[1:])
        frozen = "it changes its own parameters" if shape is None else ""
        with torch._C._DisableTorchDispatch():  # an input is no operation of the program
            made = self._shadow(self._new(torch.empty(size, dtype=like.dtype, device="meta")), frozen)
        self.tape.inputs[name] = made.number
        return made

    def _new(self, empty: Tensor) -> Ref:
        self.tape.values.append(empty)
        return Ref(len(self.tape.values) - 1)

    def _shadow(self, ref: Ref, frozen: str = "", source: Any = None) -> Shadow:
        made = Shadow(self.tape.values[ref.number])
        made.number, made.recorder, made.source = ref.number, self, source
        made.memory = source[0].memory if source else Memory(ref.number, frozen)
        made.version = made.memory.version
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, *args, **(kwargs or {}))

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Record an operation, and give shadows of its results."""
        name = name_of(func)
        if func in SKIPPED:
            return None
        if func in CHOICES:
            return choose(func, args, kwargs)
        if func is aten.lift_fresh.default and not isinstance(args[0], Shadow):
            return self._adopt(args[0], fresh=True)
        if SEEDED in func.tags and not _draws_nothing(name, args, kwargs):
            raise self._refuse(f"it draws random numbers by {name}")
        args, kwargs = map_tree(self._taken, (args, kwargs))
        tells = not TELLS.isdisjoint(func.tags) and func not in BY_INDEX
        if tells or not any("Tensor" in str(each.type) for each in func._schema.returns):
            return self._tell(func, args, kwargs)
        if ("empty" in name and func not in PIECES) or name in HIDDEN:
            raise self._refuse(f"it uses values that nobody has written ({name})")
        if func._schema.is_mutable or _writes_statistics(name, args):
            return self._write(func, name, args, kwargs)
        if func in PIECES:
            return PIECES[func](self.run, *args, **kwargs)
        made = self._ref(args[0]) if func in SAME else self._emit(func, args, kwargs)
        source = (args[0], func, args[1:], kwargs) if _is_view(func) and isinstance(args[0], Shadow) else None
        return map_tree(lambda each: self._shadow(each, source=source) if isinstance(each, Ref) else each, made)

    def _taken(self, each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        if not isinstance(each, Shadow):
            return self._adopt(each)
        if each.recorder is not self:
            raise self._refuse("it uses a value of an earlier batch, which it keeps")
        return each

    def _adopt(self, tensor: Tensor, fresh: bool = False) -> Shadow:
        """A tensor that is kept, by what it is now: a value that it gets later is seen, too."""
        if id(tensor) not in self._kept:
            if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
                raise self._refuse(f"it uses a tensor of the kind {type(tensor).__name__}")
            ref = self._new(torch.empty_like(tensor, device="meta", requires_grad=False))
            self.tape.constants[ref.number] = tensor.clone() if fresh else tensor.detach()
            if fresh:
                self.known[ref.number] = self.tape.constants[ref.number]
            made = self._shadow(
                ref, "" if fresh else "it changes a tensor that it keeps, as a batch norm does unless one calls eval()"
            )
            self._kept[id(tensor)] = tensor, made  # an id is a name only as long as its tensor lives
        return self._kept[id(tensor)][1]

    def _number(self, shadow: Shadow) -> int:
        """Of its newest value, made anew where something was written into what it is a view of."""
        if shadow.version != shadow.memory.version:
            if shadow.source is None:
                shadow.number = shadow.memory.number
            else:
                base, func, args, kwargs = shadow.source
                current = Ref(self._number(base))
                shadow.number = (current if func in SAME else self._emit(func, (current, *args), kwargs)).number
            shadow.version = shadow.memory.version
        return shadow.number

    def _ref(self, each: Any) -> Any:
        return Ref(self._number(each)) if isinstance(each, Shadow) else each

    def _emit(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record an operation on shadows and references, and give references to its results."""
        args, kwargs = map_tree(self._ref, (tuple(args), kwargs))
        empty_args, empty_kwargs = map_tree(self._empty, (args, kwargs))
        makes = _has_argument(func, "device")
        if makes:
            empty_kwargs = {**empty_kwargs, "device": torch.device("meta")}
            kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
        line = self._lines.find()
        try:
            found = func(*empty_args, **empty_kwargs)
        except NotImplementedError as error:
            raise self._refuse(f"the shape of what {name_of(func)} gives depends on values") from error
        if makes and isinstance(found, Tensor) and _has_argument(func, "dtype"):
            kwargs["dtype"] = found.dtype  # torch's usual one may be another one later
        made = map_tree(lambda each: self._new(each) if isinstance(each, Tensor) else each, found)
        refs = [each for each in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(each, Ref)]
        self._compute(func, args, kwargs, refs)
        if func in VIEWS:  # with strides of the host's own kernels it may take a copy
            func = aten.reshape.default
        if name_of(func) == "squeeze":  # of one row it would squeeze the rows, too
            func, args = aten.reshape.default, (args[0], list(found.shape))
        outs = tuple(each.number for each in refs)
        self.tape.ops.append(Op(func, args, kwargs, outs, line, isinstance(made, (tuple, list))))
        return made

    def _empty(self, each: Any) -> Any:
        return self.tape.values[each.number] if isinstance(each, Ref) else each

    def _compute(self, func: Any, args: Any, kwargs: Any, refs: list[Ref]) -> None:
        """The values of results whose arguments have values."""
        if func.namespace != "aten" or not self._is_known((args, kwargs)):
            return
        args, kwargs = map_tree(self._value, (args, kwargs))
        found = func(*args, **kwargs)
        tensors = [each for each in (found if isinstance(found, (tuple, list)) else (found,)) if each is not None]
        self.known.update({ref.number: value for ref, value in zip(refs, tensors, strict=True)})

    def _is_known(self, tree: Any) -> bool:
        if isinstance(tree, (list, tuple)):
            return all(self._is_known(each) for each in tree)
        if isinstance(tree, dict):
            return all(self._is_known(each) for each in tree.values())
        return not isinstance(tree, Ref) or tree.number in self.known

    def _value(self, each: Any) -> Any:
        return self.known[each.number] if isinstance(each, Ref) else each

    def _tell(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A number of Python's, which depends on values; of those from outside, none is told."""
        args, kwargs = map_tree(self._ref, (args, kwargs))
        if func.namespace != "aten" or not self._is_known((args, kwargs)):
            what = "it decides by values how to compute" if func in READS else "what it computes by values is no tensor"
            raise self._refuse(f"{what} ({name_of(func)})")
        args, kwargs = map_tree(self._value, (args, kwargs))
        return func(*args, **kwargs)

    def _write(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """What is done in place makes a new value, which all views of the old one see."""
        target = args[0]
        written = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
        if _writes_statistics(name, args):
            raise self._refuse("it updates statistics that it keeps, as a batch norm does unless one calls eval()")
        if name in RESHAPED:
            return self._reshape(func, target, args, kwargs)
        if written != [func._schema.arguments[0].name] or not name.endswith("_") or name in REPLACED:
            raise self._refuse(f"it writes into a tensor by {name}")
        if target.memory.frozen:
            raise self._refuse(f"{target.memory.frozen} ({name})")
        made = self._emit(getattr(getattr(aten, name[:-1]), func._overloadname), args, kwargs)
        if self._empty(made).shape != target.shape:
            raise self._refuse(f"it writes a larger value into a smaller one ({name})")
        if self._empty(made).dtype != target.dtype:
            made = self._emit(aten._to_copy.default, (made,), {"dtype": target.dtype})
        self._set(target, made)
        return target

    def _reshape(self, func: Any, target: Shadow, args: Any, kwargs: Any) -> Shadow:
        """What turns itself into a view of itself is a view of what it was."""
        before = self._shadow(Ref(self._number(target)), source=target.source)
        before.memory = target.memory
        overload = "int" if func is aten.transpose_.default else func._overloadname
        view = getattr(getattr(aten, name_of(func)[:-1]), overload)
        target.number, target.source = (
            self._emit(view, (before, *args[1:]), kwargs).number,
            (before, view, args[1:], kwargs),
        )
        with torch._C._DisableTorchDispatch():
            func(target, *args[1:], **kwargs)
        target.memory.frozen = (
            "it writes into a tensor whose shape it changed"  # other views of it are of the old shape
        )
        return target

    def _set(self, target: Shadow, new: Ref) -> None:
        if target.source is None:
            target.memory.number = new.number
            target.memory.version += 1
        else:
            base, func, args, _ = target.source
            whole = undo(self._emit, func, Ref(self._number(base)), new, self._empty(self._ref(base)).shape, args)
            if whole is None:
                raise self._refuse(f"it writes into a view of a tensor ({name_of(func)})")
            self._set(base, whole)
        target.number, target.version = new.number, target.memory.version


VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
BY_INDEX = frozenset({aten.index.Tensor, aten._unsafe_index.Tensor})
"""How much they give hangs on values only where an index is a mask."""
READS = frozenset({aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.item.default})
RESHAPED = frozenset({"t_", "transpose_", "squeeze_", "unsqueeze_"})
"""Operations that make of a tensor a view of itself."""
HIDDEN = frozenset({"resize", "resize_as", "set", "from_file"})
"""Operations that give values from elsewhere."""
REPLACED = frozenset({"set_", "resize_", "resize_as_", "as_strided_"})
"""Operations that take other memory."""


@cache
def _is_view(func: Any) -> bool:
    """Whether a result is a view of the first argument, as the schema says."""
    given = func._schema.arguments[0].alias_info if func._schema.arguments else None
    return given is not None and not given.is_write and func._schema.returns[0].alias_info is not None


@cache
def _has_argument(func: Any, name: str) -> bool:
    return any(each.name == name for each in func._schema.arguments)


def _writes_statistics(name: str, args: Any) -> bool:
    """Whether a batch norm updates its statistics, of which its schema says nothing."""
    return name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm") and args[5] and args[3] is not None


def _draws_nothing(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a function that may draw random numbers was told not to."""
    if name.startswith("_scaled_dot_product"):
        place = 3 if "flash" in name else 5
        return bool(kwargs.get("dropout_p", args[place] if len(args) > place else 0.0) == 0.0)
    return name == "rrelu_with_noise_functional" and not (args[4] if len(args) > 4 else kwargs.get("training", False))


__all__ = ["SIZES", "NotTraceable", "Op", "Recorder", "Ref", "Sized", "Tape", "record"]
LOCK = threading.RLock()


@contextmanager
def as_compiled() -> Iterator[None]:
    """Libraries take no shortcut that hangs on values where torch says that a program is compiled.

    Nor does torch choose kernels that do several things at once for the host.
    """
    before = torch.compiler._is_compiling_flag, torch._C._get_mkldnn_enabled()
    stands_in = _leave_compiler_out()
    torch.compiler._is_compiling_flag = True
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        if stands_in is not None and sys.modules.get("torch._dynamo") is stands_in:
            del sys.modules["torch._dynamo"]
            vars(torch).pop("_dynamo", None)
        torch.compiler._is_compiling_flag = before[0]
        torch._C._set_mkldnn_enabled(before[1])


def _leave_compiler_out() -> ModuleType | None:
    """Something in the place of torch's compiler, unless that is there.

    Torch's rules for shapes ask it not to compile them. To be asked that, it would be imported, which takes seconds.
    """
    if "torch._dynamo" in sys.modules:
        return None
    stand_in = ModuleType("torch._dynamo")
    stand_in.disable = lambda function, *options, **named: function  # type: ignore[attr-defined]
    sys.modules["torch._dynamo"] = stand_in
    return stand_in


Program = Callable[[Recorder], Sequence[Tensor | None]]


def record(rows: int, program: Program) -> Tape:
    """The operations of a program that is given a recorder to make its inputs with.

    It is called twice, with recorders of different `rows`: from these it must take how many rows there are.
    """
    if rows < 2:
        raise ValueError("one row meets no other; record at least 2")
    with LOCK:
        recorder, other = _record(rows, program), _record(next(each for each in SIZES if each != rows), program)
    compare(recorder.tape, other.tape)
    simplify(recorder.tape, recorder.known)
    return recorder.tape


def _record(rows: int, program: Program) -> Recorder:
    recorder = Recorder(rows)
    drawn = _random_states()
    try:
        with as_compiled(), recorder, Plainly():
            outputs = program(recorder)
            numbers = [None if each is None else recorder._number(recorder._taken(each)) for each in outputs]
            recorder.tape.outputs = numbers
    except NotTraceable:
        raise
    except Exception as error:  # a program may be anybody's code, and shadows are unlike what it knows
        if recorder.refused is not None:
            raise recorder.refused from error
        raise NotTraceable(f"it cannot be recorded without values: {_first_line(error)}", find_fault(error)) from error
    if recorder.refused is not None:
        raise recorder.refused
    if _random_states() != drawn:
        raise NotTraceable("it draws random numbers that belong to no item")
    return recorder


def _random_states() -> tuple[Any, ...]:
    state = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2], torch.get_rng_state().numpy().tobytes()  # type: ignore[index]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
