"""Models of the same making are tried once in a process for the company that their rows may be in.

Most of an engine's trials ask in which sizes of pass, and beside whom, rows come out the same to the last bit. The
answer depends on a model's modules and on shapes, not on the numbers it was made with: the order in which a kernel adds
never depends on values. Tests build the same few models over and over. Whether gradients agree with the reference is
tried anew for each of them.
"""

import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wholegrain.clipping.batch_invariance import PassSizes, Rows, SteadySizes
from wholegrain.clipping.candidates import Candidate
from wholegrain.clipping.layers import LAYERS
from wholegrain.clipping.trial import BackendTrial
from wholegrain.clipping.trial_companies import companies

PLAIN = (int, float, str, bool, bytes, type(None), torch.dtype, torch.device, torch.Size, type)
DERIVED = {"_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs", "training"}
"""Attributes of modules that are compared in another way, or follow from those that are."""
_kept: list[Any] = []
"""Objects that are known by their places in memory, so that no other comes to lie there."""
_sizes: dict[Hashable, tuple[int, list[Tensor], dict[int, bool]]] = {}
_repeats: dict[Hashable, bool] = {}


def making(model: nn.Module) -> Hashable:
    """Equal for models that compute the same, but for the numbers that are trained."""
    names: dict[int, str] = {}  # of parameters that are used twice, the first
    modules = [
        (
            name,
            type(module),
            LAYERS.get(type(module)),
            module.training,
            *(_known(value, (name, key)) for key, value in vars(module).items() if key not in DERIVED),
            *(_parameter(f"{name}.{key}", p, names) for key, p in module._parameters.items()),
            *((key, None if each is None else _numbers(each)) for key, each in module._buffers.items()),
        )
        for name, module in model.named_modules(remove_duplicate=False)
    ]
    return tuple(modules)


def _parameter(name: str, parameter: nn.Parameter | None, names: dict[int, str]) -> Hashable:
    if parameter is None:
        return name, None
    first = names.setdefault(id(parameter), name)
    shape = parameter.shape, parameter.dtype, parameter.stride(), parameter.requires_grad
    return name, first, shape, None if parameter.requires_grad else _numbers(parameter)


def _numbers(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def _known(value: Any, key: Hashable) -> Hashable:
    """A value by what it is; what has no plain value only as itself."""
    if isinstance(value, PLAIN):
        return key, type(value), value
    if isinstance(value, list | tuple):
        return key, type(value), tuple(_known(each, number) for number, each in enumerate(value))
    if isinstance(value, dict | set) and not value:
        return key, type(value), None
    _kept.append(value)
    return key, id(value)


def trial_key(trial: BackendTrial, made: Candidate) -> Hashable:
    """All that the answers depend on."""
    loss = trial._loss
    _kept.append(loss)
    items = (trial.inputs.shape, trial.inputs.dtype, trial._targets.shape, trial._targets.dtype, trial._vector.dtype)
    return making(trial._model), id(loss), items, type(made.program), made.workspace.aligned, torch.get_num_threads()


@contextmanager
def remembered_trials(*, few: bool = False) -> Iterator[None]:
    """What was found in trials of company is remembered meanwhile; with `few`, subjects are tried in three of them."""
    find_sizes, repeats, of = BackendTrial.find_sizes, BackendTrial._repeats, SteadySizes.of
    asking = threading.local()  # some engines are tried in threads

    def find(trial: BackendTrial, made: Candidate, most: int) -> PassSizes | None:
        asking.key = trial_key(trial, made), most
        try:
            return find_sizes(trial, made, most)
        finally:
            asking.key = None

    def remember_sizes(run: Rows, period: int, multiple: int, most: int = sys.maxsize) -> SteadySizes | None:
        key = getattr(asking, "key", None)
        if key is None:  # asked by a test itself
            return of(run, period, multiple, most)
        if key in _sizes:
            found, first, trusted = _sizes[key]
            return SteadySizes(run, period, found, most, first, trusted)
        made = of(run, period, multiple, most)
        if made is not None:
            _sizes[key] = made.multiple, made._first, made._trusted
        return made

    def repeat(trial: BackendTrial, made: Candidate, size: int, sizes: PassSizes) -> bool:
        assert isinstance(sizes, SteadySizes)
        asked = few, trial_key(trial, made), size, sizes.period, sizes.multiple, sizes.most
        if asked not in _repeats:
            _repeats[asked] = repeats(trial, made, size, sizes)
        return _repeats[asked]

    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr("wholegrain.clipping.trial.companies", lambda *given: islice(companies(*given), 3))
        patch.setattr(BackendTrial, "find_sizes", find)
        patch.setattr(BackendTrial, "_repeats", repeat)
        patch.setattr(SteadySizes, "of", staticmethod(remember_sizes))
        yield
