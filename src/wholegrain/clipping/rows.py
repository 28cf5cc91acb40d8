"""The proof that rows stay apart: where the rows of every value lie, operation by operation.

A value has rows along one of its dimensions, or none. Each rule below says for one kind of operation where the rows of
its result lie, given where those of its arguments do, and holds for every value that these may have. What has no rule,
or lets rows meet, is refused. There is one exception, an *end*: an operation that adds rows up into the gradient of a
parameter. What comes after an end must be linear in it and may not meet rows again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import torch

from wholegrain.clipping.trace import NotTraceable, Op, Ref, Tape, aten

POINTWISE = torch.Tag.pointwise


@dataclass(frozen=True)
class Place:
    """Where rows lie: dimension `dim` has outer × rows × inner places; the middle number is the row."""

    dim: int
    inner: int = 1
    outer: int = 1


class Kind(Enum):
    """Of values without rows."""

    SHARED = "shared"
    """The same for everybody: made of parameters and constants."""
    SUMMED = "summed"
    """Rows added up: the result of an end, or linear in such results."""
    NUMBERS = "numbers"
    """The numbers of the rows, 0, 1, …: good for nothing but to pick from each row something of its own."""


Where = Place | Kind


@dataclass(frozen=True)
class End:
    """An operation that adds rows up, as far as `outs` of its results are concerned."""

    op: Op
    rule: str
    outs: tuple[int, ...]


class Meet(Exception):
    """Rows meet, for a reason."""


@dataclass(eq=False)
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
        proof = Proof(tape, where | dict.fromkeys(tape.constants, Kind.SHARED), [])
        for op in tape.ops:
            try:
                proof._take(op)
            except Meet as found:
                raise NotTraceable(f"in {op.name} {found}", op.line) from found
        return proof

    def _take(self, op: Op) -> None:
        call = Call(self, op)
        found = self._find(call)
        places = found if isinstance(found, tuple) else (found,) * len(op.outs)
        if op.mutates:
            self._require_same(call, places[0])
        for out, place in zip(op.outs, places, strict=True):
            self._require_size(out, place)
            self.where[out] = place

    def _find(self, call: "Call") -> "Found":
        kinds = [self.where[number] for number in call.op.inputs]
        rule = RULES.get(call.op.name)
        if any(kind is Kind.SUMMED for kind in kinds):
            return _linear(call, kinds)
        if all(kind is Kind.SHARED for kind in kinds) and not self._scales(call.op):
            return Kind.SHARED
        if rule is not None:
            return rule(call)
        if POINTWISE in call.op.target.tags:
            return pointwise(call)
        raise Meet("nobody has shown that rows stay apart")

    def _scales(self, op: Op) -> bool:
        return any(size % self.tape.rows == 0 and size for out in op.outs for size in self.tape.shape(out))

    def _require_same(self, call: "Call", place: Where) -> None:
        """What is written in place stays where it was."""
        target = call.op.args[0]
        if isinstance(target, Ref) and self.where[target.number] != place:
            raise Meet("the batch is written into a value whose rows lie elsewhere")

    def _require_size(self, out: int, place: Where) -> None:
        """Guarantee: rows are as many as the tape has, where they are said to be, and along no other dimension."""
        if isinstance(place, Place):
            shape = self.tape.shape(out)
            if place.dim >= len(shape) or shape[place.dim] != place.outer * self.tape.rows * place.inner:
                raise Meet("a value does not have all rows")

    def end(self, call: "Call", rule: str, outs: tuple[int, ...]) -> None:
        """Note an end."""
        self.ends.append(End(call.op, rule, outs))


Found = Where | tuple[Where, ...]


@dataclass(eq=False)
class Call:
    """An operation, and where its arguments' rows lie."""

    proof: Proof
    op: Op

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in the schema, or its default."""
        for number, each in enumerate(self.op.target._schema.arguments):
            if each.name == name:
                if number < len(self.op.args) and not each.kwarg_only:
                    return self.op.args[number]
                return self.op.kwargs.get(name, each.default_value if each.has_default_value() else None)
        raise KeyError(name)

    @property
    def rows(self) -> int:
        """Of the tape."""
        return self.proof.tape.rows

    def where(self, value: Any) -> Where:
        """Of a value; what is none is shared."""
        return self.proof.where[value.number] if isinstance(value, Ref) else Kind.SHARED

    def shape(self, value: Ref) -> tuple[int, ...]:
        """Of a value."""
        return self.proof.tape.shape(value.number)

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.proof.tape.shape(self.op.outs[0])

    def place(self, value: Any) -> Place:
        """Of a value that must have rows."""
        found = self.where(value)
        if not isinstance(found, Place):
            raise Meet("a value without rows stands where rows are expected")
        return found

    def shared(self, *values: Any) -> None:
        """Refuse values that have rows."""
        for each in values:
            for one in each if isinstance(each, (list, tuple)) else (each,):
                if self.where(one) is not Kind.SHARED:
                    raise Meet("a value that everybody shares depends on the batch")

    def dim(self, dim: int, of: Ref) -> int:
        """A dimension, counted from the front."""
        return dim % max(1, len(self.shape(of)))


Rule = Callable[[Call], Found]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations with these names."""

    def keep(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return keep


@rule(
    "clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh_copy", "lift_fresh", "copy_", "fill_",
    "masked_fill", "masked_fill_", "where", "zero_", "dropout", "triu", "tril", "nan_to_num", "zeros_like",
    "ones_like", "full_like", "threshold_backward", "_prelu_kernel", "_prelu_kernel_backward",
    "rrelu_with_noise", "softplus_backward", "native_dropout_backward", "copysign", "logical_not", "fmod",
)  # fmt: skip
def pointwise(call: Call) -> Found:
    """Each value of the result comes from the values at the same place of the arguments, which are broadcast."""
    size, found = len(call.out), set[Place]()
    tensors = [Ref(number) for number in call.op.inputs]
    for each in tensors:
        where, shape = call.where(each), call.shape(each)
        if isinstance(where, Place):
            found.add(Place(where.dim + size - len(shape), where.inner, where.outer))
        elif where is not Kind.SHARED:
            raise Meet("the numbers of rows are used as values")
    if len(found) > 1:
        raise Meet("rows meet other rows, along different dimensions")
    if not found:
        return filled(call) if not tensors else Kind.SHARED
    (place,) = found
    if call.op.name in ("triu", "tril") and place.dim >= size - 2:
        raise Meet("what becomes of a row hangs on its place")
    for each in tensors:
        along = place.dim - size + len(call.shape(each))
        if along >= 0 and call.where(each) is Kind.SHARED and call.shape(each)[along] != 1:
            raise Meet("what becomes of a row hangs on its place in the batch")
    return place


@rule("zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "scalar_tensor")
def filled(call: Call) -> Found:
    """One value everywhere, so that every row has it."""
    scaled = [(dim, size) for dim, size in enumerate(call.out) if size and size % call.rows == 0]
    if not scaled:
        return Kind.SHARED
    if len(scaled) > 1:
        raise Meet("two dimensions count rows")
    return Place(scaled[0][0], scaled[0][1] // call.rows)


@rule("arange")
def numbers(call: Call) -> Found:
    """0, 1, … for each row."""
    if call.out == (call.rows,) and call["end"] == call.rows:
        names = {each.name for each in call.op.target._schema.arguments}
        if ("start" not in names or call["start"] == 0) and ("step" not in names or call["step"] == 1):
            return Kind.NUMBERS
    return Kind.SHARED


@rule("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unsqueeze_", "squeeze_", "_reshape_alias")
def view(call: Call) -> Found:
    """The same values in the same order."""
    (value,) = (Ref(number) for number in call.op.inputs)
    if call.op.name == "view" and isinstance(call.op.args[1], torch.dtype):
        place = call.place(value)
        if place.dim == len(call.shape(value)) - 1 and call.out != call.shape(value):
            raise Meet("rows are taken for other numbers")
        return place
    return (
        call.where(value)
        if call.where(value) is Kind.SHARED
        else moved(call.place(value), call.shape(value), call.out, call.rows)
    )


def moved(place: Place, old: tuple[int, ...], new: tuple[int, ...], rows: int) -> Place:
    """Where rows lie when values of one shape are read in another."""
    step = place.inner * prod(old[place.dim + 1 :])
    for dim, size in enumerate(new):
        after = prod(new[dim + 1 :])
        if step % after == 0 and size % (rows * (step // after)) == 0:
            inner = step // after
            return Place(dim, inner, size // (rows * inner))
    raise Meet("rows are cut across")


@rule("t", "transpose", "permute", "transpose_", "t_", "movedim", "swapaxes")
def permuted(call: Call) -> Found:
    """Dimensions in another order."""
    value = call["self"]
    if call.where(value) is Kind.SHARED:
        return Kind.SHARED
    place, dims = call.place(value), list(range(len(call.shape(value))))
    if call.op.name.startswith("permute"):
        order = [dim % len(dims) for dim in call["dims"]]
    else:
        one, other = (0, len(dims) - 1) if call.op.name[0:2] in ("t", "t_") else (call["dim0"], call["dim1"])
        one, other, order = one % len(dims), other % len(dims), dims
        order[one], order[other] = order[other], order[one]
    return Place(order.index(place.dim), place.inner, place.outer)


@rule("expand", "repeat")
def expanded(call: Call) -> Found:
    """Copies along some dimensions; where these count rows, each row has one."""
    value = call["self"]
    old, new = call.shape(value), call.out
    if isinstance(call.where(value), Place):
        place, more = call.place(value), len(new) - len(old)
        if new[place.dim + more] != old[place.dim]:
            raise Meet("rows are repeated")
        return Place(place.dim + more, place.inner, place.outer)
    return filled(call)


@rule("select", "slice", "narrow", "slice_backward", "select_backward", "slice_scatter", "select_scatter",
      "split", "split_with_sizes", "unbind", "unfold", "chunk", "diagonal", "tensor_split")  # fmt: skip
def cut(call: Call) -> Found:
    """Along a dimension that does not count rows."""
    name = call.op.name
    if name == "diagonal":
        return _without(call, call["self"], (call["dim1"], call["dim2"]), keep=False)
    value = call["grad_output"] if name.endswith("_backward") else call["self"]
    place = call.place(value)
    shape = call.out if name.endswith("_backward") else call.shape(value)
    dim = (call["dim"] if name != "unfold" else call["dimension"]) % len(shape)
    if name.endswith("_scatter"):
        other = call.place(call["src"])
        removed = name == "select_scatter" and place.dim > dim
        if other != Place(place.dim - removed, place.inner, place.outer):
            raise Meet("rows meet other rows")
    if name == "select_backward":
        at = place.dim + (1 if place.dim >= dim else 0)
        return Place(at, place.inner, place.outer)
    if place.dim == dim:
        whole = name in ("slice", "slice_backward") and call.out[dim] == call.shape(value)[dim] == shape[dim]
        if whole and call["step"] == 1:
            return place
        raise Meet("some rows are taken out of the batch")
    gone = name in ("select", "unbind") and place.dim > dim
    return Place(place.dim - gone, place.inner, place.outer)


@rule("cat", "stack", "_chunk_cat")
def joined(call: Call) -> Found:
    """Along a dimension that does not count rows."""
    tensors = [each for each in call["tensors"] if prod(call.shape(each))]
    if all(call.where(each) is Kind.SHARED for each in tensors):
        return Kind.SHARED
    places = {call.place(each) for each in tensors}
    if len(places) != 1:
        raise Meet("rows meet other rows, along different dimensions")
    (place,), size = places, len(call.out)
    dim = call["dim"] % size
    if call.op.name == "stack":
        return Place(place.dim + (place.dim >= dim), place.inner, place.outer)
    if dim == place.dim:
        raise Meet("rows are put behind rows")
    return place


def _dims(call: Call, value: Ref) -> tuple[int, ...]:
    """The dimensions that an operation works along: all of them, if none is named."""
    names = {each.name for each in call.op.target._schema.arguments}
    given = call["dim"] if "dim" in names else call["dims"] if "dims" in names else None
    size = len(call.shape(value))
    if given is None or given == []:
        return tuple(range(size))
    return tuple(dim % max(1, size) for dim in (given if isinstance(given, (list, tuple)) else (given,)))


def _without(call: Call, value: Ref, dims: tuple[int, ...], keep: bool) -> Found:
    """After a reduction along dimensions."""
    place = call.place(value)
    dims = tuple(dim % len(call.shape(value)) for dim in dims)
    if place.dim in dims:
        raise Meet("values of several rows are put together")
    gone = 0 if keep else sum(dim < place.dim for dim in dims)
    return Place(place.dim - gone, place.inner, place.outer)


@rule("sum", "mean", "amax", "amin", "var", "std", "var_mean", "std_mean", "logsumexp", "prod", "any", "all", "argmax",
      "argmin", "linalg_vector_norm", "norm", "max", "min", "median", "nanmedian", "mode", "kthvalue", "aminmax",
      "count_nonzero", "nansum")  # fmt: skip
def reduced(call: Call) -> Found:
    """Along dimensions that do not count rows; a sum along that which does is an end."""
    value = call.op.args[0]
    if call.op.name in ("max", "min") and len(call.op.inputs) == 2:
        return pointwise(call)
    names = {each.name for each in call.op.target._schema.arguments}
    dims, keep = _dims(call, value), bool(call["keepdim"]) if "keepdim" in names else False
    if call.op.name == "sum" and call.place(value).dim in dims:
        call.proof.end(call, "sum", (0,))
        return Kind.SUMMED
    return _without(call, value, dims, keep)


@rule("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "sort", "topk", "flip", "roll", "cummax",
      "cummin", "argsort", "renorm", "glu", "softmax", "log_softmax", "_safe_softmax")  # fmt: skip
def along(call: Call) -> Found:
    """Within lines along dimensions that do not count rows."""
    value = call.op.args[0]
    return _without(call, value, _dims(call, value), keep=True)


@rule("_softmax_backward_data", "_log_softmax_backward_data", "glu_backward")
def along_backward(call: Call) -> Found:
    """As forward, for a gradient and what was computed from it."""
    pair = [Ref(number) for number in call.op.inputs][:2]
    if call.place(pair[0]) != call.place(pair[1]):
        raise Meet("rows meet other rows")
    return _without(call, pair[0], (call["dim"],), keep=True)


@rule("value_selecting_reduction_backward")
def selected_backward(call: Call) -> Found:
    """Back to the places from which values were selected."""
    raise Meet("nobody has shown that rows stay apart")


@rule("gather", "scatter", "scatter_add", "scatter_", "scatter_add_", "scatter_reduce", "index_add", "index_copy")
def gathered(call: Call) -> Found:
    """By index along a dimension that does not count rows."""
    name = call.op.name
    tensors = [Ref(number) for number in call.op.inputs]
    dim = call["dim"] % len(call.shape(call["self"]))
    if name.startswith("index_"):
        call.shared(call["index"])
        tensors = [call["self"], call["source"]]
    if name == "gather" and call.where(call["self"]) is Kind.SHARED:
        if call.place(call["index"]).dim == dim:
            return call.place(call["index"])
        raise Meet("what becomes of a row hangs on its place in the batch")
    places = {call.place(each) for each in tensors}
    if len(places) != 1:
        raise Meet("rows meet other rows")
    (place,) = places
    if place.dim == dim or len({call.shape(each)[place.dim] for each in tensors}) != 1:
        raise Meet("rows are looked up by other rows")
    return place


@rule("embedding", "index_select")
def looked_up(call: Call) -> Found:
    """Rows of a table that everybody shares; or, by a shared index, along another dimension."""
    index = call["indices"] if call.op.name == "embedding" else call["index"]
    table = call.op.args[0]
    if call.where(index) is Kind.SHARED:
        return _without(call, table, (call["dim"],), keep=True)
    call.shared(table)
    place, dim = call.place(index), 0 if call.op.name == "embedding" else call["dim"] % len(call.shape(table))
    return Place(place.dim + dim, place.inner, place.outer)


@rule("embedding_dense_backward")
def table_end(call: Call) -> Found:
    """Rows added up into the table's."""
    place, index = call.place(call["grad_output"]), call.where(call["indices"])
    if call["scale_grad_by_freq"]:
        raise Meet("gradients are scaled by how often the batch has a token")
    if index not in (place, Kind.SHARED):
        raise Meet("rows meet other rows")
    if index is Kind.SHARED:
        raise Meet("nobody has shown that rows stay apart")
    call.proof.end(call, "table", (0,))
    return Kind.SUMMED


@rule("index", "_unsafe_index")
def indexed(call: Call) -> Found:
    """By tensors of indices: of each row something of its own, or along other dimensions for all rows alike."""
    value, indices = call["self"], call["indices"]
    return _indexed(call, value, indices, call.out)


def _indexed(call: Call, value: Ref, indices: Any, out: tuple[int, ...]) -> Place:
    """Where rows lie in value[indices]."""
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    if any(call.proof.tape.values[each.number].dtype in (torch.bool, torch.uint8) for _, each in given):
        raise Meet("how much is taken hangs on values")
    rank = max(len(call.shape(each)) for _, each in given)
    first = given[0][0] if all(b - a == 1 for (a, _), (b, _) in zip(given, given[1:], strict=False)) else 0
    wheres = [call.where(each) for _, each in given]
    if isinstance(call.where(value), Place):
        place = call.place(value)
        at = {dim: each for dim, each in given}
        if place.dim in at:
            return _own_row(call, place, at, rank, first)
        if any(where is not Kind.SHARED for where in wheres):
            raise Meet("rows are looked up by other rows")
        gone = sum(dim < place.dim for dim, _ in given)
        shift = rank if place.dim > first or first == 0 and given[0][0] != 0 else 0
        return Place(place.dim - gone + shift, place.inner, place.outer)
    if Kind.NUMBERS in wheres:
        raise Meet("what becomes of a row hangs on its place in the batch")
    places = {
        Place(where.dim + rank - len(call.shape(each)), where.inner, where.outer)
        for (_, each), where in zip(given, wheres, strict=True)
        if isinstance(where, Place)
    }
    if len(places) != 1:
        raise Meet("rows meet other rows")
    (place,) = places
    for _, each in given:  # what is broadcast against rows is the same for all of them
        along_rows = place.dim - rank + len(call.shape(each))
        if call.where(each) is Kind.SHARED and along_rows >= 0 and call.shape(each)[along_rows] != 1:
            raise Meet("what becomes of a row hangs on its place in the batch")
    return Place(place.dim + first, place.inner, place.outer)


def _own_row(call: Call, place: Place, at: dict[int, Ref], rank: int, first: int) -> Place:
    """From each row something of its own: x[arange(rows), index]."""
    if call.where(at[place.dim]) is not Kind.NUMBERS or place != Place(place.dim) or rank != 1:
        raise Meet("rows are looked up by other rows")
    for dim, each in at.items():
        where = call.where(each)
        if dim != place.dim and where != Place(0) and not (where is Kind.SHARED and prod(call.shape(each)) == 1):
            raise Meet("rows are looked up by other rows")
    return Place(first)


@rule("index_put", "index_put_", "_unsafe_index_put")
def put(call: Call) -> Found:
    """The way back of `index`: into each row's own, or an end, where the table is one that everybody shares."""
    value, indices, given = call["self"], call["indices"], call["values"]
    if isinstance(call.where(value), Place):
        place = call.place(value)
        picked = _indexed(call, value, indices, ())
        if isinstance(call.where(given), Place):
            rank = max(len(call.shape(each)) for each in indices if each is not None)
            size = len(call.shape(value)) - sum(each is not None for each in indices) + rank
            own = call.place(given)
            if Place(own.dim + size - len(call.shape(given)), own.inner, own.outer) != picked:
                raise Meet("rows meet other rows")
        elif prod(call.shape(given)) != 1:
            raise Meet("what becomes of a row hangs on its place in the batch")
        return place
    if not call["accumulate"]:
        raise Meet("rows are written over each other")
    if _indexed(call, value, indices, ()) != call.place(given):
        raise Meet("rows meet other rows")
    if not _is_zero(call.proof, value.number):
        raise Meet("rows are added to a value that everybody shares")
    call.proof.end(call, "put", (0,))
    return Kind.SUMMED


def _is_zero(proof: Proof, number: int) -> bool:
    """Whether a value is zeros, fresh and written once."""
    makers = [op for op in proof.tape.ops if number in op.outs]
    writers = [op for op in proof.tape.ops if op.mutates and number in op.inputs]
    zeros = all(op.name in ("zeros", "new_zeros", "zeros_like") for op in makers)
    kept = proof.tape.constants.get(number)
    return len(writers) <= 1 and (bool(makers) and zeros or kept is not None and not bool(kept.any()))


@rule("mm")
def multiplied(call: Call) -> Found:
    """A matrix with rows and one that everybody shares; two with rows are an end where they are added up."""
    one, other = call["self"], call["mat2"]
    left, right = call.where(one), call.where(other)
    if isinstance(left, Place) and isinstance(right, Place):
        if left.dim == 1 and right.dim == 0 and (left.inner, left.outer) == (right.inner, right.outer):
            call.proof.end(call, "product", (0,))
            return Kind.SUMMED
        raise Meet("rows are multiplied by other rows")
    if isinstance(left, Place) and right is Kind.SHARED and left.dim == 0:
        return left
    if isinstance(right, Place) and left is Kind.SHARED and right.dim == 1:
        return right
    raise Meet("values of several rows are added up")


@rule("mv")
def by_vector(call: Call) -> Found:
    """A matrix with rows and a vector that everybody shares."""
    left, right = call.where(call["self"]), call.where(call["vec"])
    if isinstance(left, Place) and right is Kind.SHARED and left.dim == 0:
        return left
    if isinstance(left, Place) and isinstance(right, Place) and left.dim == 1 and left.inner == right.inner:
        if left.outer == right.outer:
            call.proof.end(call, "product", (0,))
            return Kind.SUMMED
    raise Meet("values of several rows are added up")


@rule("addmm", "addmm_", "baddbmm", "baddbmm_", "addmv")
def added(call: Call) -> Found:
    """A product, and what is added to it."""
    if call.op.name.startswith("addmv"):
        names = ("mat", "vec")
    else:
        names = ("mat1", "mat2") if call.op.name.startswith("addmm") else ("batch1", "batch2")
    one, other = call[names[0]], call[names[1]]
    place = _batched(call, one, other) if call.op.name.startswith("b") else _single(call, one, other)
    start = call["self"]
    where, shape = call.where(start), call.shape(start)
    at = place.dim - len(call.out) + len(shape)
    if isinstance(where, Place):
        if Place(where.dim + len(call.out) - len(shape), where.inner, where.outer) != place:
            raise Meet("rows meet other rows")
    elif where is not Kind.SHARED or at >= 0 and shape[at] != 1:
        raise Meet("what becomes of a row hangs on its place in the batch")
    return place


def _single(call: Call, one: Ref, other: Ref) -> Place:
    left, right = call.where(one), call.where(other)
    if isinstance(left, Place) and right is Kind.SHARED and left.dim == 0:
        return left
    if isinstance(right, Place) and left is Kind.SHARED and right.dim == 1:
        return right
    raise Meet("values of several rows are added up")


def _batched(call: Call, one: Ref, other: Ref) -> Place:
    left, right = call.where(one), call.where(other)
    if isinstance(left, Place) and isinstance(right, Place):
        if left == right and left.dim == 0:
            return left
        raise Meet("rows are multiplied by other rows")
    if isinstance(left, Place) and right is Kind.SHARED and left.dim == 1:
        return left
    if isinstance(right, Place) and left is Kind.SHARED and right.dim == 2:
        return right
    raise Meet("values of several rows are added up")


@rule("bmm")
def batch_multiplied(call: Call) -> Found:
    """Matrices of each row; or an end, where two with rows are added up."""
    one, other = call["self"], call["mat2"]
    left, right = call.where(one), call.where(other)
    if isinstance(left, Place) and isinstance(right, Place) and (left.dim, right.dim) == (2, 1):
        if (left.inner, left.outer) == (right.inner, right.outer):
            call.proof.end(call, "products", (0,))
            return Kind.SUMMED
    return _batched(call, one, other)


@rule("convolution")
def convolved(call: Call) -> Found:
    """Each image by itself."""
    place = call.place(call["input"])
    call.shared(call["weight"], call["bias"])
    return _first(call, place)


@rule("convolution_backward")
def convolved_back(call: Call) -> Found:
    """Each image by itself; kernels and biases are ends."""
    g, x = call.place(call["grad_output"]), call.place(call["input"])
    call.shared(call["weight"])
    if g != x:
        raise Meet("rows meet other rows")
    _first(call, x)
    wanted = [number for number in (1, 2) if call["output_mask"][number]]
    if wanted:
        call.proof.end(call, "convolution", tuple(wanted))
    return _outs(call, x, Kind.SUMMED, Kind.SUMMED)


def _outs(call: Call, *places: Where) -> tuple[Where, ...]:
    """Places of those results that there are."""
    mask = call["output_mask"]
    return tuple(place for place, there in zip(places, mask, strict=True) if there)


def _first(call: Call, place: Place) -> Place:
    if place.dim != 0:
        raise Meet("rows lie where channels or places are expected")
    return place


@rule("native_layer_norm")
def layer_norm(call: Call) -> Found:
    """Each position by itself."""
    x = call["input"]
    place = call.place(x)
    call.shared(call["weight"], call["bias"])
    if place.dim >= len(call.shape(x)) - len(call["normalized_shape"]):
        raise Meet("values of several rows are put together")
    return (place,) * 3


@rule("native_layer_norm_backward")
def layer_norm_back(call: Call) -> Found:
    """Each position by itself; weight and bias are ends."""
    x = call["input"]
    place = call.place(x)
    call.shared(call["weight"], call["bias"])
    if any(call.place(call[each]) != place for each in ("grad_out", "mean", "rstd")):
        raise Meet("rows meet other rows")
    if place.dim >= len(call.shape(x)) - len(call["normalized_shape"]):
        raise Meet("values of several rows are put together")
    return _norm_end(call, "layer norm", place)


def _norm_end(call: Call, name: str, place: Place) -> Found:
    wanted = tuple(number for number in (1, 2) if call["output_mask"][number])
    if wanted:
        call.proof.end(call, name, wanted)
    return _outs(call, place, Kind.SUMMED, Kind.SUMMED)


@rule("native_group_norm")
def group_norm(call: Call) -> Found:
    """Each item by itself."""
    place = _first(call, call.place(call["input"]))
    call.shared(call["weight"], call["bias"])
    return (place,) * 3


@rule("native_group_norm_backward")
def group_norm_back(call: Call) -> Found:
    """Each item by itself; weight and bias are ends."""
    place = _first(call, call.place(call["input"]))
    call.shared(call["weight"])
    if any(call.place(call[each]) != place for each in ("grad_out", "mean", "rstd")):
        raise Meet("rows meet other rows")
    return _norm_end(call, "group norm", place)


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
      "_batch_norm_no_update", "cudnn_batch_norm")  # fmt: skip
def batch_norm(call: Call) -> Found:
    """By statistics that are kept, or of channels that belong to one row, as an instance norm has them."""
    names = {each.name for each in call.op.target._schema.arguments}
    x, training = call["input"], call["training"] if "training" in names else False
    place = call.place(x)
    if not training:
        call.shared(*(call[each] for each in ("weight", "bias", "running_mean", "running_var") if each in names))
        return (_first(call, place), *(Kind.SHARED for _ in call.op.outs[1:]))
    if place.dim != 1:
        raise Meet("a batch norm in training puts all rows together; use a group or layer norm, or call eval()")
    for each in ("weight", "bias"):
        if call[each] is not None and call.where(call[each]) != Place(0, place.inner, place.outer):
            raise Meet("rows meet other rows")
    return (place, *(Place(0, place.inner, place.outer) for _ in call.op.outs[1:]))


@rule("native_batch_norm_backward")
def batch_norm_back(call: Call) -> Found:
    """As forward."""
    x = call["input"]
    place = call.place(x)
    if call.place(call["grad_out"]) != place:
        raise Meet("rows meet other rows")
    if call["train"]:
        if place.dim != 1:
            raise Meet("a batch norm in training puts all rows together")
        own = Place(0, place.inner, place.outer)
        return _outs(call, place, own, own)
    call.shared(call["weight"], call["running_mean"], call["running_var"])
    return _norm_end(call, "batch norm", _first(call, place))


LAST = {
    1: "avg_pool1d max_pool1d reflection_pad1d replication_pad1d upsample_linear1d upsample_nearest1d _upsample_nearest_exact1d"
    " adaptive_avg_pool1d adaptive_max_pool1d max_pool1d_with_indices",
    2: "avg_pool2d max_pool2d_with_indices reflection_pad2d replication_pad2d upsample_bilinear2d upsample_nearest2d"
    " _upsample_nearest_exact2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _adaptive_avg_pool2d"
    " adaptive_max_pool2d fractional_max_pool2d pixel_shuffle pixel_unshuffle mkldnn_max_pool2d channel_shuffle"
    " max_pool2d",
    3: "avg_pool3d max_pool3d_with_indices reflection_pad3d replication_pad3d upsample_trilinear3d upsample_nearest3d"
    " _upsample_nearest_exact3d _adaptive_avg_pool3d adaptive_max_pool3d max_pool3d",
}  # fmt: skip


def _of_images(last: int) -> Rule:
    def found(call: Call) -> Found:
        """Each channel of an image by itself, or each image."""
        places = {call.place(Ref(number)) for number in call.op.inputs}
        if len(places) != 1:
            raise Meet("rows meet other rows")
        (place,) = places
        if place.dim != 0 or len(call.out) < last + 1:
            raise Meet("rows lie where places of an image are expected")
        return place

    return found


for _last, _names in LAST.items():
    rule(*_names.split(), *(f"{name}_backward" for name in _names.split()))(_of_images(_last))
rule("im2col", "col2im")(_of_images(1))


@rule("constant_pad_nd")
def padded(call: Call) -> Found:
    """Along the last dimensions, which do not count rows."""
    place, size = call.place(call["self"]), len(call.out)
    touched = {size - 1 - k // 2 for k, each in enumerate(call["pad"]) if each}
    if place.dim in touched:
        raise Meet("rows are put behind rows")
    return place


@rule("nll_loss_forward", "nll_loss2d_forward")
def loss_of_class(call: Call) -> Found:
    """Of each row by itself."""
    if call["reduction"] != 0 or call.place(call["self"]) != call.place(call["target"]):
        raise Meet("values of several rows are put together")
    call.shared(call["weight"])
    return call.place(call["self"]), Kind.SHARED


@rule("nll_loss_backward", "nll_loss2d_backward")
def loss_of_class_back(call: Call) -> Found:
    """As forward."""
    place = call.place(call["self"])
    if call["reduction"] != 0 or any(call.place(call[each]) != place for each in ("grad_output", "target")):
        raise Meet("values of several rows are put together")
    call.shared(call["weight"])
    return place


@rule("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
      "_scaled_dot_product_flash_attention")  # fmt: skip
def attended(call: Call) -> Found:
    """Each head of each item by itself."""
    places = {call.place(call[each]) for each in ("query", "key", "value")}
    if len(places) != 1:
        raise Meet("rows meet other rows")
    (place,) = places
    _mask(call, call["attn_mask"], _first(call, place))
    return tuple(place for _ in call.op.outs)


def _mask(call: Call, mask: Any, place: Place) -> None:
    if mask is None:
        return
    where = call.where(mask)
    if isinstance(where, Place) and where != place:
        raise Meet("rows meet other rows")
    if where is Kind.SHARED and len(call.shape(mask)) == 4 and call.shape(mask)[0] != 1:
        raise Meet("what becomes of a row hangs on its place in the batch")


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def attended_back(call: Call) -> Found:
    """As forward."""
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    places = {call.place(call[each]) for each in names}
    if len(places) != 1:
        raise Meet("rows meet other rows")
    (place,) = places
    _mask(call, call["attn_mask"], _first(call, place))
    return (place,) * 3


@rule("lstm", "lstm_backward", "gru", "gru_backward", "rnn", "rnn_backward")
def recurred(call: Call) -> Found:
    """A recurrent layer of this package: values [time, row, feature], weights that everybody shares."""
    found: list[Where] = []
    for each in (Ref(number) for number in call.op.inputs):
        where = call.where(each)
        if isinstance(where, Place) and where != Place(len(call.shape(each)) - 2):
            raise Meet("rows lie where times or features are expected")
        if where in (Kind.SUMMED, Kind.NUMBERS):
            raise Meet("rows meet other rows")
    for out in call.op.outs:
        found.append(Place(len(call.proof.tape.shape(out)) - 2))
    return tuple(found)


LINEAR = set(
    "view _unsafe_view reshape unsqueeze squeeze flatten t transpose permute expand repeat select slice split split_with_sizes"
    " unbind slice_backward select_backward sum neg clone detach alias _to_copy cat stack flip roll embedding_dense_backward"
    " index_put _unsafe_index_put index index_select gather triu tril diagonal constant_pad_nd mean _reshape_alias contiguous"
    " zeros_like new_zeros".split()
)
"""Linear in a value that was summed up, as long as other arguments are shared."""
BILINEAR = {"mul", "mm", "bmm", "mv", "masked_fill", "where"}
QUOTIENT = {"div": 0}
SAME = {"add", "sub", "add_", "addmm", "baddbmm"}
DERIVED = {"_weight_norm_interface_backward": 0}


def _linear(call: Call, kinds: list[Where]) -> Found:
    """After an end: nothing but what is linear in it, and meets no rows."""
    name = call.op.name
    if any(isinstance(kind, Place) or kind is Kind.NUMBERS for kind in kinds):
        raise Meet("what was added up over rows meets rows again")
    summed = [kind is Kind.SUMMED for kind in kinds]
    fits = (
        name in LINEAR and (all(summed) if name in ("cat", "stack") else True)
        or name in BILINEAR and sum(summed) == 1 and (name not in ("masked_fill", "where") or _only_zeros(call))
        or name in QUOTIENT and summed[0] and sum(summed) == 1
        or name in ("add", "sub", "add_") and all(summed) and len(summed) == 2
        or name in DERIVED and summed[0] and sum(summed) == 1
    )  # fmt: skip
    if not fits:
        raise Meet("what was added up over rows is not used in a linear way")
    return Kind.SUMMED


def _only_zeros(call: Call) -> bool:
    """Whether what is put in the place of masked values is zero."""
    if call.op.name == "masked_fill":
        return not isinstance(call["value"], Ref) and call["value"] == 0
    return False
