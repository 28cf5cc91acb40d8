"""The proof that rows stay apart: where the rows of every value lie, operation by operation.

A value has rows along one of its dimensions, or none. Each rule says for one kind of operation where the rows of its
result lie, given where those of its arguments do, and holds for every value that these may have. What has no rule, or
lets rows meet, is refused. There is one exception, an *end*: an operation that adds rows up into the gradient of a
parameter. What comes after an end must be linear in it and may not meet rows again.

Guarantee: for a tape that is accepted, and all finite values, row i of each value with a place is a function of row i
of the inputs that carry rows and of what is shared, the same function for every i and every number of rows; and a
summed value is the sum of one such function over the rows.

The size of every value was seen at two numbers of rows, and a rule that errs about where rows lie is found out by it.
"""

from dataclasses import dataclass

import torch

import wholegrain.clipping.row_rules_layers  # noqa: F401 – registers its rules
from wholegrain.clipping.row_places import RULES, Call, End, Facts, Found, Kind, Meet, Place, Where, rule
from wholegrain.clipping.row_rules_shapes import filled
from wholegrain.clipping.row_rules_values import pointwise
from wholegrain.clipping.row_sums import after_end
from wholegrain.clipping.tape import NotTraceable, Op, Tape

__all__ = ["RULES", "Call", "End", "Kind", "Meet", "Place", "Proof", "Where", "rule"]

POINTWISE = torch.Tag.pointwise
FILLS = frozenset({"zeros", "ones", "full", "scalar_tensor"})


@dataclass(frozen=True)
class Proof:
    """Where the rows of every value of a tape lie, and its ends."""

    tape: Tape
    where: dict[int, Where]
    ends: list[End]

    @staticmethod
    def of(tape: Tape, carries: tuple[str, ...]) -> "Proof":
        """Of a tape whose inputs of these names have rows along their first dimension."""
        where: dict[int, Where] = {
            number: Place(0) if name in carries else Kind.SHARED for name, number in tape.inputs.items()
        }
        facts = Facts(tape, where | dict.fromkeys(tape.constants, Kind.SHARED))
        for number in where:
            if (tape.counts.get(number) == 0) != isinstance(where[number], Place):
                raise NotTraceable("an input has rows where none are expected, or none where they are")
        for op in tape.ops:
            try:
                _take(facts, op)
            except Meet as found:
                raise NotTraceable(f"in {op.name} {found}", op.line) from found
        return Proof(tape, facts.where, facts.ends)


def _take(facts: Facts, op: Op) -> None:
    found = _find(Call(facts, op))
    places = found if isinstance(found, tuple) else (found,) * len(op.outs)
    for out, place in zip(op.outs, places, strict=True):
        _require_size(facts.tape, out, place)
        facts.where[out] = place


def _find(call: Call) -> Found:
    kinds = [call.where(each) for each in call.tensors]
    torchs, counted = call.op.target.namespace == "aten", any(out in call.facts.tape.counts for out in call.op.outs)
    if call.op.counts_rows and not counted and all(each.number not in call.facts.tape.counts for each in call.tensors):
        # a size that was cut short when it was recorded
        raise Meet("a number of rows is used that its result does not have")
    if call.name in FILLS:
        return filled(call)
    if Kind.SUMMED in kinds:
        return after_end(call)
    if torchs and all(kind is Kind.SHARED for kind in kinds) and not counted:
        return Kind.SHARED
    if call.name in RULES:
        return RULES[call.name](call)
    if torchs and POINTWISE in call.op.target.tags:
        return pointwise(call)
    raise Meet("nobody has shown that rows stay apart")


def _require_size(tape: Tape, out: int, place: Where) -> None:
    """Guarantee: a value's size follows the number of rows along the dimension where they are said to lie, or not."""
    dim = tape.counts.get(out)
    if isinstance(place, Place):
        if dim != place.dim or tape.shape(out)[dim] != place.outer * tape.rows * place.inner:
            raise Meet("a value does not have all rows")
    elif (dim is None) == (place is Kind.NUMBERS) or (dim is not None and tape.shape(out)[dim] != tape.rows):
        raise Meet("what becomes of a row hangs on its place in the batch")
