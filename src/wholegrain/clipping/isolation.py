"""A model whose program is not proved: every unit sees a copy of its own, so that nothing is left behind for others.

What the copy holds (attributes, buffers, lists) is as it was before the first unit, and random numbers begin anew. What
lies outside of the model cannot be copied: where its own code reaches a list, a tensor or a variable there, it is
refused, as a public fact about the program. Installed libraries are taken not to keep anything between calls.
"""

import dis
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from wholegrain import _check
from wholegrain.errors import ModelError

WRITES = {"STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL"}
STEADY = (int, float, complex, str, bytes, bool, type(None), tuple, frozenset, type, ModuleType, torch.dtype,
          torch.device, torch.Size, Path)  # fmt: skip
"""Kinds of values that nobody can change; of a tuple, that is asked of what it holds."""


class Isolated:
    """Copies of a model as it is now, whose trainable parameters are the model's own."""

    def __init__(self, model: nn.Module) -> None:
        for owner, function in _own_functions(model):
            _require_no_state(owner, function, set())
        self._shared = {id(p): p for p in model.parameters()}
        self._kept = self._copy(model)
        self._states = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def _copy(self, model: nn.Module) -> nn.Module:
        try:
            return deepcopy(model, dict(self._shared))
        except Exception as error:  # a model may hold anything
            raise ModelError(
                "The model's program could not be proved, so that each person's gradient needs a copy of the model, and"
                f" it cannot be copied: {_check.reason(error)}."
            ) from error

    @contextmanager
    def fresh(self) -> Iterator[nn.Module]:
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


def _own_functions(model: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of a model's classes, attributes and hooks that are nobody's library."""
    for name, module in model.named_modules():
        where = name or type(module).__name__
        for kind in type(module).__mro__:
            if _is_library(sys.modules.get(kind.__module__)):
                continue
            for attribute, value in vars(kind).items():
                value = getattr(value, "__func__", value)
                if isinstance(value, property):
                    yield from ((where, each) for each in (value.fget, value.fset) if each is not None)
                elif isinstance(value, FunctionType):
                    yield where, value
                elif not attribute.startswith("__") and not _is_steady(value):
                    _refuse(where, f"the attribute '{attribute}' of its class {kind.__name__}")
        for value in vars(module).values():
            held = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
            )
            yield from ((where, each) for each in held if isinstance(each, (FunctionType, MethodType)))


def _require_no_state(where: str, function: Any, seen: set[CodeType]) -> None:
    """Refuse a function that reaches what it, or another call, could change."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or function.__code__ in seen:
        return
    if _is_library(sys.modules.get(function.__module__)):
        return
    seen.add(function.__code__)
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            own = step.argval in code.co_cellvars
            if step.opname in WRITES and not own:
                _refuse(where, f"the variable '{step.argval}'")
    for name in {name for code in _codes(function.__code__) for name in code.co_names}:
        _require_steady(where, name, function.__globals__.get(name), seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            _require_steady(where, name, cell.cell_contents, seen)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        _require_steady(where, f"a default of {function.__name__}", value, seen)


def _require_steady(where: str, name: str, value: Any, seen: set[CodeType]) -> None:
    if isinstance(value, (FunctionType, MethodType)):
        _require_no_state(where, value, seen)
    elif not _is_steady(value):
        _refuse(where, f"'{name}'")


def _is_steady(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(_is_steady(each) for each in value)
    library = _is_library(sys.modules.get(type(value).__module__)) and not isinstance(
        value, (list, dict, set, bytearray, torch.Tensor, np.ndarray, nn.Module)
    )
    return isinstance(value, STEADY) or callable(value) or library


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _is_library(module: ModuleType | None) -> bool:
    """Whether a module was installed: Python's own, or among site packages."""
    path = getattr(module, "__file__", None)
    if module is None or path is None:
        return module is not None and module.__name__ != "__main__"
    return "site-packages" in path or path.startswith((sys.base_prefix, sys.prefix))


def _refuse(where: str, what: str) -> None:
    raise ModelError(
        f"The model's program could not be proved, and '{where}' reaches {what} outside of the model, where one person's"
        " items could leave something behind for others: keep it in the model, or make it a constant."
    )
