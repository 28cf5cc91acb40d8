"""A model's gradients as a proved program: recorded, proved and written once for one shape of items."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.flows import Flows
from wholegrain.clipping.gradient_norms import merge_uses
from wholegrain.clipping.isolation import copy_to_record
from wholegrain.clipping.parameter_sums import align
from wholegrain.clipping.parameters import Layout, compute_at
from wholegrain.clipping.program import Operations, Program, Take
from wholegrain.clipping.recurrent import WholeRecurrent
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.rows import Place, Proof
from wholegrain.clipping.shares_of_pass import Pass
from wholegrain.clipping.tape import Tape
from wholegrain.clipping.trace import SIZES, Recorder, record
from wholegrain.models.dropout import DropoutByItem

CARRY = ("inputs", "targets")
"""Inputs of a program that have a row for each item."""


class TracedGradients:
    """The gradients of a model's loss: what every parameter's sum over units is made of.

    Guarantee: whatever finite values parameters, inputs and targets have, what is computed of an item before it is
    added up depends on that item's own values and the parameters, up to how kernels round; see `kernels`.
    """

    mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode

    def __init__(self, model: nn.Module, loss: Loss, layout: Layout, inputs: Tensor, targets: Tensor) -> None:
        self.proof = Proof.of(_record(copy_to_record(model), loss, layout, inputs, targets), CARRY)
        self.flows = Flows(self.proof, layout, self.proof.tape.outputs)
        self.program = Program(self.proof, self.flows.needed, self.flows.shared)
        self._layout = layout
        self._key = model.key if isinstance(model, DropoutByItem) else None
        self._parameters: list[Tensor] = []
        self.signature = self._sign()
        """Tells this program from any other, as far as kernels matter."""

    def attach(self, vector: Tensor) -> None:
        """Use these parameters from now on."""
        self._parameters = list(self._layout.views(vector.detach()).values())

    def _sign(self) -> str:
        tape = self.proof.tape
        names = [str(op.target) for op, _ in self.program.kept]
        shapes = [(number, tape.shape(number), str(value.dtype)) for number, value in enumerate(tape.values)]
        ends = [(end.op.target.name(), end.rule, self.proof.where) for end in self.proof.ends[:1]]
        told = repr(
            (self.program.source, names, shapes, [end.rule for end in self.proof.ends], ends, self.flows.told())
        )
        return hashlib.sha256(told.encode()).hexdigest()

    def shared_values(self) -> list[tuple[int, Tensor]]:
        """What operations after ends need; only what is kept has values."""
        tape = self.proof.tape
        return [(number, tape.constants.get(number, tape.values[number])) for number in self.flows.shared]

    def made_up(self) -> list[Tensor]:
        """Parameters for trials."""
        draws, kinds = torch.Generator().manual_seed(1), self.proof.tape.values
        inputs = self.proof.tape.inputs
        return [
            torch.randn(shape, generator=draws, dtype=kinds[inputs[name]].dtype).mul_(0.05)
            for name, shape in zip(self._layout.names, self._layout.shapes, strict=True)
        ]

    @property
    def bytes_per_item(self) -> int:
        """Memory that one more item takes, from above: all that is computed of it."""
        tape, where = self.proof.tape, self.proof.where
        made = [out for op, _ in self.program.kept for out in op.outs if self.program.root(out) == out]
        sizes = [tape.values[out].nbytes for out in made if isinstance(where.get(out), Place)]
        return max(1, sum(sizes) // tape.rows)

    def count_terms(self, inputs: Tensor, targets: Tensor) -> Callable[[Units, int], int]:
        """How many products a unit of so many items adds to one parameter, where they are most."""
        units = Units.of_items(2)
        self._parameters = self.made_up()
        x, y = (each.new_zeros(2, *each.shape[1:]) for each in (inputs, targets))
        found = merge_uses(self.run(x, y, units)).shares
        shares = [share for share in found if not isinstance(share, Rows)]  # which are one product, and large
        return lambda units, size: max((share.terms(units, size) for share in shares), default=1)

    def run(self, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """The shares of every parameter."""
        found = Pass(self.flows, self.proof, inputs.shape[0], units)
        values = self.call(self.program.operations, found.take, self._parameters, inputs, targets)
        return found.finish(dict(zip(self.flows.shared, values, strict=True)))

    def call(
        self, operations: Operations, take: Take, parameters: Sequence[Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the program with these operations; `take` is given every end's operands.

        Inputs lie in memory as they were recorded, and as kernels were tried, however they are handed over.
        """
        key = () if self._key is None else tuple(torch.tensor(word) for word in self._key.words)
        values: tuple[Tensor, ...] = self.program.function(
            inputs.shape[0],
            operations,
            take,
            *parameters,
            align(inputs.contiguous()),
            align(targets.contiguous()),
            *key,
        )
        return values


def _record(model: nn.Module, loss: Loss, layout: Layout, inputs: Tensor, targets: Tensor) -> Tape:
    parameters = dict(model.named_parameters())

    def program(recorder: Recorder) -> Sequence[Tensor | None]:
        leaves = {name: recorder.input(name, parameters[name].detach()).requires_grad_() for name in layout.names}
        x = recorder.input("inputs", inputs, inputs.shape)
        y = recorder.input("targets", targets, targets.shape)

        def differentiate(placed: nn.Module) -> Any:
            losses = vmap(lambda output, target: loss(output[None], target[None]))(placed(x), y)
            ones = torch.ones_like(losses)
            return torch.autograd.grad(losses, list(leaves.values()), ones, allow_unused=True)

        with WholeRecurrent(), _key_as_input(model, recorder):
            found: Sequence[Tensor | None] = compute_at(model, leaves, differentiate)  # type: ignore[assignment]
        return found

    return record(SIZES[0], program)


@contextmanager
def _key_as_input(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """The words of the step's key, with which a model's dropout draws, as inputs of the program."""
    if not isinstance(model, DropoutByItem):
        yield
        return
    before, word = model.key.words, torch.zeros((), dtype=torch.int64)
    model.key.words = recorder.input("key 1", word), recorder.input("key 2", word)
    try:
        yield
    finally:
        model.key.words = before
