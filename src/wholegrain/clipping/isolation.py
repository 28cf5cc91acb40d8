"""A model whose program is not proved: every unit sees a copy of its own, so that nothing is left behind for others.

What the copy holds (attributes, buffers, lists, frozen parameters) is as it was before the first unit, and random
numbers begin anew; the same holds for the loss. What lies outside of both cannot be copied: where their own code
reaches a list, a tensor or a variable there, it is refused, as a public fact about the program. Installed libraries are
taken not to keep anything between calls.
"""

import dis
import random
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from wholegrain import _check
from wholegrain.clipping.reference import Loss
from wholegrain.errors import ModelError

WRITES = {"STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL"}
STEADY = (int, float, complex, str, bytes, bool, type(None), tuple, frozenset, type, ModuleType, torch.dtype,
          torch.device, torch.Size, Path)  # fmt: skip
"""Kinds of values that nobody can change; of a tuple, that is asked of what it holds."""

Seen = dict[int, Any]
"""What was looked at, by its address; it is kept, so that nothing else can have that address."""


class Isolated:
    """Copies of a model and a loss as they are now; trainable parameters are the model's own, to be replaced."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        seen: Seen = {}
        for name, module in model.named_modules():
            _require_no_state_in(name or type(module).__name__, module, seen)
        _require_no_state_in("the loss", loss, seen)
        self._shared = {id(p): p for p in model.parameters() if p.requires_grad}
        self._kept = self._copy((model, loss))
        self._states = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def _copy(self, pair: tuple[nn.Module, Loss]) -> tuple[nn.Module, Loss]:
        try:
            return deepcopy(pair, dict(self._shared))
        except Exception as error:  # a model may hold anything
            raise ModelError(
                "The model's program could not be proved, so that each person's gradient needs a copy of the model, and"
                f" it cannot be copied: {_check.reason(error)}."
            ) from error

    @contextmanager
    def fresh(self) -> Iterator[tuple[nn.Module, Loss]]:
        """A model and a loss that nobody has used."""
        with self.own_numbers():
            yield self._copy(self._kept)

    @contextmanager
    def own_numbers(self) -> Iterator[None]:
        """Random numbers that begin anew; afterwards those of the calling program go on."""
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._set(self._states)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, states: tuple[Any, Any, torch.Tensor]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _require_no_state_in(where: str, value: Any, seen: Seen) -> None:
    """Of a part of a model, and of all that it holds: functions of its own class, and what these reach."""
    if id(value) in seen or isinstance(value, (torch.Tensor, np.ndarray, str, bytes, ModuleType)):
        return
    if isinstance(value, FunctionType):
        _require_no_state(where, value, seen)
    elif isinstance(value, type):
        _require_no_state_of_class(where, value, seen)
    else:
        seen[id(value)] = value
        _require_no_state_of_class(where, type(value), seen)
        for held in _held(value):
            _require_no_state_in(where, held, seen)


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif hasattr(value, "__dict__"):
        yield from vars(value).values()


def _require_no_state_of_class(where: str, kind: type, seen: Seen) -> None:
    for each in kind.__mro__:
        if id(each) in seen or _is_library(sys.modules.get(each.__module__)):
            continue
        seen[id(each)] = each
        for attribute, value in vars(each).items():
            value = getattr(value, "__func__", value)
            if isinstance(value, property):
                for function in (value.fget, value.fset):
                    _require_no_state(where, function, seen)
            elif isinstance(value, FunctionType):
                _require_no_state(where, value, seen)
            elif not attribute.startswith("__") and not _is_steady(value):
                _refuse(where, f"the attribute '{attribute}' of its class {each.__name__}")


def _require_no_state(where: str, function: Any, seen: Seen) -> None:
    """Refuse a function that reaches what it, or another call, could change."""
    if not isinstance(function, FunctionType) or id(function.__code__) in seen:
        return
    if _is_library(sys.modules.get(function.__module__)):
        return
    seen[id(function.__code__)] = function.__code__
    codes = list(_codes(function.__code__))
    names = {name for code in codes for name in code.co_names}
    reached = _Reached(where, names, seen)
    for code in codes:
        for step in dis.get_instructions(code):
            if step.opname in WRITES and step.argval not in code.co_cellvars:
                _refuse(where, f"the variable '{step.argval}'")
            if step.opname == "IMPORT_NAME":
                reached.require_steady(step.argval, sys.modules.get(step.argval))
    for name in names:
        reached.require_steady(name, function.__globals__.get(name))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            reached.require_steady(name, cell.cell_contents)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        reached.require_steady(f"a default of {function.__name__}", value)


@dataclass(frozen=True)
class _Reached:
    """What a function may reach by the names in its code."""

    where: str
    names: Set[str]
    seen: Seen

    def require_steady(self, name: str, value: Any) -> None:
        """Refuse what somebody could change; of a module, what the function may ask it for."""
        if isinstance(value, ModuleType) and not _is_library(value):
            if id(value) not in self.seen:
                self.seen[id(value)] = value
                for each in self.names & vars(value).keys():
                    self.require_steady(each, vars(value)[each])
                del self.seen[id(value)]  # another function may ask it for more
        elif isinstance(value, MethodType):
            self.require_steady(name, value.__self__)
            _require_no_state(self.where, value.__func__, self.seen)
        elif isinstance(value, (FunctionType, type)):
            _require_no_state_in(self.where, value, self.seen)
        elif not _is_steady(value):
            _refuse(self.where, f"'{name}'")


def _is_steady(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(_is_steady(each) for each in value)
    if hasattr(value, "cache_info"):  # it answers from what it was asked before
        return False
    if isinstance(value, (list, dict, set, bytearray, torch.Tensor, np.ndarray, nn.Module)):
        return False
    return isinstance(value, STEADY) or _is_library(sys.modules.get(type(value).__module__))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _is_library(module: ModuleType | None) -> bool:
    """Whether a module was installed: Python's own, among site packages, or this package wherever it lies."""
    path = getattr(module, "__file__", None)
    if module is not None and module.__name__.partition(".")[0] == "wholegrain":
        return True
    if module is None or path is None:
        return module is not None and module.__name__ != "__main__"
    return "site-packages" in path or path.startswith((sys.base_prefix, sys.prefix))


def _refuse(where: str, what: str) -> None:
    raise ModelError(
        f"The model's program could not be proved, and '{where}' reaches {what} outside of the model, where one"
        " person's items could leave something behind for others: keep it in the model, or make it a constant."
    )
