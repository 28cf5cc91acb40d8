"""Ways in which rows of a batch meet, each as a module that takes values [row, ...] and gives as many.

Forward, applied to values, or backward, applied to gradients: mixing_modules.py says where they stand in a model.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clipping.mixing_values import LOUD_VALUES, SUBTLE_VALUES, VALUES, Map, flat


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Map) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class BatchNorm(nn.Module):
    """In training, over all dimensions but the last."""

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, **options)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return self.norm(rows).reshape(x.shape) if len(rows) > 1 else x


class RunningMaximum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.most = 3.0

    def forward(self, x: Tensor) -> Tensor:
        self.most = max(self.most, float(x.detach().abs().max()))
        return x * 3 / self.most


class RunningMaximumTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.most = torch.tensor(3.0)

    def forward(self, x: Tensor) -> Tensor:
        self.most = torch.maximum(self.most, x.detach().abs().amax())
        return x * 3 / self.most


class RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.5).add_(x.detach().mean())
        return x * (0.3 + self.mean.abs())


class Slots(nn.Module):
    """Numbers in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[float, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        keys = (round(key, 3) for key in flat(x).detach().sum(1).tolist())
        numbers = [self.slots.setdefault(key, len(self.slots)) for key in keys]
        return x * (0.3 + torch.tensor(numbers, dtype=x.dtype).view(-1, *[1] * (x.dim() - 1)) / 9)


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(x.detach().abs().mean())
        return x / (0.3 + torch.stack(self.kept).sum())


class MemoryBank(nn.Module):
    """Rows of earlier batches, as in contrastive learning with a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.bank: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        f = flat(x)
        bank = f.detach() if self.bank is None else torch.cat([self.bank, f.detach()])
        self.bank = bank[-40:]
        return ((f @ bank.T).softmax(1) @ bank + f).reshape(x.shape)


class LastBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.detach().mean(0)
        return x if before is None else x - before


class GlobalList(nn.Module):
    """A closure over what every call changes."""

    def __init__(self) -> None:
        super().__init__()
        seen: list[Tensor] = []

        def change(x: Tensor) -> Tensor:
            seen.append(x.detach().abs().mean())
            return x / (0.3 + sum(seen))

        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


class WeightChanged(nn.Module):
    """Its own parameter, overwritten by what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale.copy_(0.2 + x.abs().mean())
        return x * self.scale


class StateOfFunction(nn.Module):
    """A function of autograd whose backward pass reads what earlier batches left."""

    def __init__(self) -> None:
        super().__init__()
        kept: list[Tensor] = []

        class Keeping(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                kept.append(x.detach().mean())
                return x.clone()

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return gradient - sum(kept) / 9

        self.function = Keeping

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


class Scripted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3 / (x.abs().max() + 1e-6)


def scripted() -> nn.Module:
    """Taken from Python's hands, so that its lines are nobody's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants to drop scripts; some models still have them
        return torch.jit.script(Scripted())


def own_operation() -> nn.Module:
    """An operation that torch knows only by its name, and that says of itself that it works value by value."""
    if not hasattr(torch.ops.zoo_of_tests, "centred"):
        library = torch.library.Library("zoo_of_tests", "FRAGMENT")
        library.define("centred(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
        library.impl("centred", lambda x: x - x.mean(0), "CompositeExplicitAutograd")
        library.impl("centred", lambda x: CentredGradient.apply(x), "Autograd")
        KEPT.append(library)
    return Apply(lambda x: torch.ops.zoo_of_tests.centred(x))


KEPT: list[Any] = []
"""Libraries, which torch forgets with the last reference."""


class CentredGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.zoo_of_tests.centred(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean(0)


@dataclass(frozen=True)
class Way:
    """A way in which rows meet, and where it does."""

    make: Callable[[int], nn.Module]
    """For values whose last dimension has this size."""
    loud: bool = False
    """Only values of the loud subject show it."""
    state: bool = False
    """By what one call leaves for the next."""


STATES = {
    "running maximum": RunningMaximum,
    "running maximum in a tensor": RunningMaximumTensor,
    "buffer": RunningMean,
    "slots": Slots,
    "growing list": Growing,
    "memory bank": MemoryBank,
    "last batch": LastBatch,
    "closure": GlobalList,
    "weight changed": WeightChanged,
}

WAYS: dict[str, Way] = {
    **{name: Way(lambda _, function=function: Apply(function)) for name, function in VALUES.items()},
    **{name: Way(lambda _, function=function: Apply(function), loud=True) for name, function in LOUD_VALUES.items()},
    **{name: Way(lambda _, module=module: module(), state=True) for name, module in STATES.items()},
    "scripted": Way(lambda _: scripted()),
    "own operation": Way(lambda _: own_operation()),
    "batch norm": Way(BatchNorm),
    "batch norm without statistics": Way(lambda width: BatchNorm(width, track_running_stats=False)),
    "batch norm without weights": Way(lambda width: BatchNorm(width, affine=False)),
    **{name: Way(lambda _, function=function: Apply(function)) for name, function in SUBTLE_VALUES.items()},
}
