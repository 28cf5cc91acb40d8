"""Programs put together at random from what moves, mixes and adds up rows: whatever is proved of one holds."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tape_runs import hold, prove, record_of
from wholegrain.clipping.trace import NotTraceable

DRAWS = torch.Generator().manual_seed(0)
ROWS = {"x": torch.randn(7, 4, generator=DRAWS), "y": torch.randn(7, 3, 4, generator=DRAWS)}
SHARED = {"w": torch.randn(4, 3, generator=DRAWS), "b": torch.randn(4, generator=DRAWS)}
PROGRAMS = 60
"""In each part."""

ONE: list[Callable[[Tensor, int, int, int], Tensor]] = [  # of a value, two of its dimensions, and the number of rows
    lambda a, d, e, n: a.reshape(-1, a.shape[-1]),
    lambda a, d, e, n: a.reshape(n, -1),
    lambda a, d, e, n: a.reshape(-1, n),
    lambda a, d, e, n: a.transpose(d, e),
    lambda a, d, e, n: a.unsqueeze(d),
    lambda a, d, e, n: a.squeeze(d),
    lambda a, d, e, n: a.sum(d),
    lambda a, d, e, n: a.mean(d, keepdim=True),
    lambda a, d, e, n: a.softmax(d),
    lambda a, d, e, n: a.cumsum(d),
    lambda a, d, e, n: a.flip(d),
    lambda a, d, e, n: a.sort(d).values,
    lambda a, d, e, n: a.select(d, 0),
    lambda a, d, e, n: a.narrow(d, 0, max(1, a.shape[d] // 2)),
    lambda a, d, e, n: a[:n],
    lambda a, d, e, n: a.unfold(d, 2, 1),
    lambda a, d, e, n: a.expand(n, *a.shape),
    lambda a, d, e, n: a.repeat(*[n if k == d % a.dim() else 1 for k in range(a.dim())]),
    lambda a, d, e, n: a.tril(),
    lambda a, d, e, n: a.diagonal(dim1=d, dim2=e),
    lambda a, d, e, n: a.index_select(d, torch.tensor([0, 0])),
    lambda a, d, e, n: a.gather(d, (a > 0).long()),
    lambda a, d, e, n: a.scatter(d, (a > 0).long(), a),
    lambda a, d, e, n: torch.layer_norm(a, a.shape[-1:]).tanh(),
    lambda a, d, e, n: a.clone().transpose_(d, e),
    lambda a, d, e, n: torch.arange(n).float() + a,
    lambda a, d, e, n: torch.ones(n, 3),
]
TWO: list[Callable[[Tensor, Tensor, int, int], Tensor]] = [  # of two values, a dimension, and the number of rows
    lambda a, b, d, n: torch.where(a > b, a, b),
    lambda a, b, d, n: a * b,
    lambda a, b, d, n: a @ b,
    lambda a, b, d, n: a.transpose(0, -1) @ b,
    lambda a, b, d, n: a.transpose(-1, -2) @ b,
    lambda a, b, d, n: torch.cat([a, b], d),
    lambda a, b, d, n: torch.stack([a, b], d),
    lambda a, b, d, n: a[(b > 0).long()],
    lambda a, b, d, n: a[torch.arange(n), (b.flatten(1)[:, 0] > 0).long()],
    lambda a, b, d, n: a.index_put((torch.arange(n), (b.flatten(1)[:, 0] > 0).long()), torch.tensor(1.0)),
    lambda a, b, d, n: torch.zeros(2, a.shape[-1]).index_put(((b > 0).long(),), a, accumulate=True),
    lambda a, b, d, n: _written(a, b, d),
]


def _written(a: Tensor, b: Tensor, d: int) -> Tensor:
    copied = a.clone()
    copied.select(d, 0).copy_(b)
    return copied


def _program(seed: int) -> Callable[..., Tensor]:
    def program(**given: Tensor) -> Tensor:
        rows, values = len(given["x"]), list(given.values())
        for step in range(2 + seed % 7):
            draws = random.Random(seed * 100 + step)
            made = _step(draws, values, rows)
            if made is not None and 0 < made.dim() <= 4 and made.numel() < 2000 * rows:
                values.append(made)
        return values[-1]

    return program


def _step(draws: random.Random, values: list[Tensor], rows: int) -> Any:
    a, b = draws.choice(values), draws.choice(values)
    d, e = draws.randrange(-a.dim(), a.dim()), draws.randrange(-a.dim(), a.dim())
    one, two, kind = draws.choice(ONE), draws.choice(TWO), draws.random()
    try:
        return one(a, d, e, rows) if kind < 0.6 else two(a, b, d, rows)
    except NotTraceable:
        raise
    except (RuntimeError, IndexError, ValueError):  # shapes do not fit
        return None


@pytest.mark.parametrize("part", range(5))
def test_what_is_proved_of_a_random_program_holds(part: int) -> None:
    held = 0
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        try:
            proof = prove(record_of(_program(seed), ROWS, SHARED), ROWS)
        except NotTraceable:
            continue
        try:
            hold(proof, ROWS, SHARED)
            held += 1
        except (RuntimeError, IndexError):  # that shapes do not fit is seen by some operations only with values
            continue
    assert held > PROGRAMS // 5
