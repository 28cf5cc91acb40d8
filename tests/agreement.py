"""The fast gradient engine beside the reference: one comparison, which every test of agreement makes."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from wholegrain.clipping.backend_selection import SlowGradients
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool, pool_gradients
from wholegrain.clipping.engine import MEMORY, BookKeeping
from wholegrain.clipping.gradient_norms import Uses
from wholegrain.clipping.parameter_sums import SplitTotal
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.pieces import Piece
from wholegrain.clipping.reference import Loss, batch_gradient
from wholegrain.clipping.traced import TracedGradients

MODES = (
    (ClipPer.NONE, Pool.SUM),
    (ClipPer.ITEM, Pool.SUM),
    (ClipPer.ITEM, Pool.MEAN),
    (ClipPer.SUBJECT, Pool.MEAN),
    (ClipPer.SUBJECT, Pool.SUM),
    (ClipPer.BATCH, Pool.MEAN),
)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def wavy(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that any shape of outputs can have, and that is linear in none of them."""
    shifts = targets.view(-1, *(1,) * (outputs.dim() - 1))
    return (outputs + shifts).sin().flatten(1).sum(1).mean()


@dataclass(frozen=True)
class Batch:
    """Items, their targets and their subjects."""

    inputs: Tensor
    targets: Tensor
    groups: Tensor


def item_gradients(model: nn.Module, loss: Loss, vector: Tensor, batch: Batch) -> Tensor:
    """Each item's gradient [item, parameter], as the reference computes it."""
    layout, count = Layout.of(model), len(batch.inputs)
    rows = [
        batch_gradient(model, loss, layout, vector, batch.inputs[i : i + 1], batch.targets[i : i + 1])
        for i in range(count)
    ]
    return torch.stack(rows) if rows else vector.new_zeros(0, layout.size)


def assert_same(actual: ClippedTotal, expected: ClippedTotal, note: str = "") -> None:
    """Equal but for rounding."""
    scale = expected.total.norm().clamp(min=torch.finfo(expected.total.dtype).tiny)
    off = float((actual.total - expected.total).norm() / scale)
    assert off <= TOLERANCE[expected.total.dtype], f"{note}: {off:.1e} off the reference"
    assert actual.zeroed == expected.zeroed, note


def assert_agrees(
    engine: BookKeeping, model: nn.Module, loss: Loss, vector: Tensor, batch: Batch, norm: float | None = None
) -> None:
    """In every mode; without a norm, at one that clips about half of the items."""
    rows = item_gradients(model, loss, vector, batch)
    if norm is None:
        norm = float(rows.norm(dim=1).median().clamp(1e-6, 1e6)) if len(rows) else 1.0
    for per, pool in MODES:
        clip = Clip(per, pool, norm)
        actual = engine(vector, batch.inputs, batch.targets, batch.groups, clip)
        assert_same(actual, pool_gradients(rows, batch.groups, clip), f"{per}/{pool}")


def program_of(engine: BookKeeping) -> object:
    """What the engine chose."""
    return None if engine._chosen is None else engine._chosen.program


def slow(call: Callable[[], object]) -> list[str]:
    """The notices of slow gradients that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SlowGradients)
        call()
    return [str(one.message) for one in caught if issubclass(one.category, SlowGradients)]


class WatchedEngine(BookKeeping):
    """An engine that counts what it computes by rules, and what it leaves to the reference."""

    passes = units_by_reference = 0

    def _run(self, piece: Piece, units: Units) -> Uses:
        self.passes += 1
        return super()._run(piece, units)

    def _add_one_by_one(self, vector: Tensor, piece: Piece, clip: Clip, total: SplitTotal) -> int:
        self.units_by_reference += piece.units.count
        return super()._add_one_by_one(vector, piece, clip, total)

    def require_rules(self, batch: Batch) -> None:
        """That every module has its rule, and that a comparison in all modes has used it, for norms as well."""
        program = program_of(self)
        assert isinstance(program, TracedGradients), f"the model was not proved: {self.reason}"
        assert self.passes, "no pass was computed by the program"
        units = sum(
            len(batch.groups) if per is ClipPer.ITEM else len(batch.groups.unique())
            for per, _ in MODES
            if per in (ClipPer.ITEM, ClipPer.SUBJECT)
        )
        assert self.units_by_reference < units, "every clipped unit was left to the reference"


@dataclass(frozen=True)
class World:
    """Everything about a comparison but the model: what hypothesis draws for each."""

    seed: int
    items: int
    subjects: int
    dtype: torch.dtype
    memory: int
    norm: float | None  # None clips about half

    def generator(self) -> torch.Generator:
        """Where the batch comes from."""
        return torch.Generator().manual_seed(self.seed)

    def built(self, make: Callable[[], nn.Module]) -> nn.Module:
        """A model with parameters of this world."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return make().to(self.dtype)

    def batch(self, shape: tuple[int, ...], tokens: int | None = None) -> Batch:
        """Items of this shape: normal values, or tokens below a number."""
        generator = self.generator()
        size = (self.items, *shape)
        if tokens is None:
            inputs = torch.randn(size, generator=generator, dtype=self.dtype)
        else:
            inputs = torch.randint(tokens, size, generator=generator)
        targets = torch.randn(self.items, generator=generator, dtype=self.dtype)
        return Batch(inputs, targets, torch.randint(self.subjects, (self.items,), generator=generator))

    def compare(self, make: Callable[[], nn.Module], shape: tuple[int, ...], tokens: int | None = None) -> BookKeeping:
        """Engine and reference on a model with rules for all its layers, by which the engine did compute."""
        model, batch = self.built(make), self.batch(shape, tokens)
        engine = WatchedEngine(model, wavy, self.memory)
        assert_agrees(engine, model, wavy, flatten(model), batch, self.norm)
        engine.require_rules(batch)
        return engine

    def but(self, **changes: object) -> "World":
        """The same world, but for this."""
        return replace(self, **changes)  # type: ignore[arg-type]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Odd sizes of batch, subjects of random sizes in random order, both precisions, little and much memory."""
    items = draw(st.sampled_from((7, 1, 2, 13)), label="items")
    return World(
        seed=draw(st.integers(0, 10_000), label="seed"),
        items=items,
        subjects=draw(st.integers(1, items), label="subjects"),
        dtype=draw(st.sampled_from((torch.float64, torch.float32)), label="dtype"),
        memory=draw(st.sampled_from((MEMORY, 1 << 13, 1)), label="memory"),
        norm=draw(st.sampled_from((None, 1e-4, 1e4)), label="norm"),
    )


class Around(nn.Module):
    """A module that is not a sequence, so that autograd's graph is followed; `pick` chooses among what it returns."""

    def __init__(self, inner: nn.Module, pick: Callable[..., Tensor] = lambda outputs: outputs) -> None:
        super().__init__()
        self.inner, self._pick = inner, pick

    def forward(self, x: Tensor) -> Tensor:
        return self._pick(self.inner(x))
