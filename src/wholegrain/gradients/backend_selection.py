"""Which program plays a model: the fastest that agrees with the reference, item by item, on made-up items.

The trial sees shapes and kinds of numbers, never the data. It catches what no rule can see from inside: a parameter
that is read past its layer, items that change places, an output that depends on other items.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from wholegrain.gradients.backends import Chain, Graph, Program, Slots
from wholegrain.gradients.batch_invariance import FIRST, LEAST_ROWS, WIDE, AnySize, FixedPlaces, PassSizes, TriedSizes
from wholegrain.gradients.bookkeeping import Rows, Share, Slot
from wholegrain.gradients.clip_units import Units
from wholegrain.gradients.gradient_norms import gradient_lengths, merge_uses
from wholegrain.gradients.parameters import Layout, flatten
from wholegrain.gradients.reference import Loss, batch_gradient, summed_gradients
from wholegrain.gradients.sum_groups import SumGroups
from wholegrain.gradients.vmap_gradients import item_gradients
from wholegrain.gradients.workspace import Workspace

TRIAL, TRIALS = 3, 2
# Subjects of more items than this have a place of their own; of fewer, so many are tried behind so many others.
MOST_TRIED = 8
COMPANY = ((6, 0), (1, 1), (3, 2), (2, 3), (6, 5), (1, 6), (5, 8), (4, 13))
# Different items of a pass that is tried for how its rows depend on their company.
PERIOD = 31
# Sizes of batches in which a model is watched for items that depend on each other.
MIXING = (3, 8, 16, 50, 128)
# Two ways of summing differ by rounding; a wrong rule differs by more than this part of the whole.
AGREEMENT = {torch.float32: 1e-3, torch.float64: 1e-8}
# Values of a parameter that are compared as one product.
BLOCK = 1 << 16
# A parameter whose gradients are a millionth of the largest has none but rounding.
NOTHING = 1e-6


class SlowGradients(UserWarning):
    """Some gradients of a model are computed in a slower way than the rest."""


Terms = Callable[[Units, int], int]


@dataclass(frozen=True, eq=False)
class Backend:
    """A program that agrees with the reference, what it needs for an item, and in which sizes it is trusted.

    `terms` says how many products a unit adds to one parameter, in the layer where they are most: an item, or a
    subject of so many items.
    """

    program: Program
    attach: Callable[[Tensor], None]
    bytes_per_item: int
    sizes: PassSizes
    terms: Terms
    steady: Callable[[int, bool], bool]
    """Whether units of so many items (subjects, or single items) come out the same wherever they stand in a pass."""
    groupings: dict[tuple[float, float, int, bool], tuple[SumGroups, bool]] = field(default_factory=dict)
    """By what is public of a batch; and whether its units must be in the order of their numbers."""
    fitting: dict[int, int | None] = field(default_factory=dict)
    """What `sizes.fitting` has said."""


def select_backend(
    model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
) -> Backend:
    """The first of the programs, from fast to slow, that passes the trial; the slowest needs none."""
    # Near the model's own parameters: those that are given may come from a server that has a trial's result in mind.
    elsewhere = _perturb(flatten(model).to(vector))
    trials = list(islice(_trials(model, loss, layout, elsewhere, inputs, targets), TRIALS))
    if not trials:
        trials = [_Trial(model, loss, layout, elsewhere, _zeros(inputs), _zeros(targets))]
    for make in (_by_rules, _by_vmap):
        if all(trial.passes(make) for trial in trials):
            return _steadiest(trials[0], make, model, layout)
    return trials[0].chosen(_one_by_one, _one_by_one(model, layout), AnySize())


def _steadiest(trial: "_Trial", make: "Make", model: nn.Module, layout: Layout) -> Backend:
    """A program that is right, in the first way in which its rows do not depend on their company."""
    # Of what vmap makes inside nothing is seen, so that it is trusted in fixed places alone.
    for way in (make, _by_aligned_rules) if make is _by_rules else ():
        made = way(model, layout)
        sizes = trial.sizes(made)
        if sizes is not None:
            return trial.chosen(way, made, sizes)
    return trial.chosen(make, make(model, layout), FixedPlaces())


def mixes_items(model: nn.Module, inputs: Tensor) -> bool:
    """Whether an item's output depends on the others in its batch, as far as made-up items of this shape can show."""
    return any(_mixes(model, batch, size) for batch in _made_up(inputs) for size in MIXING)


def _mixes(model: nn.Module, batch: Tensor, size: int) -> bool:
    """Whether made-up items, repeated up to a batch of this size, give other outputs than each alone."""
    number = torch.arange(size) % TRIAL
    with torch.no_grad():
        together = model(batch[number].clone())
        alone = torch.cat([model(batch[k : k + 1].clone()) for k in range(TRIAL)])[number]
    return together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True)


def _trials(
    model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
) -> Iterator["_Trial"]:
    """Made-up batches whose gradients are finite: some models cannot take every number."""
    for values in _made_up(inputs):
        for classes in _made_up(targets):
            try:
                trial = _Trial(model, loss, layout, vector, values, classes)
            except (IndexError, RuntimeError):
                continue
            if trial.tells:
                yield trial
                break


def _made_up(given: Tensor) -> Iterator[Tensor]:
    """Values of the same kind that differ from item to item.

    Numbers between 0 and 1, then of either sign with one item much larger than the others; where they are whole
    numbers, 0 and 1, then 1 alone.
    """
    shape, draws = (TRIAL, *given.shape[1:]), torch.Generator().manual_seed(0)
    if given.is_floating_point():
        yield torch.rand(shape, dtype=given.dtype, generator=draws)
        wide = torch.randn(shape, dtype=given.dtype, generator=draws).mul_(3)
        wide[-1] *= 100
        yield wide
        return
    mixed = torch.randint(2, shape, generator=draws).to(given.dtype)
    if given.dim() == 1:
        mixed[0], mixed[1] = 0, 1
    yield from (mixed, torch.ones_like(mixed), torch.zeros_like(mixed))


def _by_item(rows: Tensor, items: int) -> Tensor:
    """The same with items in the first dimension; recurrent layers have time there, and others flatten positions."""
    if rows.shape[0] == items or rows.dim() < 2:
        return rows
    if rows.shape[1] == items:
        return rows.transpose(0, 1)
    return rows.reshape(items, -1) if rows.shape[0] % items == 0 else rows.expand(items, *rows.shape)


def _vary_items(made_up: Tensor) -> Tensor:
    """Many more items of the same kind, of numbers so different in size that every order of adding them up shows."""
    draws, shape = torch.Generator().manual_seed(3), (PERIOD, *made_up.shape[1:])
    if not made_up.is_floating_point():
        whole = torch.randint(2, shape, generator=draws).to(made_up.dtype)
        return whole.clamp(int(made_up.min()), int(made_up.max()))
    exponents = torch.randint(-6, 7, shape, generator=draws).to(made_up.dtype)
    return torch.randn(shape, dtype=made_up.dtype, generator=draws) * 2**exponents


def _measured(shares: Sequence[Share], units: Units) -> list[Tensor]:
    """Norms [unit], together and of each share by itself, and gradients that were formed for units of the last run."""
    found = [gradient_lengths(shares, units).squared]
    for share in shares:
        own = share.lengths(units)
        found += [each for each in own if each is not None]
        found += share.formed(units.runs[-1])
    return found


def _zeros(given: Tensor) -> Tensor:
    return given.new_zeros(TRIAL, *given.shape[1:])


def _perturb(vector: Tensor) -> Tensor:
    """Parameters off any symmetric beginning, where many gradients are zero and agree by chance."""
    elsewhere = vector.new_empty(vector.shape).normal_(0, 0.05, generator=torch.Generator().manual_seed(1))
    return elsewhere.add_(vector.detach()).nan_to_num_(0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class _ReferenceResult:
    """What the reference finds for some units: their gradients' norms, and a weighted sum of them, in a sketch."""

    units: Units
    weights: Tensor  # [unit]
    lengths: Tensor  # [unit]
    sketches: list[Tensor]
    sizes: list[float]
    """How long each parameter's part of the sum may be. A sketch can be much smaller, by chance."""

    @staticmethod
    def of(units: Units, gradients: Callable[[slice], list[Tensor]]) -> "_ReferenceResult":
        """From the summed gradients of some items, one unit after the other: a large model's take much memory.

        Only its sketch is kept of each: the sketch of a weighted sum is the weighted sum of the sketches.
        """
        found = [_norms_and_sketches(gradients(items)) for items in _items_of_each(units)]
        norms = torch.stack([norms for norms, _ in found])  # [unit, parameter]
        weights = torch.linspace(1, 2, units.count).to(norms.dtype)
        sketches = [weights @ torch.stack(each) for each in zip(*(each for _, each in found), strict=True)]
        return _ReferenceResult(units, weights, norms.norm(dim=1), sketches, (weights @ norms).tolist())


def _items_of_each(units: Units) -> Iterator[slice]:
    for run in units.runs:
        for start in range(run.items.start, run.items.stop, run.size):
            yield slice(start, start + run.size)


def _norms_and_sketches(gradients: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    return torch.stack([gradient.norm() for gradient in gradients]), _sketches(gradients)


def _sketches(gradients: Iterable[Tensor]) -> list[Tensor]:
    """For each parameter, products of its blocks with one random vector: what differs in the whole differs in these."""
    random = torch.randn(BLOCK, generator=torch.Generator().manual_seed(2))
    blocks = [torch.split(gradient.reshape(-1), BLOCK) for gradient in gradients]
    return [torch.stack([block @ random[: len(block)].to(block.dtype) for block in each]) for each in blocks]


class _Functions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which functions of a pass are computed value by value, and in what number.

    Vectorised code takes many values at a time, and what is left over one by one: by other instructions, which may
    round otherwise. Where there are whole multiples of WIDE values, nothing is left over.
    """

    def __init__(self, items: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._items, self.multiple = items, 1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: see _Allocations."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not _is_safe(func.overloadpacket.__name__.strip("_"), args, kwargs or {}):
            for each in made if isinstance(made, tuple | list) else (made,):
                if isinstance(each, Tensor) and each.is_floating_point() and each.numel() % self._items == 0:
                    self.multiple = max(self.multiple, WIDE // gcd(WIDE, each.numel() // self._items))
        return made


# One correctly rounded operation for each value, or none, or a product whose rows are compared.
# fmt: off
SAFE = frozenset({
    "abs", "add", "addmm", "addmv", "arange", "as_strided", "baddbmm", "bmm", "cat", "clamp", "clamp_min", "clone",
    "col2im", "constant_pad_nd", "contiguous", "conv1d", "conv2d", "convolution", "convolution_backward", "copy",
    "detach", "diagonal", "div", "embedding", "empty", "empty_like", "empty_strided", "eq", "expand", "fill",
    "flatten", "flip", "gather", "ge", "gt", "im2col", "index", "index_add", "index_put", "index_select", "le",
    "lift_fresh", "linalg_vecdot", "lt", "masked_fill", "max", "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward", "maximum", "mean", "minimum", "mm", "mul", "ne", "neg", "new_empty",
    "new_empty_strided", "new_zeros", "ones_like", "permute", "reciprocal", "relu", "remainder", "repeat",
    "reshape", "reshape_alias", "resolve_conj", "rsqrt", "scatter", "scatter_add", "select", "select_backward",
    "slice", "slice_backward", "softmax", "split", "split_with_sizes", "sqrt", "square", "squeeze", "stack", "sub",
    "sum", "t", "threshold_backward", "to", "to_copy", "transpose", "unbind", "unflatten", "unfold", "unsafe_view",
    "unsqueeze", "view", "where", "zero", "zeros", "zeros_like",
})
# fmt: on


def _is_safe(name: str, args: Any, options: Any) -> bool:
    if name == "pow":
        return bool(args[1] == 2)
    alpha = options.get("alpha", 1)
    return name in SAFE and math.frexp(abs(alpha))[0] == 0.5  # a power of two: the product is exact


class _Trial:
    """Items, targets and parameters to compare a program with the reference on."""

    def __init__(
        self, model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
    ) -> None:
        self._model, self._loss, self._layout, self._vector = model, loss, layout, vector
        self._inputs, self._targets = inputs, targets

        def gradients(items: slice) -> list[Tensor]:
            return summed_gradients(model, loss, layout, vector, inputs[items], targets[items])

        kinds = Units.of_items(TRIAL), Units.of_sizes(np.array([1, TRIAL - 1]))
        self._expected = [_ReferenceResult.of(units, gradients) for units in kinds]

    @property
    def tells(self) -> bool:
        """Whether anything can be compared: each item has a gradient, and a finite one."""
        lengths = self._expected[0].lengths
        return bool(torch.isfinite(lengths).all() and (lengths > 0).all())

    def passes(self, make: "Make") -> bool:
        """Whether norms and sums agree, of items and of subjects."""
        try:
            made = make(self._model, self._layout)
            made.attach(self._vector)
            return all(self._agrees(made.program, expected) for expected in self._expected)
        except Exception:  # the reference has run: whatever fails here is about this program and not the model
            return False

    def sizes(self, made: "Candidate") -> PassSizes | None:
        """The sizes in which a program's rows do not depend on their company; None where there are none.

        They are tried on the program itself, which must be attached to its own parameters again afterwards. Compared is
        what every layer makes, forward and back, and all that norms and sums are computed from.
        """
        inputs, targets = _vary_items(self._inputs), self._targets[torch.arange(PERIOD) % TRIAL]
        vector = torch.empty_like(self._vector).normal_(0, 0.5, generator=torch.Generator().manual_seed(4))

        def rows(size: int) -> list[Tensor]:
            number = torch.arange(size) % PERIOD
            units = Units.of_items(size)
            made.attach(vector)
            watched: list[Tensor] = []
            made.workspace.watched = watched
            with made.program.mode():
                shares = merge_uses(made.program.run(self._loss, inputs[number], targets[number], units))
                found = [*watched, *(rows for share in shares for rows in share.rows()), *_measured(shares, units)]
            made.workspace.watched = None
            return [_by_item(each, size) for each in found]

        with _Functions(FIRST) as functions:
            rows(FIRST)
        return TriedSizes.of(rows, PERIOD, functions.multiple)

    def chosen(self, make: "Make", made: "Candidate", sizes: PassSizes) -> Backend:
        """A program for use, with a notice where it is slow."""
        if made.notice:
            warnings.warn(made.notice, SlowGradients, stacklevel=6)
        # Measured on another copy, whose buffers are still to be made.
        copy = make(self._model, self._layout)
        steady = self._steadiness(made, isinstance(sizes, TriedSizes))
        return Backend(made.program, made.attach, self._bytes_per_item(copy), sizes, self._terms(copy), steady)

    def _steadiness(self, made: "Candidate", steady: bool) -> Callable[[int, bool], bool]:
        """Items by themselves are as steady as the program; subjects of a few items are tried, of more not trusted."""

        @cache
        def found(size: int, subjects: bool) -> bool:
            if isinstance(made.program, _WholeModel):
                return not made.program.vectorises
            if not steady or size > MOST_TRIED:
                return False
            return size == 1 or not subjects or self._repeats(made, size)

        return found

    def _repeats(self, made: "Candidate", size: int) -> bool:
        """Whether equal subjects of so many items give equal norms and gradients behind any number of others."""
        inputs, targets = _vary_items(self._inputs), self._targets[torch.arange(PERIOD) % TRIAL]
        first: list[Tensor] = []
        for subjects, others in COMPANY:
            before = max(others, LEAST_ROWS - subjects * size)  # no pass has fewer rows
            place = torch.arange(subjects * size)
            own = (place // size % TRIAL) * size + place % size
            number = torch.cat([torch.arange(before), own]) % PERIOD
            units = Units.of_sizes(np.array([1] * before + [size] * subjects))
            made.attach(self._vector)
            with made.program.mode():
                shares = merge_uses(made.program.run(self._loss, inputs[number], targets[number], units))
                rows = [each[before:].clone() for each in _measured(shares, units)]
            first = first or [each[:TRIAL].clone() for each in rows]
            same = torch.arange(subjects) % TRIAL
            if not all(torch.equal(each, one[same]) for each, one in zip(rows, first, strict=True)):
                return False
        return True

    @torch.no_grad()
    def _terms(self, made: "Candidate") -> Terms:
        shares = merge_uses(made.program.run(self._loss, self._inputs, self._targets, Units.of_items(TRIAL)))
        return lambda units, size: max((share.terms(units, size) for share in shares), default=1)

    def _bytes_per_item(self, made: "Candidate") -> int:
        """Memory that one more item takes, from above."""
        made.attach(self._vector)
        taken = []
        for items in (1, TRIAL):
            with torch.no_grad(), _Allocations() as allocations:
                units = Units.of_items(items)
                gradient_lengths(
                    made.program.run(self._loss, self._inputs[:items], self._targets[:items], units), units
                )
            taken.append(allocations.bytes)
        return max(1, int(taken[1] - taken[0]) // (TRIAL - 1))

    @torch.no_grad()
    def _agrees(self, program: Program, expected: _ReferenceResult) -> bool:
        shares = merge_uses(program.run(self._loss, self._inputs, self._targets, expected.units))
        squared = gradient_lengths(shares, expected.units).squared
        # A norm that a program does not vouch for is not wrong.
        found_lengths = torch.where(squared.isnan(), expected.lengths, squared.sqrt())
        total = torch.zeros_like(self._vector)
        for share in shares:
            share.add(expected.units, expected.units.whole, expected.weights, self._layout.views(total))
        if not _close(found_lengths, expected.lengths, float(expected.lengths.max())):
            return False
        # In each parameter by itself, however small its gradients are beside those of others.
        nothing = NOTHING / AGREEMENT.get(total.dtype, 0.1) * max(expected.sizes)
        found = zip(_sketches(self._layout.views(total).values()), expected.sketches, expected.sizes, strict=True)
        return all(_close(one, other, size + nothing) for one, other, size in found)


def _close(value: Tensor, expected: Tensor, size: float) -> bool:
    return float(torch.dist(value, expected, p=float("inf"))) <= AGREEMENT.get(expected.dtype, 0.1) * size


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of all tensors that are made, and keeps them: what is freed would be made again at one place in
    one process and at another in the next, and how many groups a sum has must follow from shapes alone.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._kept: list[Tensor] = []

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self._sizes.values())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to keep its compiler out of here, torch would first import it, which takes 40 MB and seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self._kept.append(value)
                storage = value.untyped_storage()
                self._sizes[storage.data_ptr()] = max(storage.nbytes(), self._sizes.get(storage.data_ptr(), 0))
        return result


@dataclass(frozen=True, eq=False)
class Candidate:
    """A program, how it is told its parameters, and what to say of it where it is slow."""

    program: Program
    attach: Callable[[Tensor], None]
    notice: str | None
    workspace: Workspace = field(default_factory=Workspace)


Make = Callable[[nn.Module, Layout], Candidate]


def _by_aligned_rules(model: nn.Module, layout: Layout) -> Candidate:
    """The same with rows that all begin alike in memory: for odd widths, whose products are else not steady."""
    return _by_rules(model, layout, aligned=True)


def _by_rules(model: nn.Module, layout: Layout, aligned: bool = False) -> Candidate:
    """Rules for layers, on a shadow of the model whose parameters are views of the vector."""
    shadow = _copy_model(model)
    slots, workspace = Slots(shadow), Workspace(aligned)
    parameters = [p for p in shadow.parameters() if p.requires_grad]
    place: int | None = None

    def attach(vector: Tensor) -> None:
        nonlocal place
        if shadow.training is not model.training:
            shadow.train(model.training)
        # What is attached stays in memory, so that no other vector can come to lie at its place.
        if vector.data_ptr() == place and vector.is_contiguous():
            return
        place = vector.data_ptr() if vector.is_contiguous() else None
        for p, view in zip(parameters, layout.views(vector.detach()).values(), strict=True):
            p.data = view

    chain = Chain.of(shadow, slots, workspace)
    if chain is not None:
        return Candidate(chain, attach, None, workspace)
    graph = Graph(shadow, model, slots, workspace)
    names = ", ".join(graph.unruled)
    notice = f"There is no gradient rule for {names}; its own parameters go item by item with vmap, which is slower."
    return Candidate(graph, attach, notice if names else None, workspace)


def _copy_model(model: nn.Module) -> nn.Module:
    """A copy with forwards of its own; buffers and frozen parameters are the model's, and may change with it.

    Trainable parameters are objects of their own, which are pointed at a vector before anything is computed: their
    values need no copy.
    """
    shared: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for p in model.parameters():
        shared[id(p)] = nn.Parameter(p.detach()) if p.requires_grad else p
    return deepcopy(model, shared)


def _by_vmap(model: nn.Module, layout: Layout) -> Candidate:
    """The whole model by vmap."""
    program = _WholeModel(model, layout)
    return Candidate(program, program.attach, "The model's gradients go item by item with vmap, which is slower.")


def _one_by_one(model: nn.Module, layout: Layout) -> Candidate:
    """The whole model, one item after the other, as the reference does it."""
    program = _WholeModel(model, layout, vectorises=False)
    return Candidate(
        program, program.attach, "The model's gradients go one item after the other, which is much slower."
    )


class _WholeModel:
    """A program that forms each item's whole gradient: for models that no rule fits."""

    mode: Callable[[], AbstractContextManager[Any]] = torch.no_grad

    def __init__(self, model: nn.Module, layout: Layout, vectorises: bool = True) -> None:
        self._model, self._layout, self.vectorises = model, layout, vectorises
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
        if not self.vectorises:
            for x, y in zip(inputs, targets, strict=True):
                yield batch_gradient(self._model, loss, self._layout, self._vector, x[None], y[None])
            return
        yield from item_gradients(self._model, loss, self._layout, self._vector, inputs, targets)
