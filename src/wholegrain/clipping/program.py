"""A proved tape as a Python function: it runs every operation that an end needs, and gives the operands of each end."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from wholegrain.clipping.products import product_for
from wholegrain.clipping.rows import Kind, Place, Proof
from wholegrain.clipping.tape import Op, Ref, Sized, Tape, aten

Run = Callable[..., Any]
Operations = Sequence[Callable[..., Any]]
"""What is called for each operation that is run."""
Take = Callable[[int, tuple[Any, ...]], None]
"""Is given the number of an end and its operands."""


class Program:
    """The operations that the ends of a proved tape need, or its outputs, as one function."""

    def __init__(self, proof: Proof, ends: Collection[int] = (), wanted: Sequence[int] = ()) -> None:
        """Of these ends; `wanted` are values that are outputs by themselves."""
        self.proof, self.tape = proof, proof.tape
        self.wanted = tuple(wanted)
        self._ends = {end.op: number for number, end in enumerate(proof.ends) if number in ends}
        self._roots = _find_roots(self.tape)
        self.kept = self._keep()
        self.source, names = _Writer(self).write()
        scope: dict[str, Any] = dict(names)
        exec(compile(self.source, "<clipped sum>", "exec"), scope)
        self.function: Run = scope["run"]
        self.operations: Operations = [self._operation(op) for op, _ in self.kept]

    def root(self, number: int) -> int:
        """The value whose memory this one is a view of."""
        return self._roots.get(number, number)

    def _keep(self) -> list[tuple[Op, bool]]:
        """Operations that are run, in order; and whether as an end, of which only what is no sum is computed."""
        needed = set(self.wanted)
        kept: list[tuple[Op, bool]] = []

        for op in reversed(self.tape.ops):
            ends = op in self._ends
            if ends or any(out in needed for out in op.outs):
                needed.update(op.inputs)
                kept.append((op, ends))
        return kept[::-1]

    def _operation(self, op: Op) -> Callable[..., Any]:
        """What computes it; a product with a matrix that everybody shares, by the faster library."""
        if op.target in PRODUCTS and not op.kwargs:
            right = op.args[-1]
            if isinstance(right, Ref) and self.proof.where[right.number] is Kind.SHARED:
                return product_for(op.target, self.tape.values[right.number])
        operation: Callable[..., Any] = op.target._op
        return operation

    def end_of(self, op: Op) -> int:
        """The number of the end that an operation is."""
        return self._ends[op]


def _find_roots(tape: Tape) -> dict[int, int]:
    roots: dict[int, int] = {}
    for op in tape.ops:
        if not op.inputs:
            continue
        returns = op.target._schema.returns
        views = bool(returns) and returns[0].alias_info is not None
        if views or op.name in ("reshape", "contiguous", "_unsafe_view", "_to_copy"):
            for out in op.outs:
                roots[out] = roots.get(op.inputs[0], op.inputs[0])
    return roots


PRODUCTS = (aten.mm.default, aten.addmm.default)
WITHOUT_SUMS = {"convolution_backward": -1, "native_layer_norm_backward": -1, "native_group_norm_backward": -1,
                "native_batch_norm_backward": -1}  # fmt: skip
"""Ends that also have a result with rows, and where they are told what is wanted of them."""


class _Writer:
    """Writes the function."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: dict[str, Any] = {"torch": torch}
        self._constants = set(program.tape.constants)

    def write(self) -> tuple[str, dict[str, Any]]:
        program = self.program
        body = [list(self._line(number, op, ends)) for number, (op, ends) in enumerate(program.kept)]
        self._free(body)
        inputs = ", ".join(f"v{number}" for number in program.tape.inputs.values())
        lines = [f"def run(rows, ops, take, {inputs}):"]
        lines += [f"    {line}" for each in body for line in each]
        lines.append(f"    return ({''.join(f'{self._value(number)}, ' for number in program.wanted)})")
        return "\n".join(lines) + "\n", self.names

    def _line(self, number: int, op: Op, ends: bool) -> Iterator[str]:
        if ends:
            yield self._take(op)
            if op.name not in WITHOUT_SUMS or not _place_out(self.program.proof, op):
                return
        if op.name in ("detach", "alias") and not ends:
            yield f"v{op.outs[0]} = {self._value(op.inputs[0])}"
            return
        args = [self._text(each) for each in op.args]
        if ends:
            args[WITHOUT_SUMS[op.name]] = "[True, False, False]"
        args += [f"{name}={self._text(value)}" for name, value in op.kwargs.items()]
        call = f"ops[{number}]({', '.join(args)})"
        if not op.several or ends:
            yield f"v{op.outs[0]} = {call}" + ("[0]" if ends else "")
            return
        named = dict(zip(result_places(op), op.outs, strict=True))
        outs = [f"v{named[place]}" if place in named else "_" for place in range(max(named) + 1)]
        yield f"{', '.join(outs)}, *_ = {call}"

    def _take(self, op: Op) -> str:
        values = "".join(f"{self._value(each)}, " for each in op.inputs)
        return f"take({self.program.end_of(op)}, ({values}))"

    def _value(self, number: int) -> str:
        if number in self._constants:
            self.names[f"v{number}"] = self.program.tape.constants[number]
        return f"v{number}"

    def _text(self, value: Any) -> str:
        if isinstance(value, Ref):
            return self._value(value.number)
        if isinstance(value, Sized):
            return f"rows * {value.times}" if value.times != 1 else "rows"
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self._text(each) for each in value)
            return f"[{inner}]"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f"float('{value}')"
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        return repr(value)

    def _free(self, body: list[list[str]]) -> None:
        """Forget every value after the operation that uses it last."""
        inputs, wanted = set(self.program.tape.inputs.values()), set(self.program.wanted)
        last: dict[int, int] = {}
        for number, (op, ends) in enumerate(self.program.kept):
            for each in (*op.inputs, *(op.outs if not ends or len(body[number]) > 1 else ())):
                last[each] = number
        for number, (op, ends) in enumerate(self.program.kept):
            outs = op.outs[:1] if ends else op.outs
            made = {*op.inputs, *(outs if len(body[number]) > (1 if ends else 0) else ())}
            kept = wanted | inputs | self._constants
            gone = [f"v{each}" for each in sorted(made - kept) if last.get(each) == number]
            if gone:
                body[number].append(f"del {', '.join(gone)}")


def _place_out(proof: Proof, op: Op) -> bool:
    return bool(op.outs) and isinstance(proof.where.get(op.outs[0]), Place)


def result_places(op: Op) -> list[int]:
    """The place of every value of an operation among its results, of which a mask may leave out some."""
    names = [each.name for each in op.target._schema.arguments]
    if "output_mask" not in names:
        return list(range(len(op.outs)))
    at = names.index("output_mask")
    mask = op.args[at] if at < len(op.args) else op.kwargs["output_mask"]
    return [place for place, wanted in enumerate(mask) if wanted]
