"""A model that is not proved: nothing that a unit leaves behind reaches another, and what could is refused."""

import random
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.backend_selection import SlowGradients
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.devices import USUAL
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.errors import ModelError

CLIP = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
SEEN: list[Tensor] = []
SHARED = torch.zeros(1)
COUNT = 0
LIMITS = (1.0, 2.0)


def scaled(value: float) -> float:
    return value * LIMITS[1]


class Base(nn.Module):
    """A linear layer of inputs that are multiplied by something."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.calls, self.seen, self.named = 0, [1.0], {"last": 1.0}
        self.register_buffer("kept", torch.ones(1))
        self.kept: Tensor

    def factor(self, x: Tensor) -> float | Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.factor(x))


class Attribute(Base):
    def factor(self, x: Tensor) -> float:
        self.calls += int(x.abs().sum())
        return 1.0 + self.calls


class Listed(Base):
    def factor(self, x: Tensor) -> float:
        self.seen.append(float(x.sum()))
        return sum(self.seen)


class Named(Base):
    def factor(self, x: Tensor) -> float:
        self.named["last"] += float(x.sum())
        return self.named["last"]


class Buffered(Base):
    def factor(self, x: Tensor) -> Tensor:
        self.kept.add_(x.sum().detach())
        return self.kept.clone()


class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)

    def factor(self, x: Tensor) -> Tensor:
        self.fixed.data += x.sum().detach()
        return self.fixed.detach().clone()


class Trained(Base):
    def factor(self, x: Tensor) -> Tensor:
        self.inner.bias.data += x.sum().detach()
        return self.inner.bias.detach().sum()


class Helper:
    def __init__(self) -> None:
        self.sums = [1.0]

    def note(self, x: Tensor) -> float:
        self.sums.append(float(x.sum()))
        return sum(self.sums)


class Helped(Base):
    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def factor(self, x: Tensor) -> float:
        return self.helper.note(x)


class Random(Base):
    """Draws by torch, numpy and Python as many numbers as its items say."""

    def factor(self, x: Tensor) -> float:
        return sum(float(torch.rand(1)) + np.random.random() + random.random() for _ in range(1 + int(x.abs().sum())))


def total(engine: UnitPasses | BookKeeping, left: list[int]) -> Tensor:
    inputs = torch.arange(6.0)[:, None] * torch.ones(6, 4)
    groups = torch.arange(len(left))
    return engine(flatten(engine.model), inputs[left], torch.arange(6)[left] % 3, groups, CLIP).total.double()


@pytest.mark.parametrize("make", [Attribute, Listed, Named, Buffered, Frozen, Trained, Helped, Random])
def test_what_a_unit_leaves_behind_reaches_nobody(make: Callable[[], Base]) -> None:
    """Each unit gives what it gives alone, whoever was computed before."""
    torch.manual_seed(1)
    model = make()
    engine = UnitPasses(model, cross_entropy, USUAL)
    alone = [total(engine, [unit]) for unit in range(6)]
    for left in ([0, 1, 2, 3, 4, 5], [5, 3, 1], [1, 2, 3, 4, 5]):
        torch.testing.assert_close(total(engine, left), sum(alone[unit] for unit in left), rtol=0, atol=1e-12)
    assert (model.calls, model.seen, model.named) == (0, [1.0], {"last": 1.0})
    assert model.kept == 1


def test_random_numbers_of_the_caller_go_on_as_if_nothing_was_drawn() -> None:
    engine = UnitPasses(Random(), cross_entropy, USUAL)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = torch.rand(1)
    total(engine, [0, 3])
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


class GlobalList(Base):
    def factor(self, x: Tensor) -> float:
        SEEN.append(x)
        return float(len(SEEN))


class GlobalTensor(Base):
    def factor(self, x: Tensor) -> Tensor:
        return SHARED + x.sum()


class GlobalVariable(Base):
    def factor(self, x: Tensor) -> float:
        global COUNT
        COUNT += 1
        return 1.0


def _note(x: Tensor) -> float:
    SEEN.append(x)
    return 1.0


class Called(Base):
    """By way of another function."""

    def factor(self, x: Tensor) -> float:
        return _note(x)


class OfTheClass(Base):
    memory: list[float] = []  # noqa: RUF012

    def factor(self, x: Tensor) -> float:
        self.memory.append(float(x.sum()))
        return sum(self.memory)


class Default(Base):
    def factor(self, x: Tensor, memory: list[float] = []) -> float:  # noqa: B006
        memory.append(float(x.sum()))
        return sum(memory)


def closed_over() -> Base:
    memory = [1.0]

    class Closed(Base):
        def factor(self, x: Tensor) -> float:
            memory.append(float(x.sum()))
            return sum(memory)

    return Closed()


def nonlocal_variable() -> Base:
    count = 0

    class Counting(Base):
        def factor(self, x: Tensor) -> float:
            nonlocal count
            count += int(x.sum())
            return 1.0 + count

    return Counting()


@cache
def remembered(value: float) -> float:
    return value * len(SEEN)


class Cached(Base):
    def factor(self, x: Tensor) -> float:
        return remembered(float(x.sum()))


class Kept:
    sums = [1.0]  # noqa: RUF012


class OtherClass(Base):
    def factor(self, x: Tensor) -> float:
        Kept.sums.append(float(x.sum()))
        return sum(Kept.sums)


class Outside:
    def note(self, x: Tensor) -> float:
        SEEN.append(x)
        return 1.0


class HelpedOutside(Base):
    def __init__(self) -> None:
        super().__init__()
        self.helpers = {"first": [Outside()]}

    def factor(self, x: Tensor) -> float:
        return self.helpers["first"][0].note(x)


class ImportedInside(Base):
    def factor(self, x: Tensor) -> float:
        import own_module

        return own_module.note(float(x.sum()))


def hooked() -> Base:
    model = Attribute()
    model.inner.register_forward_hook(lambda module, given, made: SEEN.append(made))
    return model


REFUSED: dict[str, tuple[Callable[[], Base], str]] = {
    "global list": (GlobalList, "'SEEN'"),
    "global tensor": (GlobalTensor, "'SHARED'"),
    "global variable": (GlobalVariable, "the variable 'COUNT'"),
    "function": (Called, "'SEEN'"),
    "class": (OfTheClass, "the attribute 'memory' of its class OfTheClass"),
    "default": (Default, "a default of factor"),
    "closure": (closed_over, "'memory'"),
    "nonlocal": (nonlocal_variable, "the variable 'count'"),
    "hook": (hooked, "'SEEN'"),
    "cache": (Cached, "'remembered'"),
    "other class": (OtherClass, "the attribute 'sums' of its class Kept"),
    "object that it holds": (HelpedOutside, "'SEEN'"),
    "module": (ImportedInside, "'NOTED'"),
}


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's with a list, and a function that appends to it."""
    code = "NOTED = []\ndef note(value):\n    NOTED.append(value)\n    return sum(NOTED)\n"
    (tmp_path / "own_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    import_module("own_module")


@pytest.mark.parametrize("name", REFUSED)
def test_what_lies_outside_of_the_model_is_refused_in_one_sentence(name: str) -> None:
    make, what = REFUSED[name]
    with pytest.raises(ModelError, match="outside of the model") as refused:
        UnitPasses(make(), cross_entropy, USUAL)
    said = str(refused.value)
    assert what in said
    assert said.count("\n") == 0
    assert said.endswith(".")


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = Attribute()
    model.handle = (each for each in ())  # type: ignore[assignment]
    with pytest.raises((ModelError, TypeError), match="cannot"):
        UnitPasses(model, cross_entropy, USUAL)


def test_the_engine_takes_units_apart_where_nothing_is_proved() -> None:
    engine = BookKeeping(Listed(), cross_entropy)
    with pytest.warns(SlowGradients, match=r"one unit at a time.*test_isolation\.py"):
        whole = total(engine, [0, 1, 2])
    assert engine.reason is not None
    torch.testing.assert_close(whole, sum(total(engine, [unit]) for unit in range(3)), rtol=0, atol=1e-12)


class Remembering:
    """A loss that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return cross_entropy(outputs, targets) * self.calls


def noting(outputs: Tensor, targets: Tensor) -> Tensor:
    SEEN.append(outputs)
    return cross_entropy(outputs, targets)


def test_what_a_loss_keeps_reaches_nobody() -> None:
    torch.manual_seed(1)
    loss, clip = Remembering(), Clip(ClipPer.SUBJECT, Pool.MEAN, 1e6)
    engine, inputs, targets = UnitPasses(nn.Linear(4, 3), loss, USUAL), torch.rand(3, 4), torch.arange(3)
    vector = flatten(engine.model)
    whole = engine(vector, inputs, targets, torch.arange(3), clip).total
    alone = [engine(vector, inputs[k : k + 1], targets[k : k + 1], torch.zeros(1).long(), clip).total for k in range(3)]
    torch.testing.assert_close(whole, sum(alone), rtol=0, atol=1e-12)
    assert loss.calls == 0


@pytest.mark.parametrize("loss", [noting, partial(noting), lambda outputs, targets: noting(outputs, targets)])
def test_a_loss_that_reaches_a_list_is_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(ModelError, match="'the loss' reaches 'SEEN' outside of the model"):
        UnitPasses(nn.Linear(4, 3), loss, USUAL)


def test_what_nobody_can_change_is_no_state() -> None:
    class Plain(Base):
        def factor(self, x: Tensor) -> float:
            return float(x.sum() > LIMITS[0]) * np.pi + scaled(2.0)

    assert total(UnitPasses(Plain(), cross_entropy, USUAL), [0, 1]).any()
