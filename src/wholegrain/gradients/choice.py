"""Which program plays a model: the fastest that agrees with the reference, item by item, on made-up items.

The trial sees shapes and kinds of numbers, never the data. It catches what no rule can see from inside: a parameter
that is read past its layer, items that change places, an output that depends on other items.
"""

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from wholegrain.errors import ModelError
from wholegrain.gradients.parameters import Layout
from wholegrain.gradients.programs import Chain, Graph, Program, Slots
from wholegrain.gradients.reference import Loss, batch_gradient
from wholegrain.gradients.shares import Rows, Share, Slot, squares
from wholegrain.gradients.units import Units
from wholegrain.gradients.vectorised import item_gradients
from wholegrain.gradients.workspace import Workspace

TRIAL = 3
# Two ways of summing differ by rounding; a wrong rule differs by more than this part of the whole.
AGREEMENT = {torch.float32: 1e-3, torch.float64: 1e-8}


class SlowGradients(UserWarning):
    """Some gradients of a model are computed in a slower way than the rest."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """A program that agrees with the reference, and what it needs for an item."""

    program: Program
    attach: Callable[[Tensor], None]
    bytes_per_item: int


def choose(model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor) -> Chosen:
    """The first of the programs, from fast to slow, that passes the trial."""
    trial = _Trial(model, loss, layout, vector, _made_up(inputs), targets.new_zeros(TRIAL, *targets.shape[1:]))
    for make in (_by_rules, _by_vmap, _one_by_one):
        program, attach, slow = make(model, layout)
        if trial.passes(program, attach):
            if slow:
                warnings.warn(slow, SlowGradients, stacklevel=2)
            # Measured on another copy: this one has its buffers already.
            return Chosen(program, attach, trial.bytes_per_item(*make(model, layout)[:2]))
    raise ModelError("The gradients of the model's items differ from one computation to the next.")


def _made_up(inputs: Tensor) -> Tensor:
    shape = (TRIAL, *inputs.shape[1:])
    if inputs.is_floating_point():
        return torch.rand(shape, dtype=inputs.dtype, generator=torch.Generator().manual_seed(0))
    return (torch.arange(int(np.prod(shape))).view(shape) % 2).to(inputs.dtype)


@dataclass(frozen=True, eq=False)
class _Expected:
    """What the reference finds for some units: their gradients' norms, and a weighted sum of them."""

    units: Units
    weights: Tensor
    lengths: Tensor
    total: Tensor

    @staticmethod
    def of(units: Units, gradients: Iterator[Tensor]) -> "_Expected":
        """From the gradients of all items, one after the other: a large model's take much memory."""
        weights = torch.linspace(1, 2, units.count)
        lengths, total = [], torch.zeros(())
        for run in units.runs:
            for unit in range(run.units.start, run.units.stop):
                whole = next(gradients)
                for _ in range(run.size - 1):
                    whole.add_(next(gradients))
                lengths.append(whole.norm())
                total = whole.mul_(weights[unit]) if unit == 0 else total.add_(whole, alpha=float(weights[unit]))
        return _Expected(units, weights.to(total.dtype), torch.stack(lengths), total)


class _Trial:
    """Items, targets and parameters to compare a program with the reference on."""

    def __init__(
        self, model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
    ) -> None:
        self._loss, self._layout, self._inputs, self._targets = loss, layout, inputs, targets
        # Off any symmetric beginning, where many gradients are zero and agree by chance.
        self._vector = torch.empty_like(vector).normal_(0, 0.05, generator=torch.Generator().manual_seed(1))
        self._vector.add_(vector.detach())

        def gradients() -> Iterator[Tensor]:
            for k in range(TRIAL):
                yield batch_gradient(model, loss, layout, self._vector, inputs[k : k + 1], targets[k : k + 1])

        kinds = Units.of_items(TRIAL), Units.of_sizes(np.array([1, TRIAL - 1]))
        self._expected = [_Expected.of(units, gradients()) for units in kinds]

    def passes(self, program: Program, attach: Callable[[Tensor], None]) -> bool:
        """Whether norms and sums agree, of items and of subjects."""
        try:
            attach(self._vector)
            return all(self._agrees(program, expected) for expected in self._expected)
        except Exception:  # the reference has run: whatever fails here is about this program and not the model
            return False

    def bytes_per_item(self, program: Program, attach: Callable[[Tensor], None]) -> int:
        """Memory that one more item takes, from above."""
        attach(self._vector)
        taken = []
        for items in (1, TRIAL):
            with torch.no_grad(), _Allocations() as allocations:
                units = Units.of_items(items)
                squares(program.run(self._loss, self._inputs[:items], self._targets[:items], units), units)
            taken.append(allocations.bytes)
        return max(1, int(taken[1] - taken[0]) // (TRIAL - 1))

    @torch.no_grad()
    def _agrees(self, program: Program, expected: _Expected) -> bool:
        shares = program.run(self._loss, self._inputs, self._targets, expected.units)
        lengths = squares(shares, expected.units).sqrt()
        if not _close(lengths, expected.lengths):
            return False
        total = torch.zeros_like(self._vector)
        for share in shares:
            share.add(expected.units, expected.weights, self._layout.views(total))
        return _close(total, expected.total)


def _close(value: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().max())
    return float(torch.dist(value, expected, p=float("inf"))) <= AGREEMENT[expected.dtype] * scale


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of all tensors that are made; what is freed and made again at one place counts once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self._sizes.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self._sizes[storage.data_ptr()] = max(storage.nbytes(), self._sizes.get(storage.data_ptr(), 0))
        return result


Made = tuple[Program, Callable[[Tensor], None], str | None]


def _by_rules(model: nn.Module, layout: Layout) -> Made:
    """Rules for layers, on a copy of the model whose parameters are views of the vector."""
    shadow = deepcopy(model)
    slots, workspace = Slots(shadow), Workspace()
    parameters = [p for p in shadow.parameters() if p.requires_grad]

    attached = torch.zeros(0)

    def attach(vector: Tensor) -> None:
        nonlocal attached
        if vector is attached:
            return
        attached = vector
        for p, view in zip(parameters, layout.views(vector.detach()).values(), strict=True):
            p.data = view

    chain = Chain.of(shadow, slots, workspace)
    if chain is not None:
        return chain, attach, None
    graph = Graph(shadow, model, slots, workspace)
    names = ", ".join(graph.unruled)
    notice = f"There is no gradient rule for {names}; its own parameters go item by item with vmap, which is slower."
    return graph, attach, notice if names else None


def _by_vmap(model: nn.Module, layout: Layout) -> Made:
    """The whole model by vmap."""
    program = _WholeModel(model, layout)
    return program, program.attach, "The model's gradients are computed item by item with vmap, which is slower."


def _one_by_one(model: nn.Module, layout: Layout) -> Made:
    """The whole model, one item after the other."""
    program = _WholeModel(model, layout, vectorises=False)
    return program, program.attach, "The model's gradients are computed one item after the other, which is much slower."


class _WholeModel:
    """A program that forms each item's whole gradient: for models that no rule fits."""

    def __init__(self, model: nn.Module, layout: Layout, vectorises: bool = True) -> None:
        self._model, self._layout, self._vectorises = model, layout, vectorises
        self._vector = torch.zeros(0)

    def attach(self, vector: Tensor) -> None:
        """Use these parameters from now on."""
        self._vector = vector

    def run(self, loss: Loss, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """One share with the rows of all parameters."""
        rows = units.pool(torch.stack(list(self._rows(loss, inputs, targets))))
        views = self._layout.views(rows[0])
        sizes = [view.numel() for view in views.values()]
        return [Rows([(Slot(name), part) for name, part in zip(views, torch.split(rows, sizes, 1), strict=True)])]

    def _rows(self, loss: Loss, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        if not self._vectorises:
            for x, y in zip(inputs, targets, strict=True):
                yield batch_gradient(self._model, loss, self._layout, self._vector, x[None], y[None])
            return
        yield from item_gradients(self._model, loss, self._layout, self._vector, inputs, targets)
