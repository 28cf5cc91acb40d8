"""Tests a backend on made-up items: against the reference item by item, and against itself in other batches."""

from collections.abc import Callable, Iterator
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from wholegrain.clipping.backends import Program
from wholegrain.clipping.batch_invariance import FIRST, LEAST_ROWS, PassSizes, SteadySizes
from wholegrain.clipping.bookkeeping import Rows
from wholegrain.clipping.candidates import Candidate, MakeCandidate, WholeModel
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.company import depends_on_company
from wholegrain.clipping.dense_chain import DenseChain
from wholegrain.clipping.gradient_norms import Uses, add_lengths, gradient_lengths, group_lengths, merge_uses
from wholegrain.clipping.layers.base import RuleError
from wholegrain.clipping.operation_watch import MemoryWatch, RemainderWatch
from wholegrain.clipping.parameter_sums import LazyZeros, SingleSums
from wholegrain.clipping.parameters import Layout, Views, call
from wholegrain.clipping.reference import Loss, summed_gradients
from wholegrain.clipping.reference_result import ReferenceResult, compute_sketches
from wholegrain.clipping.released_memory import release_memory
from wholegrain.clipping.row_digests import digest_rows
from wholegrain.clipping.rule_disagreement import describe_norms, describe_sum, distance
from wholegrain.clipping.shape_probe import outside_watchers
from wholegrain.clipping.trial_companies import (
    DIFFERENT,
    RESIDUES,
    Company,
    companies,
    count_residues,
    relevant_widths,
    rows_at_once,
)
from wholegrain.clipping.trial_items import FEW, PERIOD, TRIAL, vary_items

MOST_TRIED = 32
"""Subjects of more items than this have a place of their own."""
MOST_DENSE = 1 << 14
"""Parameters of a dense model that is worth a function of its own."""
AGREEMENT = {torch.float32: 1e-3, torch.float64: 1e-8}
"""Two ways of summing differ by rounding; a wrong rule differs by more than this part of the whole."""
NOTHING = 1e-6
"""A parameter whose gradients are a millionth of the largest has none but rounding."""

Terms = Callable[[Units, int], int]
"""How many products a unit of so many items adds to one parameter, in the layer where they are most."""


class BackendTrial:
    """Items, targets and parameters to compare a program with the reference on."""

    def __init__(
        self, model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
    ) -> None:
        self._model, self._loss, self._layout, self._vector = model, loss, layout, vector
        self.inputs, self._targets = inputs, targets

        def gradients(items: slice) -> list[Tensor]:
            return summed_gradients(model, loss, layout, vector, inputs[items], targets[items])

        kinds = Units.of_items(TRIAL), Units.of_sizes(np.array([1, TRIAL - 1]))
        self._expected = [ReferenceResult.of(units, gradients) for units in kinds]
        self._residues = RESIDUES
        self.refusal: str | None = None
        """Why a rule did not cover the model, where one said so."""

    @cached_property
    def _varied(self) -> tuple[Tensor, Tensor]:
        """Many different items, and their targets."""
        return vary_items(self.inputs), self._targets[torch.arange(PERIOD) % TRIAL]

    @property
    def tells(self) -> bool:
        """Whether anything can be compared: each item has a gradient, and a finite one."""
        lengths = self._expected[0].lengths
        return bool(torch.isfinite(lengths).all() and (lengths > 0).all())

    def mixes_items(self) -> bool:
        """Whether an item's outputs, or the gradient of its loss by them, depend on other items in any bit."""

        def rows(inputs: Tensor, number: Tensor) -> Tensor:
            outputs = call(self._model, self._layout, self._vector, inputs)
            with torch.enable_grad():
                leaf = outputs.detach().clone().requires_grad_()
                (gradient,) = torch.autograd.grad(self._loss(leaf, self._targets[number]), leaf)
            return torch.cat([outputs, gradient], 1)

        return depends_on_company(rows, self.inputs)

    def passes(self, make: MakeCandidate) -> bool:
        """Whether norms and sums agree, of items and of subjects."""
        try:
            made = self.make(make)
            made.attach(self._vector)
            found = (self._find_disagreement(made.program, expected) for expected in self._expected)
            disagreement = next((each for each in found if each), None)
            release_memory(made.workspace)  # a program refers to itself, and would keep its buffers for a while
            if disagreement and not isinstance(made.program, WholeModel):
                self.refusal = disagreement
            return disagreement is None
        except RuleError as error:
            self.refusal = str(error)
            return False
        except CheckpointError:
            self.refusal = "its checkpoints hold parameters outside layers; compute.memory_gib saves memory instead"
            return False
        except Exception:  # the reference has run: whatever fails here is about this program and not the model
            return False

    def find_sizes(self, made: Candidate, most: int) -> PassSizes | None:
        """The sizes in which a backend's rows do not depend on each other; None where there are none.

        Where memory allows few items at once (`most`), passes are small, and fewer items repeat in them more often.

        They are tried on the program itself, which must be attached to its own parameters again afterwards. Compared is
        what every layer makes, forward and back, and all that norms and sums are computed from.
        """
        first, period = (FIRST, PERIOD) if most >= FIRST else (LEAST_ROWS, FEW)
        widths: list[int] = []

        def rows(size: int) -> list[Tensor]:
            # Drawn anew each time: kept for the next size, it would take a model's memory in every step.
            made.attach(torch.empty_like(self._vector).normal_(0, 0.5, generator=torch.Generator().manual_seed(4)))
            try:
                return self._digest_pass(made, torch.arange(size) % period, widths)
            finally:
                made.attach(self._vector)  # or the one that was drawn would stay until the next one is
                release_memory(made.workspace)

        with RemainderWatch(first) as functions:
            rows(first)
        self._residues = count_residues(widths)
        return SteadySizes.of(rows, period, functions.multiple, most)

    def _digest_pass(self, made: Candidate, number: Tensor, widths: list[int]) -> list[Tensor]:
        """Digests of all rows of a pass over these items; `widths` gets how long rows are, as far as it matters."""
        inputs, targets = self._varied
        size, found = len(number), list[Tensor]()

        def note(each: Tensor) -> None:
            with outside_watchers():  # which are to see the program's own operations
                each = _by_item(each, size)
                found.append(digest_rows(each))
                widths.extend([each[0].numel()] if each.dim() > 1 else [])

        units = Units.of_items(size)
        made.workspace.watcher = note
        with made.program.mode():
            uses = merge_uses(made.program.run(self._loss, inputs[number], targets[number], units))
            made.workspace.watcher = None
            for share in uses.shares:
                for each in share.rows():
                    note(each)
            for each in measure_units(uses, units):
                note(each)
        widths[:] = relevant_widths(widths, uses.shares)
        return found

    def find_dense(self, made: Candidate) -> DenseChain | None:
        """The program in one function, where it is a small dense model."""
        return DenseChain.of(made.program, self._loss, self._layout) if self._layout.size <= MOST_DENSE else None

    def make(self, make: MakeCandidate) -> Candidate:
        """A program for the trial's model."""
        return make(self._model, self._layout)

    def watch_subjects(self, made: Candidate, sizes: PassSizes) -> Callable[[int, bool], bool]:
        """Whether units of so many items (subjects, or single items) come out the same wherever they stand in a pass.

        Items by themselves are as steady as the program; subjects of a few items are tried, of more not trusted.
        """

        @cache
        def is_steady(size: int, subjects: bool) -> bool:
            if isinstance(made.program, WholeModel):
                return not made.program.vectorises
            if not isinstance(sizes, SteadySizes) or size > MOST_TRIED:
                return False
            return size == 1 or not subjects or self._repeats(made, size, sizes)

        return is_steady

    def _repeats(self, made: Candidate, size: int, sizes: PassSizes) -> bool:
        """Whether equal subjects of so many items give equal norms and gradients behind any number of others.

        Passes have sizes that training uses, too: in others, rows depend on each other whoever they belong to.
        """
        first = torch.empty(0)
        seen = torch.zeros(DIFFERENT, dtype=torch.bool)
        for turn, company in enumerate(companies(size, self._residues, sizes, rows_at_once(self._layout.size))):
            if company is None:
                return False
            found, subjects = torch.stack(self._measure(made, company, turn)), company.subjects(turn)
            release_memory(made.workspace)
            if not turn:
                first = found.new_zeros(len(found), DIFFERENT)
            new = ~seen[subjects]
            first[:, subjects[new]], seen[subjects] = found[:, new], True
            if not torch.equal(found, first[:, subjects]):
                return False
        return True

    def _measure(self, made: Candidate, company: Company, turn: int) -> list[Tensor]:
        """Norms and gradients of subjects in their company."""
        inputs, targets = self._varied
        number = torch.cat([torch.arange(company.items_before), company.items(company.subjects(turn))]) % PERIOD
        number = torch.cat([number, number[:1].expand(company.filled)])  # as passes are filled up in training
        units = company.units.pad(company.filled)
        made.attach(self._vector)
        with made.program.mode():
            uses = merge_uses(made.program.run(self._loss, inputs[number], targets[number], units))
            chosen = slice(company.before, company.before + company.count)
            return [digest_rows(each) for each in measure_units(uses, units, chosen)]

    @torch.no_grad()
    def count_terms(self, made: Candidate) -> Terms:
        """How many products units add up."""
        found = merge_uses(made.program.run(self._loss, self.inputs, self._targets, Units.of_items(TRIAL))).shares
        shares = [share for share in found if not isinstance(share, Rows)]  # which are one product, and large
        return lambda units, size: max((share.terms(units, size) for share in shares), default=1)

    def measure_bytes_per_item(self, made: Candidate) -> int:
        """Memory that one more item takes, from above."""
        made.attach(self._vector)
        taken = []
        for items in (1, TRIAL):
            with torch.no_grad(), MemoryWatch() as allocations:
                units = Units.of_items(items)
                shares = made.program.run(self._loss, self.inputs[:items], self._targets[:items], units)
                gradient_lengths(merge_uses(shares), units)
            taken.append(allocations.bytes)
        return max(1, int(taken[1] - taken[0]) // (TRIAL - 1))

    @torch.no_grad()
    def _find_disagreement(self, program: Program, expected: ReferenceResult) -> str | None:
        """Where a program differs from the reference by more than rounding, and by how much."""
        uses = merge_uses(program.run(self._loss, self.inputs, self._targets, expected.units))
        squared = gradient_lengths(uses, expected.units).squared
        # A norm that a program does not vouch for is not wrong.
        found_lengths = torch.where(squared.isnan(), expected.lengths, squared.sqrt())
        zeros = LazyZeros(Views.of(self._layout, torch.empty_like(self._vector)))
        sums = SingleSums(zeros)
        for share in uses.shares:
            share.add(expected.units, expected.units.whole, expected.weights, sums)
        total = zeros.settle()
        agreement, names = AGREEMENT.get(total.dtype, 0.1), list(self._layout.views(total))
        # In each parameter by itself, however small its gradients are beside those of others.
        nothing = NOTHING / agreement * max(expected.sizes)
        sketches = compute_sketches(self._layout.views(total).values())
        for name, found, other, size in zip(names, sketches, expected.sketches, expected.sizes, strict=True):
            if not distance(found, other, size + nothing) <= agreement:
                return describe_sum(self._model, name, distance(found, other, size))
        off = distance(found_lengths, expected.lengths, float(expected.lengths.max()))
        if off <= agreement:
            return None
        return describe_norms(self._model, uses.shares, expected.units, names, expected.norms, off)


def _by_item(rows: Tensor, items: int) -> Tensor:
    """The same with items in the first dimension; recurrent layers have time there, and others flatten positions."""
    if rows.shape[0] == items or rows.dim() < 2:
        return rows
    if rows.dim() > 2 and rows.shape[1] == items:
        return rows.transpose(0, 1)
    return rows.reshape(items, -1) if rows.shape[0] % items == 0 else rows.expand(items, *rows.shape)


def measure_units(uses: Uses, units: Units, chosen: slice | None = None) -> Iterator[Tensor]:
    """Norms [unit], of each share by itself and together, and gradients that were formed.

    Of these units of one run, or of the last run. Each share's gradients are gone when the next one's are formed.
    """
    run = units.run_of(chosen.start) if chosen else units.runs[-1]
    chosen = chosen or run.units
    within = slice(chosen.start - run.units.start, chosen.stop - run.units.start)
    found = []
    for group in uses.groups:
        found.append(group_lengths(group, units))
        for share in group:
            own = found[-1] if len(group) == 1 else share.lengths(units)
            # As many for every arrangement of units: what is one part in some of them is several in others.
            yield own.squared[chosen]
            yield (own.squared if own.apart is None else own.apart)[chosen]
            yield from (each[within] for each in share.hand_over(run))
    yield add_lengths(found).squared[chosen]
