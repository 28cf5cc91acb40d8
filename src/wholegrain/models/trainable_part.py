"""Which part of a model is trained: all of it, parameters by name, its last layer, its biases, or adapters.

Adapters are parameters beside a frozen model: low-rank updates of its layers, or a prefix of its attention.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from wholegrain import _check
from wholegrain._random import Purpose, derive
from wholegrain.errors import ModelError


class LowRank(nn.Module):
    """A frozen layer, and beside it one of rank `rank` that is trained and begins at nothing."""

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down: nn.Module
        self.up: nn.Linear | nn.Conv2d
        if isinstance(base, nn.Conv2d):
            self.down = nn.Conv2d(base.in_channels, rank, base.kernel_size, base.stride, base.padding, bias=False)  # type: ignore[arg-type]
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        else:
            self.down = nn.Linear(base.in_features, rank, bias=False)
            self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """What the frozen layer gives, and the update."""
        outputs: Tensor = self.base(inputs) + self.up(self.down(inputs))
        return outputs


@runtime_checkable
class TakesPrefix(Protocol):
    """A module that attends to a learned prefix of keys and values, once it is given one."""

    prefix: nn.Parameter | None

    def add_prefix(self, length: int) -> None:
        """Put a new parameter of so many positions in `prefix`, drawn from torch's generator."""
        ...


def train_part(model: nn.Module, train: str | Sequence[str], rank: int, prefix: int, seed: int) -> nn.Module:
    """The model with everything frozen but what `train` says (`train_choice` has the words)."""
    if not isinstance(train, str):
        return train_matching(model, train)
    if train == "head":
        return train_head(model)
    if train == "biases":
        return train_biases(model)
    if train == "low_rank":
        return train_low_rank(model, rank, seed)
    return train_prefix(model, prefix, seed) if train == "prefix" else model


def train_matching(model: nn.Module, patterns: Sequence[str]) -> nn.Module:
    """The model with everything frozen but parameters whose names match one of the patterns, as in "blocks.3.*".

    A parameter that several modules share has several names; one that matches is enough.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ModelError(_no_match(pattern, list(named)))
    model.requires_grad_(False)
    for name, parameter in named.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(True)
    return model


def _no_match(pattern: str, names: Sequence[str]) -> str:
    """Why a pattern is refused, with the names that are near."""
    parts = {name.rsplit(".", k)[0] for name in names for k in range(1, name.count(".") + 1)}
    near = _check.suggestion(pattern, [*names, *(f"{part}.*" for part in sorted(parts))])
    first = dict.fromkeys(name.partition(".")[0] for name in names)
    return f"No parameter is called '{pattern}'{near}; their names begin with {', '.join(first)}."


def train_head(model: nn.Module) -> nn.Module:
    """The model with everything frozen but its last layer with parameters."""
    head = _head(model)
    model.requires_grad_(False)
    head.requires_grad_(True)
    return model


def train_biases(model: nn.Module) -> nn.Module:
    """The model with everything frozen but its biases and its last layer [BitFit; Ben Zaken et al. 2022]."""
    head = _head(model)
    biases = [p for name, p in model.named_parameters() if name.rpartition(".")[2].startswith("bias")]
    train_head(model)
    if all(any(bias is own for own in head.parameters()) for bias in biases):
        raise ModelError("The model has no biases before its last layer; train its head instead.")
    for bias in biases:
        bias.requires_grad_(True)
    return model


def train_low_rank(model: nn.Module, rank: int, seed: int) -> nn.Module:
    """The model with updates of this rank beside its linear and convolutional layers; its last layer is trained whole.

    The first factors are drawn from the seed, the second are zero: the model begins as the one that was given.
    """
    head = _head(model)
    train_head(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, Purpose.INITIAL, "low rank") % 2**32)
        found = [place for place in _adaptable(model) if place[2] is not head]
        for parent, name, layer in found:
            setattr(parent, name, LowRank(layer, rank))
    if not found:
        raise ModelError(
            "The model has no linear or convolutional layer before its last one to add low-rank updates to."
        )
    return model


def train_prefix(model: nn.Module, length: int, seed: int) -> nn.Module:
    """The model with a prefix of so many learned keys and values in every attention layer [Li and Liang 2021].

    The prefixes are drawn from the seed; the last layer is trained whole.
    """
    train_head(model)
    takers = [module for module in model.modules() if isinstance(module, TakesPrefix)]
    if not takers:
        raise ModelError(
            "The model has no attention layer that takes a prefix; causal_transformer has, and models of transformers"
            " get theirs from peft (PrefixTuningConfig)."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, Purpose.INITIAL, "prefix") % 2**32)
        for module in takers:
            module.add_prefix(length)
    return model


def with_adapters(model: nn.Module, rank: int | None, prefix: int | None) -> nn.Module:
    """A model with the adapters that it was trained with, for their parameters to be loaded; None is none of a kind.

    A model that has adapters already is left as it is.
    """
    if any(isinstance(m, LowRank) or (isinstance(m, TakesPrefix) and m.prefix is not None) for m in model.modules()):
        return model
    if rank is not None:
        return train_low_rank(deepcopy(model), rank, 0)
    return model if prefix is None else train_prefix(deepcopy(model), prefix, 0)


def split_model(model: nn.Module) -> tuple[nn.Module | None, nn.Module]:
    """The frozen beginning of a model, and the rest; None where nothing that takes work is frozen at its beginning.

    What the beginning makes of an item is a public function of it, which need not be computed in every step.
    """
    if type(model) is not nn.Sequential:
        return None, model
    children = list(model)
    trained = next((k for k, child in enumerate(children) if _trainable(child)), len(children))
    frozen = nn.Sequential(*children[:trained])
    if not any(True for _ in frozen.parameters()) or trained == len(children):
        return None, model
    return frozen, nn.Sequential(*children[trained:])


def _head(model: nn.Module) -> nn.Module:
    layers = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    if len(layers) < 2:
        raise ModelError("The model has only one layer with parameters: there is nothing to freeze; train all of it.")
    return layers[-1]


def _adaptable(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear | nn.Conv2d]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear or (type(child) is nn.Conv2d and _plain(child)):
                yield parent, name, child


def _plain(layer: nn.Conv2d) -> bool:
    """Without groups, dilation or padding by other values than zero, which the second factor would have to repeat."""
    return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"


def _trainable(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
