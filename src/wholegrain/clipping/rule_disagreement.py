"""Says which rule gave other gradients than the reference, and by how much, so that it can be mended."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.layers import COMPOSITES, IN_SEQUENCE, LAYERS


def distance(value: Tensor, expected: Tensor, size: float) -> float:
    """The largest difference as a part of this size; what is not a number is infinitely far."""
    off = float(torch.dist(value, expected, p=float("inf")))
    return float("inf") if off != off else off / size if size else (float("inf") if off else 0.0)


def describe_sum(model: nn.Module, parameter: str, off: float) -> str:
    """Of a parameter whose summed gradients differ."""
    return f"{_rule_of(model, parameter)} gives gradients of '{parameter}' that are {off:.1%} off the reference"


def describe_norms(
    model: nn.Module, shares: Sequence[Share], units: Units, names: Sequence[str], norms: Tensor, off: float
) -> str:
    """Of norms that differ: the share whose own norms are furthest from the reference's [unit, parameter]."""
    worst = max(_norms_off(shares, units, names, norms), default=(0.0, ""))
    if not worst[1]:
        return f"norms by the rules are {off:.1%} off the reference"
    return f"{_rule_of(model, worst[1])} gives norms of '{worst[1]}' that are {worst[0]:.1%} off the reference"


def _norms_off(
    shares: Sequence[Share], units: Units, names: Sequence[str], norms: Tensor
) -> Iterator[tuple[float, str]]:
    for share in shares:
        if any(slot.rows is not None or slot.name not in names for slot in share.slots):
            continue  # a part of a parameter, of which the reference has no norm
        own = norms[:, [names.index(slot.name) for slot in share.slots]].norm(dim=1)
        squared = share.lengths(units).squared
        yield distance(torch.where(squared.isnan(), own, squared.sqrt()), own, float(own.max())), share.slots[0].name


def _rule_of(model: nn.Module, parameter: str) -> str:
    """The module that has a parameter, or the outermost around it that has a rule, and the rule's name."""
    path = parameter.split(".")[:-1]
    rules = {**IN_SEQUENCE, **LAYERS, **COMPOSITES}
    for depth in range(len(path) + 1):
        module = model.get_submodule(".".join(path[:depth]))
        rule = rules.get(type(module))
        if rule is not None:
            where = ".".join(path[:depth]) or "the model"
            name = getattr(rule, "__qualname__", type(rule).__qualname__)
            return f"the rule {name} for {where} ({type(module).__name__})"
    return f"what stands in for a rule of {'.'.join(path) or 'the model'}"
