"""Whether a model is what it was when its program was recorded: what is changed afterwards would have no effect."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from wholegrain.errors import ModelError

DERIVED = {"_flat_weights", "_flat_weight_refs"}
"""What recurrent layers note of the parameters that they were last called with."""
PLAIN = (bool, int, float, str, bytes, type(None), tuple)


class ModelWatch:
    """The modules, hooks, modes and attributes of a model as they are now; values of tensors may change."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._before = model, dict(_facts(model))
        self._modules = list(model.modules())
        self._objects = self._glance()

    def require_same(self) -> None:
        """Refuse a model that is another one now."""
        seen = self._glance()  # in every step, so that it must be quick
        if seen == self._objects:
            return
        now = dict(_facts(self._model))
        if now == self._before:
            self._objects = seen
            return
        changed = next(key for key in (*now, *self._before) if now.get(key) != self._before.get(key))
        name, attribute = changed
        raise ModelError(
            f"'{attribute}' of {name or 'the model'} was changed after the first step, which was recorded and proved"
            " without the change: make changes before the first step, or begin another run."
        )

    def _glance(self) -> list[Any]:
        """Which objects all modules hold, and what is in these."""
        found: list[Any] = []
        for module in self._modules:
            found.append(id(type(module).forward))
            for attribute, value in vars(module).items():
                if attribute not in DERIVED:
                    found.append(_held(value, attribute == "_buffers"))
        return found


def _held(value: Any, live: bool) -> Any:
    if isinstance(value, (dict, list, tuple, set)):
        held = value.values() if isinstance(value, dict) else value
        return [_held(each, live) for each in held] if value else len(value)
    if isinstance(value, torch.Tensor) and not value.requires_grad:
        return id(value), value.data_ptr(), None if live or isinstance(value, nn.Parameter) else value._version
    return id(value)


def _facts(model: nn.Module) -> Iterator[tuple[tuple[str, str], Any]]:
    for name, module in model.named_modules():
        yield (name, "forward"), _Same(type(module).forward)
        for attribute, value in vars(module).items():
            if attribute not in DERIVED:
                yield (name, attribute), _fact(value, live=attribute == "_buffers")


class _Same:
    """An object that equals itself alone; it is kept, so that no other can take its address."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def _fact(value: Any, live: bool = False) -> Any:
    """A value as it is now; of `live` tensors, whichever values they have."""
    if isinstance(value, PLAIN):
        return value if not isinstance(value, tuple) else tuple(map(_fact, value))
    if isinstance(value, dict):
        return tuple((key if isinstance(key, PLAIN) else _Same(key), _fact(each, live)) for key, each in value.items())
    if isinstance(value, (list, set, frozenset)):
        return tuple(map(_fact, value))
    if isinstance(value, torch.Tensor):
        memory = None if value.requires_grad else value.data_ptr()  # what is trained is given anew in every step
        # Values of parameters and buffers are seen as they are; those of other tensors are what they were.
        live = live or value.requires_grad or isinstance(value, nn.Parameter)
        version = None if live else value._version
        return _Same(value), memory, tuple(value.shape), value.dtype, value.requires_grad, version
    return _Same(value)
