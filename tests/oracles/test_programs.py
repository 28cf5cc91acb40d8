"""Which models are proved, that slowness is told with its reason, and that both ways agree with the reference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from agreement import Around, Batch, assert_agrees, program_of, slow
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.traced import TracedGradients


class Scaled(nn.Module):
    """A module of the user's own, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Positions(nn.Module):
    """A root with a positional parameter and layers with rules."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(4))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x + self.positions).tanh())


class Pairs(nn.Module):
    """Two inputs to one module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pair = nn.Linear(4, 4), nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.pair(self.first(x).tanh(), x)


class PastItsLayer(nn.Module):
    """Reads a layer's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.a(x).tanh(), self.b.weight, self.b.bias)


class Branching(nn.Module):
    """Asks for a value, which a recording does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(row[None]) if row.sum().item() > 0 else self.b(row[None]) for row in x])


class Flattened(nn.Module):
    """Items and positions in one dimension: item by item, or position by position."""

    def __init__(self, position_major: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self._turn = position_major

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1) if self._turn else x
        h = self.last(self.first(rows.reshape(-1, 4)).tanh()).view(*rows.shape[:2], 3)
        return h.mean(0 if self._turn else 1)


class TimeMajor(nn.Module):
    """Times before items, throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Linear(4, 4), nn.LayerNorm(4), nn.GRU(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.norm(self.first(x.transpose(0, 1))))[0][-1]


def compared(
    model: nn.Module, shape: tuple[int, ...] = (4,), items: int = 7, loss: Callable[..., Tensor] = cross_entropy
) -> tuple[BookKeeping, list[str]]:
    """The engine, after it has agreed on a batch, and its notices."""
    model = model.double()
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(items, *shape, generator=generator, dtype=torch.float64)
    batch = Batch(inputs, torch.arange(items) % 3, torch.randint(3, (items,), generator=generator))
    engine = BookKeeping(model, loss)
    notices = slow(lambda: assert_agrees(engine, model, loss, flatten(model), batch))
    return engine, notices


@pytest.fixture(autouse=True)
def same_parameters_each_time() -> None:
    torch.manual_seed(5)


def test_a_sequence_is_a_chain() -> None:
    engine, notices = compared(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3))))
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


def test_hooks_are_kept_by_following_the_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, inputs, output: output.tanh())
    engine, notices = compared(model)
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


PROVED: dict[str, Callable[[], nn.Module]] = {
    "prelu": lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 3)),
    "two of them": lambda: nn.Sequential(nn.PReLU(), nn.Sequential(nn.PReLU(), nn.Linear(4, 3))),
    "bilinear": Pairs,
    "scaled": lambda: nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 3)),
    "positions": Positions,
    "past its layer": PastItsLayer,
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)
    ),
}


@pytest.mark.parametrize("name", PROVED)
def test_parameters_are_proved_whatever_reads_them(name: str) -> None:
    engine, notices = compared(PROVED[name]())
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


def test_what_asks_for_values_goes_one_by_one_and_is_told_of_once() -> None:
    model = Branching()
    engine, (notice,) = compared(model)
    assert engine.reason is not None
    assert engine.reason in notice
    assert "one unit at a time" in notice
    assert "test_programs.py" in notice
    more = Batch(torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 3, torch.arange(5))
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), more)) == []


@pytest.mark.parametrize("times", [1, 2, 3, 6])
@pytest.mark.parametrize("items", [2, 3, 6, 7])
def test_items_before_positions_in_one_dimension_are_proved(times: int, items: int) -> None:
    engine, notices = compared(Flattened(position_major=False), (times, 4), items)
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


@pytest.mark.parametrize("times", [2, 3, 6])
@pytest.mark.parametrize("items", [2, 3, 6, 7])
def test_positions_before_items_in_one_dimension_are_proved(times: int, items: int) -> None:
    engine, notices = compared(Flattened(position_major=True), (times, 4), items)
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


@pytest.mark.parametrize("times", [2, 3, 7])
@pytest.mark.parametrize("items", [1, 3, 7])
def test_times_before_items_are_proved(times: int, items: int) -> None:
    engine, notices = compared(TimeMajor(), (times, 4), items)
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


def test_subclasses_of_layers_are_not_taken_for_them() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    engine, notices = compared(nn.Sequential(nn.Linear(4, 4), Doubled(4, 3)))
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("padding", ["reflect", "same on one side"])
def test_convolutions_that_are_padded_otherwise_are_proved(padding: str) -> None:
    options = {"padding": 1, "padding_mode": "reflect"} if padding == "reflect" else {"padding": "same"}
    model = Around(nn.Sequential(nn.Conv1d(2, 3, 2, **options), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)))
    model(torch.zeros(1, 2, 4))
    engine, notices = compared(model, (2, 4))
    assert isinstance(program_of(engine), TracedGradients)
    assert notices == []


def test_probabilities_and_sequences_as_targets() -> None:
    model = nn.Linear(4, 3).double()
    for targets in (torch.rand(7, 3, dtype=torch.float64).softmax(1), torch.arange(7) % 3):
        batch = Batch(torch.randn(7, 4, dtype=torch.float64), targets, torch.arange(7) % 2)
        assert_agrees(BookKeeping(model, cross_entropy), model, cross_entropy, flatten(model), batch)
    spoken = lambda outputs, words: cross_entropy(outputs.transpose(1, 2), words)  # noqa: E731
    batch = Batch(torch.randn(7, 5, 4, dtype=torch.float64), torch.arange(35).view(7, 5) % 3, torch.arange(7) % 2)
    assert_agrees(BookKeeping(model, spoken), model, spoken, flatten(model), batch)
