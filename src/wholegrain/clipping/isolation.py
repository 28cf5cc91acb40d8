"""A model whose program is not proved: every unit sees a copy of its own, so that nothing is left behind for others.

What the copy holds (attributes, buffers, lists) is as it was before the first unit, and random numbers begin anew. What
lies outside of the model cannot be copied: where its own code reaches a list, a tensor or a variable there, it is
refused, as a public fact about the program. Installed libraries are taken not to keep anything between calls.
"""

import dis
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from wholegrain import _check
from wholegrain.clipping.reference import Loss
from wholegrain.errors import ModelError

WRITES = {"STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"}
OWN = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "COPY"}
"""Where an object comes from whose attributes may be written: arguments, the module itself among them."""
HIDDEN = {
    "setattr",
    "delattr",
    "exec",
    "eval",
    "globals",
    "vars",
    "__dict__",
    "__class__",
    "__globals__",
    "__closure__",
}
"""Names by which code reaches what reading it does not show."""
UNCALLED = {"__repr__", "__eq__", "__hash__"}
"""Methods that computing does not need."""
STEADY = (int, float, complex, str, bytes, type(None), ModuleType, torch.dtype, torch.device, Path)
"""Kinds of values that nobody can change."""
CHANGING = (list, dict, set, bytearray, torch.Tensor, np.ndarray, nn.Module)
"""Kinds of libraries' values that somebody can."""


class Both(nn.Module):
    """A model and its loss, either of which may keep something."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model, self.loss = model, loss or _no_loss


def _no_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("a view has no loss")


class Isolated:
    """Copies of a model and its loss as they are now; trainable parameters are the model's own."""

    def __init__(self, model: nn.Module, loss: Loss | None, device: torch.device) -> None:
        both = Both(model, loss)
        _require_isolated(both)
        self._shared: dict[int, Any] = {}
        self._kept = self._copy(both).to(device)
        self._shared = {id(p): p for p in self._kept.parameters()}
        self._states = _seeded_states()

    def _copy(self, both: Both) -> Both:
        try:
            return deepcopy(both, dict(self._shared))
        except Exception as error:  # a model may hold anything
            raise ModelError(
                "The model's program could not be proved, so that each person's gradient needs a copy of the model, and"
                f" it cannot be copied: {_check.reason(error)}."
            ) from error

    @contextmanager
    def fresh(self) -> Iterator[Both]:
        """A copy that nobody has used, with random numbers that begin anew."""
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._set(self._states)
        try:
            yield self._copy(self._kept)
        finally:
            self._set(before)

    def _set(self, states: tuple[Any, Any, torch.Tensor]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def copy_to_record(model: nn.Module) -> nn.Module:
    """A copy that shares parameters and buffers, so that nothing is left behind in the model; itself, if need be."""
    shared: dict[int, Any] = {id(each): each for each in (*model.parameters(), *model.buffers())}
    try:
        return deepcopy(model, shared)
    except Exception:  # a model may hold anything
        return model


def _seeded_states() -> tuple[Any, Any, torch.Tensor]:
    """States of the three generators that are the same for everybody."""
    drawn = torch.Generator().manual_seed(0).get_state()
    return random.Random(0).getstate(), np.random.RandomState(0).get_state(), drawn


def _require_isolated(both: Both) -> None:
    """Refuse a model whose own code reaches what a copy would share."""
    seen: set[Any] = set()
    for name, module in both.named_modules():
        where = name.removeprefix("model.") or type(both.model).__name__
        for kind in type(module).__mro__:
            _require_steady(where, kind.__name__, kind, seen)
        for value in vars(module).values():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            for each in held:
                if isinstance(each, (FunctionType, MethodType)):
                    _require_no_state(where, each, seen)


def _require_no_state(where: str, function: Any, seen: set[Any]) -> None:
    """Refuse a function that reaches what another call could have changed."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or function.__code__ in seen or _is_library(function.__module__):
        return
    seen.add(function.__code__)
    for code in _codes(function.__code__):
        _require_no_writes(where, code)
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                _require_steady(where, step.argval, function.__globals__.get(step.argval), seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        _require_steady(where, name, cell.cell_contents, seen)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        _require_steady(where, f"a default of {function.__name__}", value, seen)


def _require_no_writes(where: str, code: CodeType) -> None:
    """Refuse code that writes into variables, or attributes of objects, that are not its own."""
    base = ""
    for step in dis.get_instructions(code):
        if step.opname in WRITES and step.argval not in code.co_cellvars:
            _refuse(where, f"the variable '{step.argval}'")
        if step.opname == "STORE_ATTR" and base not in OWN:
            _refuse(where, f"the attribute '{step.argval}' of something")
        if step.argval in HIDDEN and "LOAD" in step.opname:
            _refuse(where, f"'{step.argval}'")
        base = base if step.opname == "LOAD_ATTR" else step.opname


def _require_steady(where: str, name: str, value: Any, seen: set[Any]) -> None:
    """Refuse a value that somebody could change; of a class of one's own, that is asked of what it has."""
    if isinstance(value, (FunctionType, MethodType)):
        _require_no_state(where, value, seen)
    elif isinstance(value, type):
        _require_steady_class(where, value, seen)
    elif isinstance(value, (tuple, frozenset)):
        for each in value:
            _require_steady(where, name, each, seen)
    elif not isinstance(value, STEADY) and (isinstance(value, CHANGING) or not _is_library(type(value).__module__)):
        _refuse(where, f"'{name}'")


def _require_steady_class(where: str, kind: type, seen: set[Any]) -> None:
    if kind in seen or _is_library(kind.__module__):
        return
    seen.add(kind)
    for name, value in vars(kind).items():
        value = getattr(value, "__func__", value)
        if name in UNCALLED:
            continue
        if isinstance(value, property):
            _require_steady(where, name, (value.fget, value.fset), seen)
        elif isinstance(value, FunctionType) or not name.startswith("__"):
            _require_steady(where, f"{name}' of the class '{kind.__name__}", value, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _is_library(name: str | None) -> bool:
    """Whether a module was installed: Python's own, this package, or among site packages."""
    module, own = sys.modules.get(name or ""), __name__.partition(".")[0]
    path = getattr(module, "__file__", None)
    if module is None or path is None:
        return module is not None and name != "__main__"
    python = str(Path(dis.__file__).parent)
    return "site-packages" in path or path.startswith(python) or str(name).partition(".")[0] == own


def _refuse(where: str, what: str) -> None:
    raise ModelError(
        f"The model's program could not be proved, and '{where}' reaches {what} outside of the model, where one person"
        " could leave something behind for others: keep it in the model, or make it a constant."
    )
