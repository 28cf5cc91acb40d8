"""Which operations compute a value in the same way wherever it stands among others."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from wholegrain.clipping.operation_watch import MOVES, ROUNDED, ROWS, RemainderWatch

aten = torch.ops.aten
LONGEST = 70  # beyond two of the widest vectors of 32 values

TWO = {"add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"}
OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "clamp": lambda x, _: aten.clamp(x, -1.5, 2.0),
    "clamp_min": lambda x, _: aten.clamp_min(x, 0.25),
    "rsqrt": lambda x, _: aten.rsqrt(x.abs()),
    "sqrt": lambda x, _: aten.sqrt(x.abs()),
    "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0),
}


def call_named(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The operation, of one or two tensors."""
    operation = getattr(aten, name)
    return OTHERS.get(name) or (operation if name in TWO else lambda x, _: operation(x))


def values(kind: torch.dtype, seed: int) -> Tensor:
    """Of every size that numbers have, and as many around 1."""
    draws = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-140, 120, (4096,), generator=draws).double()
    exponents[::2] = torch.randint(-4, 4, (2048,), generator=draws).double()
    return (torch.randn(4096, generator=draws).double() * 2**exponents).to(kind)


def windows() -> Iterator[tuple[int, int]]:
    """Where a short row begins and ends in a long one."""
    for count in range(1, LONGEST):
        for start in (0, 1, 3, 8, 1000 + count):
            yield start, start + count


def differs(name: str, kind: torch.dtype) -> bool:
    """Whether some value comes out otherwise in a short row than in a long one."""
    compute, x, y = call_named(name), values(kind, 1), values(kind, 2)
    whole = compute(x, y)
    short = ((compute(x[a:b], y[a:b]), whole[a:b]) for a, b in windows())
    return not all(torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in short)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(ROUNDED))
def test_a_rounded_operation_gives_the_same_bits_at_every_place(name: str, kind: torch.dtype) -> None:
    assert not differs(name, kind)


def test_a_rest_that_is_computed_otherwise_is_seen() -> None:
    """On some machine none of these may have a rest; then the comparison above cannot be shown to see one."""
    found = [name for name in ("sigmoid", "exp", "tanh", "log1p", "erf") if differs(name, torch.float32)]
    if not found:
        pytest.skip("this machine computes a rest as it computes all values")
    assert not set(found) & (ROUNDED | MOVES | ROWS)


def test_every_name_is_an_operation_and_stands_in_one_list() -> None:
    assert not MOVES & ROUNDED
    assert not MOVES & ROWS
    assert not ROUNDED & ROWS
    names = MOVES | ROUNDED | ROWS
    assert [name for name in names if not (hasattr(aten, name) or hasattr(aten, f"_{name}"))] == []


@pytest.mark.parametrize(
    ("compute", "multiple"),
    [
        (lambda x: x + 1, 1),
        (lambda x: x.sigmoid(), 32),
        (lambda x: x.expand(64, 4).sigmoid(), 8),
        (lambda x: x.pow(2), 1),
        (lambda x: x.pow(3), 32),
        (lambda x: torch.add(x, x, alpha=0.25), 1),
        (lambda x: torch.add(x, x, alpha=0.3), 32),
    ],
)
def test_whole_multiples_are_asked_for_where_an_operation_may_leave_a_rest(
    compute: Callable[[Tensor], Tensor], multiple: int
) -> None:
    rows = torch.rand(64, 1)
    with RemainderWatch(64) as watch:
        compute(rows)
    assert watch.multiple == multiple
