"""A program as a list of ATen operations on numbered values, and what two recordings of it must have in common."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from math import isnan
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


class NotTraceable(Exception):  # noqa: N818 – a fact, not an error: another way is taken
    """A fact about a model's program because of which its rows cannot be proved to stay apart; and where it stands."""

    def __init__(self, reason: str, line: str = "") -> None:
        super().__init__(f"{reason} ({line})" if line else reason)
        self.reason, self.line = reason, line


@dataclass(frozen=True)
class Ref:
    """A value of the program, by its number."""

    number: int


@dataclass(frozen=True)
class Sized:
    """A size that is so many times the number of rows."""

    times: int


@dataclass(eq=False)
class Op:
    """One operation: its arguments, in which values are references, and the numbers of what it gives.

    No operation writes into a value: what a program does in place was recorded as making a new one.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]
    line: str
    several: bool
    """Whether it gives a tuple, however long; `outs` has no numbers for what is None in it."""

    @property
    def inputs(self) -> list[int]:
        """The numbers of its arguments, in order."""
        return list(find_refs((self.args, self.kwargs)))

    @property
    def name(self) -> str:
        """As torch calls it, without the overload; with the library's name, where that is not torch's own."""
        return name_of(self.target)

    @property
    def mutates(self) -> bool:
        """Whether it writes into an argument: no operation of a tape does."""
        return bool(self.target._schema.is_mutable)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Its arguments with their names in the schema."""
        for each, value in zip(self.target._schema.arguments, self.args, strict=False):
            yield each.name, value
        yield from self.kwargs.items()


@dataclass(eq=False)
class Tape:
    """All operations in their order, with the shape of every value, tensors that are kept, and inputs and outputs."""

    rows: int
    ops: list[Op] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    """A tensor without memory for each value."""
    inputs: dict[str, int] = field(default_factory=dict)
    constants: dict[int, Tensor] = field(default_factory=dict)
    outputs: list[int | None] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """For each value whose size follows the number of rows, the dimension that does."""
    made: set[int] = field(default_factory=set)
    """Constants that the program makes itself, so that nobody changes them."""

    def shape(self, number: int) -> tuple[int, ...]:
        """Of a value."""
        return tuple(self.values[number].shape)


def find_refs(tree: Any) -> Iterator[int]:
    """The numbers of all values in a tree of arguments."""
    if isinstance(tree, Ref):
        yield tree.number
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from find_refs(each)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from find_refs(each)


def map_tree(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree of tuples, lists and dicts with other leaves."""
    if isinstance(tree, (list, tuple)):
        return tuple(map_tree(change, each) for each in tree) if isinstance(tree, tuple) else [
            map_tree(change, each) for each in tree
        ]  # fmt: skip
    if isinstance(tree, dict):
        return {key: map_tree(change, each) for key, each in tree.items()}
    return change(tree)


@cache
def name_of(target: Any) -> str:
    """Of an operation: "mm" for aten::mm.default, and "mine::mm" for anybody else's."""
    library, _, name = target.name().partition("::")
    name = name.partition(".")[0]
    return str(name if library == "aten" else f"{library}::{name}")


SIZED = frozenset({"size", "sizes", "shape", "input_size", "input_sizes", "repeats", "end", "N"})
"""Arguments by which an operation is told how many rows there are; elsewhere such a number would be a value."""


def compare(one: Tape, other: Tape) -> None:
    """Note in one tape which sizes count rows; refused where two numbers of rows make two programs.

    Guarantee: every value that is not in `counts` has the same shape for both, every number in the program is the
    same for both, and every tensor that is kept. So the tape is the program for any number of rows.
    """
    if len(one.ops) != len(other.ops) or one.outputs != other.outputs or one.inputs != other.inputs:
        raise NotTraceable("its program changes from call to call, or with the number of rows", _parting(one, other))
    for this, that in zip(one.ops, other.ops, strict=True):
        if this.target is not that.target or this.outs != that.outs or set(this.kwargs) != set(that.kwargs):
            raise NotTraceable("its program changes from call to call, or with the number of rows", this.line)
        _merge_arguments(this, that, (one.rows, other.rows))
    for number, kept in one.constants.items():
        second = other.constants.get(number)
        if second is not kept and not (second is not None and _same_tensor(kept, second)):
            raise NotTraceable("a tensor that it makes changes from call to call, or with the number of rows")
    for number, (empty, another) in enumerate(zip(one.values, other.values, strict=True)):
        _note_count(one, other.rows, number, empty, another)


def _parting(one: Tape, other: Tape) -> str:
    """The line of the first operation that is another one."""
    lines = (a.line for a, b in zip(one.ops, other.ops, strict=False) if a.target is not b.target)
    return next(lines, "")


class _Differ(Exception):  # noqa: N818
    """Two recordings have other arguments."""


def _merge_arguments(op: Op, other: Op, rows: tuple[int, int]) -> None:
    names = [each.name for each in op.target._schema.arguments]
    try:
        pairs = zip(names, op.args, other.args, strict=False)
        args = tuple(_merge(one, two, name in SIZED, rows) for name, one, two in pairs)
        op.kwargs = {name: _merge(one, other.kwargs[name], name in SIZED, rows) for name, one in op.kwargs.items()}
        if not len(args) == len(op.args) == len(other.args):
            raise _Differ
        op.args = args
    except _Differ as found:
        what = f"in {op.name} a number changes from call to call, or with the number of rows"
        raise NotTraceable(what, op.line) from found


def _merge(one: Any, other: Any, sized: bool, rows: tuple[int, int]) -> Any:
    """An argument that both have; sizes in proportion to the rows are so many times their number."""
    if type(one) is not type(other):
        raise _Differ
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            raise _Differ
        return type(one)(_merge(a, b, sized, rows) for a, b in zip(one, other, strict=True))
    if one == other or (isinstance(one, float) and isnan(one) and isnan(other)):
        return one
    if sized and type(one) is int and one % rows[0] == 0 and one * rows[1] == other * rows[0]:
        return Sized(one // rows[0])
    raise _Differ


def _same_tensor(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata or torch.allclose(
        one, other, rtol=0.0, atol=0.0, equal_nan=one.is_floating_point()
    )


def _note_count(tape: Tape, rows: int, number: int, one: Tensor, other: Tensor) -> None:
    if one.dtype != other.dtype or one.dim() != other.dim():
        raise NotTraceable("the kind of a value changes from call to call, or with the number of rows")
    differ = [dim for dim in range(one.dim()) if one.shape[dim] != other.shape[dim]]
    if not differ:
        return
    line = next((op.line for op in tape.ops if number in op.outs), "")
    if len(differ) > 1:
        raise NotTraceable("rows meet other rows: a value has two dimensions that count them", line)
    dim = differ[0]
    if one.shape[dim] * rows != other.shape[dim] * tape.rows:
        raise NotTraceable("a value has not as many places for every row", line)
    tape.counts[number] = dim


def simplify(tape: Tape, known: dict[int, Tensor]) -> None:
    """Keep the values of what depends on nothing from outside, and drop what nothing depends on."""
    ops, folded = [], set(tape.constants) & set(known)
    for op in tape.ops:
        if all(out in known and out not in tape.counts for out in op.outs) and folded.issuperset(op.inputs):
            folded.update(op.outs)
        else:
            ops.append(op)
    used, kept = {number for number in tape.outputs if number is not None}, []
    for op in reversed(ops):
        if used.intersection(op.outs):
            used.update(op.inputs)
            kept.append(op)
    tape.ops = kept[::-1]
    given = {number: known[number] for number in folded} | tape.constants
    tape.constants = {number: value for number, value in given.items() if number in used}
    tape.made = folded.intersection(used)
