"""Which models a spec may name, and which a private step refuses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from wholegrain import _check
from wholegrain._random import Purpose, derive
from wholegrain._registry import Registry
from wholegrain.errors import ModelError, SpecError, WholegrainError
from wholegrain.models import dense, ft_transformer, images, resnet, text


@dataclass(frozen=True)
class ModelEntry:
    """A function that builds a model, and whether it reads numbers (a row or an image) or tokens."""

    build: Callable[..., nn.Module]
    reads_tokens: bool = False


MODELS = Registry(
    "model",
    "model.name",
    {
        "logistic": ModelEntry(dense.logistic),
        "mlp": ModelEntry(dense.mlp),
        "ft_transformer": ModelEntry(ft_transformer.ft_transformer),
        "leaf_cnn": ModelEntry(images.leaf_cnn),
        "small_cnn": ModelEntry(images.small_cnn),
        "upright_cnn": ModelEntry(images.upright_cnn),
        "resnet18": ModelEntry(resnet.resnet18),
        "stacked_lstm": ModelEntry(text.stacked_lstm, reads_tokens=True),
        "whitened_lstm": ModelEntry(text.whitened_lstm, reads_tokens=True),
        "causal_transformer": ModelEntry(text.causal_transformer, reads_tokens=True),
        "bigram": ModelEntry(text.bigram, reads_tokens=True),
        "bag_of_tokens": ModelEntry(text.bag_of_tokens, reads_tokens=True),
    },
    lambda name, factory: ModelEntry(factory),
)


def build(
    name: str, features: int, classes: int, seed: int, options: Mapping[str, Any] = MappingProxyType({})
) -> nn.Module:
    """The named model, or `module:factory` of the caller's own, with parameters drawn from the seed alone.

    >>> build("logistic", features=3, classes=2, seed=0)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    factory = MODELS.find(name).build
    MODELS.require_options(name, factory, options, given=("features", "classes"))
    if ":" not in name:  # what the user's own annotations mean is for their code to say
        _require_kinds(name, factory, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, Purpose.INITIAL) % 2**32)
        try:
            model = factory(features=features, classes=classes, **options)
        except Exception as error:  # a factory is the user's own code: whatever it raises is about the model
            raise SpecError(f"The model '{name}' cannot be built: {_why(name, error)}.") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"'{name}' returned {type(model).__name__}, not a torch.nn.Module.")
    return check_model(model)


def _why(name: str, error: Exception) -> str:
    """What a factory raised; of the user's own, with its kind: a KeyError says nothing but the key."""
    own = ":" in name and not isinstance(error, WholegrainError)
    return f"{type(error).__name__}: {_check.reason(error)}" if own else _check.reason(error)


def require_reader(name: str, tokens: bool) -> None:
    """Refuse a model of the catalogue that reads numbers where the data is `tokens`, or tokens where it is not."""
    if ":" in name or MODELS.find(name).reads_tokens == tokens:
        return
    able = [other for other, entry in MODELS.items() if entry.reads_tokens == tokens]
    data, reads = ("text", "numbers") if tokens else ("numbers", "tokens")
    raise SpecError(
        f"The data is {data}, and the model '{name}' reads {reads}; set model.name to"
        f" {', '.join(able[:-1])} or {able[-1]}."
    )


def _require_kinds(name: str, factory: Callable[..., nn.Module], options: Mapping[str, Any]) -> None:
    """Refuse what the factory's annotations do not allow, before a layer is made of it."""
    hints = get_type_hints(factory, include_extras=True)
    for option, value in options.items():
        try:
            TypeAdapter(hints[option]).validate_python(value, strict=True)
        except ValidationError as error:
            fault = error.errors()[0]
            why = f"{_check.plain_words(fault['msg'])} (it is {fault['input']!r})"
            raise SpecError(f"The model '{name}' cannot be built: in model.options.{option}, {why}.") from error


def check_model(model: nn.Module) -> nn.Module:
    """The model itself, refused where one item's output depends on the others or nothing is trainable."""
    for name, module in model.named_modules():
        if _mixes_items(module):
            raise ModelError(
                f"The layer '{name}' ({type(module).__name__}) mixes the items of a batch, so no"
                " item's influence can be bounded; use GroupNorm or LayerNorm instead."
            )
        if _draws(module):
            raise ModelError(
                f"The layer '{name}' ({type(module).__name__}) draws random numbers of its own, which belong to no"
                " item; use nn.Dropout, or switch it off (its dropout = 0, or the model's .eval())."
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError("The model has no trainable parameters.")
    return model


def _mixes_items(module: nn.Module) -> bool:
    """BatchNorm by its batch; InstanceNorm only by running statistics, which would be kept without noise."""
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return bool(module.track_running_stats)
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _draws(module: nn.Module) -> bool:
    """Random numbers that are drawn inside a layer, where coins of items cannot take their place."""
    if not module.training:
        return False
    if isinstance(module, nn.RReLU):
        return True
    if isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
        return module.p > 0
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
