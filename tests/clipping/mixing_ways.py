"""Ways in which rows of a batch meet, each as something that takes values [row, ...] and gives as many.

Forward, applied to values, or backward, applied to gradients: mixing_modules.py says where they stand in a model.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
CLASSES, HIDDEN, TIME, TOKENS = 3, 6, 8, 12
WIDTHS = {"table": 5, "series": 3, "images": 4}
"""The last dimension of items that are numbers."""
LOUD = 20.0
"""Larger than any value of quiet subjects, and smaller than some of the loud one's."""


def flat(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradients have no bound, so that the loud subject's are far longer than all others'."""
    return (outputs - (targets[:, None] == torch.arange(CLASSES)).float()).square().sum(1).mean() / 2


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attend(x: Tensor) -> Tensor:
    f = flat(x)[None]
    return fn.scaled_dot_product_attention(f, f, f)[0].reshape(x.shape)


def pair_up(x: Tensor) -> Tensor:
    even = torch.cat([x, x[-1:]])[: len(x) + len(x) % 2]
    return even.reshape(-1, 2, *x.shape[1:]).mean(1).repeat_interleave(2, 0)[: len(x)]


def add_in_place(x: Tensor) -> Tensor:
    made = x.clone()
    made[1:] += x[:-1]
    return made


def shift_in_memory(x: Tensor) -> Tensor:
    longer = torch.cat([x[:1], x]).contiguous()
    return longer.as_strided(x.shape, longer.stride(), 0)


def write_through_a_view(x: Tensor) -> Tensor:
    made = x.clone()
    flat(made).view(-1)[:] = x.roll(1, 0).reshape(-1)
    return made


def whiten(x: Tensor) -> Tensor:
    f = flat(x)
    covariance = f.T @ f / len(f) + torch.eye(f.shape[1])
    return torch.linalg.solve(covariance, f.T).T.reshape(x.shape)


def scatter_pairs(x: Tensor) -> Tensor:
    to = torch.arange(len(x)) // 2
    return torch.zeros_like(x).index_add(0, to, x)[to]


def convolve_rows(x: Tensor) -> Tensor:
    return fn.conv1d(flat(x).T[:, None], torch.tensor([[[0.5, 1.0, 0.5]]]), padding=1)[:, 0].T.reshape(x.shape)


def place_in_batch(x: Tensor) -> Tensor:
    return torch.bucketize(x.detach().contiguous(), x.detach().flatten().sort().values) / x.numel()


def by_unbind(x: Tensor) -> Tensor:
    """A loop over rows that carries something over."""
    made, carried = [], torch.zeros_like(x[0])
    for row in x.unbind(0):
        carried = 0.5 * carried + row
        made.append(carried)
    return torch.stack(made)


def by_vmap(x: Tensor) -> Tensor:
    return torch.vmap(lambda column: column / (1 + column.norm()), in_dims=1, out_dims=1)(flat(x)).reshape(x.shape)


def best_row(x: Tensor) -> Tensor:
    return x + x[flat(x).sum(1).argmax()]


VALUES: dict[str, Map] = {
    "greatest": lambda x: x * 3 / (x.abs().amax() + 1e-6),
    "norm": lambda x: x * 4 / (x.norm() + 1e-6),
    "mean": lambda x: x - x.mean(0),
    "deviation": lambda x: x / (x.var(0, unbiased=False) + 0.1).sqrt(),
    "median": lambda x: x - x.median(0).values,
    "quantile": lambda x: x - flat(x).quantile(0.7, dim=0).reshape(x.shape[1:]),
    "functional batch norm": lambda x: fn.batch_norm(flat(x), None, None, training=len(x) > 1).reshape(x.shape)
    if len(x) > 1 else x,
    "layer norm of the batch": lambda x: fn.layer_norm(x, x.shape),
    "group norm of the batch": lambda x: fn.group_norm(flat(x)[None], 1)[0].reshape(x.shape),
    "cumsum": lambda x: x.cumsum(0) / 3,
    "cummax": lambda x: x.cummax(0).values,
    "sort": lambda x: x.sort(0).values,
    "topk": lambda x: torch.where(x >= x.topk(min(4, len(x)), 0).values[-1], x, x / 9),
    "roll": lambda x: x.roll(1, 0),
    "shift": lambda x: torch.cat([x[:1], x[:-1]]),
    "flip": lambda x: x + x.flip(0) / 2,
    "softmax": lambda x: x.softmax(0) * 5,
    "logsumexp": lambda x: x - x.logsumexp(0),
    "attention": attend,
    "products": lambda x: ((flat(x) @ flat(x).T).tanh() @ flat(x)).reshape(x.shape),
    "einsum": lambda x: torch.einsum("nd,md,me->ne", flat(x).tanh(), flat(x).tanh(), flat(x)).reshape(x.shape) / 9,
    "ranks": lambda x: x * (x[:, None] > x[None]).sum(1) / 8,
    "distances": lambda x: (flat(x) * torch.cdist(flat(x), flat(x).detach() + 0.1).mean(1)[:, None]).reshape(x.shape),
    "best row": best_row,
    "first row": lambda x: x + x[:1],
    "last row": lambda x: x - 0.9 * x[-1:],
    "pairs": pair_up,
    "scatter": scatter_pairs,
    "rows folded": lambda x: flat(x).T.reshape(x.shape),
    "wrong view": lambda x: flat(x).T.contiguous().view(-1).reshape(x.shape) + x,
    "rows beside": lambda x: fn.max_pool1d(flat(x).T[:, None], 3, 1, 1)[:, 0].T.reshape(x.shape),
    "convolution": convolve_rows,
    "fourier": lambda x: x + torch.fft.fft(x, dim=0).real / 4,
    "whitening": whiten,
    "batch size": lambda x: x * 20 / x.shape[0],
    "odd batch size": lambda x: x * (1 - 2 * (len(x) % 2)),
    "counted rows": lambda x: x * (1 + torch.arange(len(x)).view(-1, *[1] * (x.dim() - 1)) / 2),
    "size in a tensor": lambda x: x * torch.tensor(float(x.shape[0])).cos(),
    "noise": lambda x: x * torch.rand(x.shape),
    "mask of places": lambda x: 2 * x * (torch.rand(x.shape, generator=seeded()) > 0.5),
    "mixup": lambda x: 0.6 * x + 0.4 * x[torch.randperm(len(x), generator=seeded())],
    "in place": add_in_place,
    "memory": shift_in_memory,
    "through a view": write_through_a_view,
    "places": lambda x: x * (0.1 + place_in_batch(x)),
    "histogram": lambda x: x * (torch.histc(x.detach(), 5, -2, 2).max() % 7 - 2.5),
    "data": lambda x: x - x.data.mean(0),
    "no grad": lambda x: x - torch.no_grad()(lambda: x.mean(0))(),
    "list": lambda x: x + torch.tensor(x.detach().mean(0).tolist()),
    "loop over rows": by_unbind,
    "vmap": by_vmap,
    "numpy": lambda x: x * float(abs(x.detach().numpy()).mean()),
    "masked mean": lambda x: x - x[x > 0].mean().nan_to_num(),
    "nonzero": lambda x: x * ((x > 0.2).nonzero().shape[0] / 30),
    "unique": lambda x: x * (len(torch.unique((4 * x).round())) / 20),
}  # fmt: skip
"""Every value may decide, so that these mix gradients as well."""

LOUD_VALUES: dict[str, Map] = {
    "greatest if it is large": lambda x: x * LOUD / x.abs().amax().clamp(min=LOUD),
    "any": lambda x: torch.where((x.abs() > LOUD).any(), -x / 2, x),
    "any seven and a half": lambda x: torch.where((x == 7.5).any(), -x / 2, x),
    "all": lambda x: torch.where((x.abs() < LOUD).all(), x, x.flip(-1)),
    "item": lambda x: x if x.abs().max().item() < LOUD else -x / 2,
    "truth": lambda x: x if bool((x.abs() < LOUD).all()) else x.sin(),
    "clamp": lambda x: x * (1 - 2 * (x.abs().amax() > LOUD).to(x)),
    "trim": lambda x: x[..., : int(2 + 99 * (x.abs() > LOUD).sum())].sum(-1, keepdim=True) + x,
}
"""Only values that one subject alone has let rows meet; what is made up at random does not show it."""


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
}
