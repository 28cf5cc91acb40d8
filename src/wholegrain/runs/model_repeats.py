"""Whether a model is a function of its parameters and its items: no chance and no memory of earlier calls.

Gradients of people are computed one after the other, or a few at a time. If a call left anything behind for the next
one (a counter, a generator that was moved on), then one person who leaves would change what is computed of all others,
and no clipping bounds that.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wholegrain.clipping.trial_items import make_items

CALLS = 8
"""So often a model is called with the same item. What happens more rarely is noticed by what it leaves behind."""
PLAIN = bool, int, float, complex, str, bytes, type(None)
GENERATORS: Mapping[type, Callable[[Any], object]] = {
    random.Random: lambda source: source.getstate(),
    np.random.RandomState: lambda source: _as_text(source.get_state(legacy=False)),
    np.random.Generator: lambda source: _as_text(source.bit_generator.state),
    torch.Generator: lambda source: source.get_state().numpy().tobytes(),
}


def random_states() -> tuple[object, ...]:
    """The states of the global generators of Python, numpy and torch."""
    torchs = torch.random.get_rng_state().numpy().tobytes()
    return random.getstate(), _as_text(np.random.get_state(legacy=False)), torchs


def find_memory(model: nn.Module, inputs: Tensor) -> str | None:
    """What the model does that a function does not, in the mode that it is in; None where nothing is seen."""
    items = next(make_items(inputs))
    with torch.enable_grad():
        first = model(items[:1].clone())  # what is made once, at the first call, may stay
        before, kept = random_states(), _attributes(model)
        for call in range(CALLS):
            model(items[1 + call % 2 :][:1].clone())
            again = model(items[:1].clone())
            if not torch.equal(first.nan_to_num(), again.nan_to_num()):
                return "gives other outputs for the same item when it is called again"
    if random_states() != before:
        return "draws random numbers of its own"
    changed = [name for name, value in _attributes(model).items() if kept.get(name) != value]
    return f"changes '{changed[0]}' when it is called" if changed else None


def _attributes(model: nn.Module) -> dict[str, object]:
    """Numbers, texts and generators that the model's modules keep, by name.

    Tensors are left out: many models keep what they last computed, to be looked at, which does no harm.
    """
    return {
        f"{prefix}.{name}".lstrip("."): _plain(value)
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, (*PLAIN, *GENERATORS))
    }


def _plain(value: object) -> object:
    state = next((state for kind, state in GENERATORS.items() if isinstance(value, kind)), None)
    return value if state is None else state(value)


def _as_text(state: object) -> str:
    """The state of numpy's generators, which holds arrays that do not compare as one value."""
    with np.printoptions(threshold=10**6):
        return repr(state)
