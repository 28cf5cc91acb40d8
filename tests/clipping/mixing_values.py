"""Functions of values [row, ...] in which rows meet; and what all files on mixing share."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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


def through_an_alias(x: Tensor) -> Tensor:
    """A view that was taken before what it shows was overwritten."""
    made = x.clone()
    first = made[:1]
    made.copy_(x.flip(0))
    return x + first


def overwrite_places(x: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    made[torch.arange(len(x)) // 2] = x
    return made + x.roll(1, 0) / 9


def sum_pairs_of_halves(x: Tensor) -> Tensor:
    half = (len(x) + 1) // 2
    one, other = x[:half], torch.cat([x, x[:1]])[half : 2 * half]
    return torch.cat([one + other, one - other])[: len(x)]


class Centring(TorchDispatchMode):
    """Changes what torch's own operations compute."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made - made.mean(0) if func is torch.ops.aten.tanh.default else made


def under_a_mode(x: Tensor) -> Tensor:
    with Centring():
        return x.tanh()


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

SUBTLE_VALUES: dict[str, Map] = {
    "numbers of elements": lambda x: x * (1 - 2 * (x.numel() // x[0].numel() % 2)),
    "stride": lambda x: x * (1 - 2 * (flat(x).T.contiguous().stride(0) % 2)),
    "bytes": lambda x: x * (1 - 2 * (x.clone().untyped_storage().nbytes() // x[0].numel() // 4 % 2)),
    "alias": through_an_alias,
    "put": overwrite_places,
    "halves": sum_pairs_of_halves,
    "padded rows": lambda x: x + fn.pad(flat(x), (0, 0, 1, 0))[:-1].reshape(x.shape),
    "windows": lambda x: torch.cat([x, x[-1:]]).unfold(0, 2, 1).amax(-1),
    "repeated": lambda x: x.repeat_interleave(2, 0)[: len(x)],
    "differences": lambda x: x.diff(dim=0, prepend=x[:1] / 2),
    "gather": lambda x: x + x.gather(0, x.detach().argsort(0)),
    "sparse": lambda x: x * (0.2 + flat(x).detach().to_sparse().coalesce().values().abs().mean()),
    "dispatch mode": under_a_mode,
}  # fmt: skip
"""By memory, by sizes, and by ways around torch's usual operations."""
