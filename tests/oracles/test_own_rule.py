"""A rule of the caller's own is used like any other, and is not trusted more than any other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from agreement import World
from wholegrain.clipping import reference
from wholegrain.clipping.backend_selection import SlowGradients
from wholegrain.clipping.bookkeeping import Lengths, Rows
from wholegrain.clipping.chain_backend import Chain
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.layers import LAYERS, register_rule
from wholegrain.clipping.layers.base import Gradients, ModuleSlots, Needed, Outward, Space
from wholegrain.clipping.parameters import flatten
from wholegrain.errors import ModelError


class Shift(nn.Module):
    """x + b."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b


class ShiftRule:
    """The rule for `Shift`; `factor` is 1 unless it is to be wrong."""

    factor = 1.0

    def __init__(self, module: Shift, owned: ModuleSlots) -> None:
        self._module, self._slot = module, owned.slot("b")

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs[0] + self._module.b.data, None

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        (g,) = outward
        assert g is not None
        shares = (Rows([(self._slot, space.units.pool(g * self.factor))]),) if self._slot else ()
        return (g,), shares


class WrongRule(ShiftRule):
    """Forgets half of the gradient."""

    factor = 0.5


def compared(rule: type[ShiftRule], monkeypatch: pytest.MonkeyPatch) -> BookKeeping:
    monkeypatch.setitem(LAYERS, Shift, None)  # undone, whatever is registered
    register_rule(Shift, rule)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), Shift(4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = torch.rand(5, 3).double(), torch.arange(5) % 2, torch.arange(5) // 2
    engine, clip = BookKeeping(model, cross_entropy), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.1)
    found = engine(flatten(model), *batch, clip).total
    torch.testing.assert_close(found, reference.clipped_sum(model, cross_entropy, flatten(model), *batch, clip).total)
    return engine


def test_a_rule_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(compared(ShiftRule, monkeypatch)._chosen.program, Chain)


class LongRule(ShiftRule):
    """Gives the right sums and norms that are a tenth too long."""

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        given, shares = super().backward(space, saved, outward, needed)
        return given, tuple(Long(share._held) for share in shares)


class Long(Rows):
    """Rows whose norms are wrong."""

    def lengths(self, units: Units) -> Lengths:
        found = super().lengths(units)
        return found._replace(squared=found.squared * 1.21)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (WrongRule, r"the rule WrongRule for 1 \(Shift\) gives gradients of '1\.b' that are (\d+\.\d)% off"),
        (LongRule, r"the rule LongRule for 1 \(Shift\) gives norms of '1\.b' that are (10\.0)% off"),
    ],
)
def test_a_wrong_rule_is_found_out_and_named(rule: type[ShiftRule], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(SlowGradients, match=says):
        engine = compared(rule, monkeypatch)
    assert not isinstance(engine._chosen.program, Chain)


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(ModelError, match=r"subclass of torch\.nn\.Module"):
        register_rule(Shift(2), ShiftRule)
    with pytest.raises(ModelError, match="for Shift is not callable"):
        register_rule(Shift, 3)


class Unsure(Rows):
    """Rows that vouch for none of their norms."""

    def lengths(self, units: Units) -> Lengths:
        found = super().lengths(units)
        return found._replace(squared=found.squared * torch.nan)


class UnsureRule(ShiftRule):
    """Leaves every norm to the reference."""

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        given, shares = super().backward(space, saved, outward, needed)
        return given, tuple(Unsure(share._held) for share in shares)


WORLD = World(seed=0, items=7, subjects=3, dtype=torch.float64, memory=MEMORY, norm=None)


@pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), "there is no rule for"),
        (lambda: nn.Sequential(nn.Linear(4, 4), Shift(4)), "every clipped unit was left to the reference"),
    ],
)
def test_a_comparison_fails_where_the_rule_was_not_used(
    make: Callable[[], nn.Module], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LAYERS, Shift, ShiftRule)
    if "PReLU" not in str(make()):
        WORLD.compare(make, (4,))
        monkeypatch.setitem(LAYERS, Shift, UnsureRule)
    with pytest.raises(AssertionError, match=says):
        WORLD.compare(make, (4,))
