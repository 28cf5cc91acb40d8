"""What is changed of a model after the first step is noticed at the next one, in one sentence."""

from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.errors import ModelError

CLIP = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)


class Scaled(nn.Module):
    """Has a number, a list, a mode and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.frozen = nn.Linear(4, 3), nn.Linear(3, 3).requires_grad_(False)
        self.scale, self.scales = 2.0, [1.0, [3.0, torch.tanh]]
        self.register_buffer("shift", torch.ones(3))
        self.shift: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Uses them all."""
        outer, (inner, function) = self.scales
        x = function(self.inner(x) * self.scale * outer * inner)
        return self.frozen(x if self.training else 2 * x) + self.shift


def step(engine: BookKeeping) -> Tensor:
    batch = torch.ones(5, 4), torch.arange(5) % 3, torch.arange(5) // 2
    return engine(flatten(engine.model), *batch, CLIP).total


def _forward(module: nn.Module) -> None:
    module.forward = MethodType(lambda self, x: self.inner(x), module)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "hook": lambda m: m.inner.register_forward_hook(lambda module, given, made: made * 2),
    "hook before": lambda m: m.register_forward_pre_hook(lambda module, given: (given[0] * 2,)),
    "backward hook": lambda m: m.inner.register_full_backward_hook(lambda module, given, made: None),
    "forward": _forward,
    "forward of the class": lambda m: setattr(type(m), "forward", lambda self, x: self.inner(x)),
    "mode": lambda m: m.eval(),
    "mode of a part": lambda m: m.frozen.eval(),
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "new attribute": lambda m: setattr(m, "other", 3.0),
    "removed attribute": lambda m: delattr(m, "scale"),
    "list": lambda m: m.scales.append(1),
    "value in a list": lambda m: m.scales[1].__setitem__(0, 4.0),
    "function in a list": lambda m: m.scales[1].__setitem__(1, torch.sigmoid),
    "module": lambda m: setattr(m, "inner", nn.Linear(4, 3)),
    "parameter": lambda m: setattr(m.inner, "weight", nn.Parameter(torch.zeros(3, 4))),
    "buffer": lambda m: setattr(m, "shift", torch.zeros(3)),
    "memory of a buffer": lambda m: setattr(m.shift, "data", torch.zeros(3)),
    "memory of what is frozen": lambda m: setattr(m.frozen.weight, "data", torch.zeros(3, 3)),
    "what is frozen": lambda m: m.inner.bias.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_at_the_next_step(change: str) -> None:
    own = type("Own", (Scaled,), {})
    model = own()
    engine = BookKeeping(model, cross_entropy)
    before = step(engine)
    assert torch.equal(step(engine), before)
    CHANGES[change](model)
    with pytest.raises(ModelError, match="was changed after the first step") as refused:
        engine(flatten(Scaled()), torch.ones(5, 4), torch.arange(5) % 3, torch.arange(5) // 2, CLIP)
    assert "\n" not in str(refused.value)


def test_an_object_in_the_place_of_another_is_noticed_wherever_it_lies() -> None:
    """A new function may get the address of one that was freed."""
    model = Scaled()
    model.scales[1][1] = lambda x: x.tanh()
    engine = BookKeeping(model, cross_entropy)
    step(engine)
    model.scales[1].pop()
    model.scales[1].append(lambda x: x.sigmoid())
    with pytest.raises(ModelError, match="'scales' of the model was changed"):
        step(engine)


@pytest.mark.parametrize("module", [nn.LSTM(4, 3, batch_first=True), nn.GRU(4, 3, batch_first=True)])
def test_calls_with_other_parameters_are_no_change(module: nn.Module) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x[:, None])[0][:, -1]

    model = Recurrent()
    engine = BookKeeping(model, cross_entropy)
    before = step(engine)
    functional_call(model, {name: p.detach() * 2 for name, p in model.named_parameters()}, (torch.ones(2, 4),))
    model(torch.ones(2, 4))
    assert torch.equal(step(engine), before)


def test_values_may_change_in_place() -> None:
    model = Scaled()
    engine = BookKeeping(model, cross_entropy)
    before = step(engine)
    model.shift.mul_(3 * torch.arange(3))
    assert not torch.equal(step(engine), before)
