"""A function of items without gradients, as a proved program: what a model predicts, or what its frozen part makes."""

from collections.abc import Callable

import torch
from torch import Tensor

from wholegrain.clipping.program import Program
from wholegrain.clipping.recurrent import WholeRecurrent
from wholegrain.clipping.rows import Place, Proof
from wholegrain.clipping.tape import NotTraceable, Tape
from wholegrain.clipping.trace import SIZES, Recorder, record

View = Callable[[Tensor], Tensor]


def prove_view(view: View, like: Tensor) -> View | None:
    """The same function as a program in which rows stay apart; None where that is not proved."""
    try:
        proof = Proof.of(_record(view, like), ("inputs",))
    except NotTraceable:
        return None
    (output,) = proof.tape.outputs
    if output is None or proof.where[output] != Place(0):
        return None
    program = Program(proof, wanted=(output,))

    def proved(rows: Tensor) -> Tensor:
        found: tuple[Tensor] = program.function(len(rows), program.operations, None, rows)
        return found[0]

    return proved


def _record(view: View, like: Tensor) -> Tape:
    def program(recorder: Recorder) -> tuple[Tensor]:
        with torch.no_grad(), WholeRecurrent():
            return (view(recorder.input("inputs", like, like.shape)),)

    return record(SIZES[0], program)
