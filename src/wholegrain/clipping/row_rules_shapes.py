"""Where rows lie after values were only moved: views, copies, pieces of them, and what is looked up by index."""

from itertools import pairwise
from math import prod
from typing import Any

import torch

from wholegrain.clipping.row_places import Call, Found, Kind, Place, Where, require, rule
from wholegrain.clipping.tape import Ref

ELSEWHERE = "what becomes of a row hangs on its place in the batch"
CROSSED = "rows are looked up by other rows"


def filled(call: Call) -> Found:
    """One value everywhere along the dimension that counts rows, so that every row has it."""
    out = call.op.outs[0]
    dim = call.facts.tape.counts.get(out)
    if dim is None:
        return Kind.SHARED
    call.facts.uniform.add(out)
    return Place(dim, call.out[dim] // call.rows)


def is_zeros(call: Call, value: Ref) -> bool:
    """Whether a shared value is zeros that the program itself makes."""
    tape = call.facts.tape
    made = [op for op in tape.ops if value.number in op.outs]
    if made:
        return made[0].name == "zeros"
    return value.number in tape.made and not bool(tape.constants[value.number].any())


@rule("arange")
def numbers(call: Call) -> Found:
    """0, 1, … for each row."""
    fits = call["end"] == call.rows and call.out == (call.rows,)
    fits = fits and not (call.has("start") and call["start"] != 0) and not (call.has("step") and call["step"] != 1)
    require(fits, ELSEWHERE)
    return Kind.NUMBERS


@rule("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "_reshape_alias")
def viewed(call: Call) -> Found:
    """The same values in the same order."""
    (value,) = call.tensors
    if call.where(value) is Kind.NUMBERS:
        numbers = Place(call.facts.tape.counts[value.number])
        where = moved(numbers, call.shape(value), call.out, call.rows)
        require(where == Place(where.dim), ELSEWHERE)
        return Kind.NUMBERS
    place = call.place(value)
    if call.has("dtype"):
        require(call.out == call.shape(value), "values are taken for others, of another size")
        return place
    return moved(place, call.shape(value), call.out, call.rows)


def moved(place: Place, old: tuple[int, ...], new: tuple[int, ...], rows: int) -> Place:
    """Where rows lie when values of one shape are read in another: the row is flat // step % rows for both."""
    step = place.inner * prod(old[place.dim + 1 :])
    for dim, size in enumerate(new):
        after = prod(new[dim + 1 :])
        inner = step // max(1, after)
        if after and inner and step % after == 0 and size % (rows * inner) == 0:
            return Place(dim, inner, size // (rows * inner))
    require(False, "rows are cut across")
    return place


@rule("t", "transpose", "permute")
def permuted(call: Call) -> Found:
    """Dimensions in another order."""
    place, dims = call.place(call["self"]), len(call.shape(call["self"]))
    order = list(range(dims))
    if call.name == "permute":
        order = [dim % dims for dim in call["dims"]]
    else:
        one, other = (0, dims - 1) if call.name == "t" else (call["dim0"] % dims, call["dim1"] % dims)
        order[one], order[other] = order[other], order[one]
    return Place(order.index(place.dim), place.inner, place.outer)


@rule("expand", "repeat")
def expanded(call: Call) -> Found:
    """Copies along some dimensions; where these count rows, each row has one."""
    value, new = call["self"], call.out
    old = (1,) * (len(new) - len(call.shape(value))) + call.shape(value)
    where = call.where(value)
    if isinstance(where, Place):
        place = where.moved(len(new) - len(call.shape(value)))
        require(new[place.dim] == old[place.dim], "rows are repeated")
        return place
    if where is Kind.NUMBERS:
        return Kind.NUMBERS
    dim = call.facts.tape.counts[call.op.outs[0]]
    if old[dim] == 1:
        return filled(call)
    require(new[dim] == old[dim] * call.rows, ELSEWHERE)  # repeat: all of it once more for every row
    return Place(dim, old[dim])


@rule("select", "slice", "unfold", "diagonal")
def cut(call: Call) -> Found:
    """Along a dimension that does not count rows."""
    value = call["self"]
    place, size = call.place(value), len(call.shape(value))
    if call.name == "diagonal":
        dims = [call["dim1"] % size, call["dim2"] % size]
        require(place.dim not in dims, "rows are cut across")
        return place.moved(-sum(dim < place.dim for dim in dims))
    dim = call["dimension" if call.name == "unfold" else "dim"] % size
    require(place.dim == dim or not call.sized("end"), ELSEWHERE)
    if place.dim == dim:
        if value.number in call.facts.uniform and _is_first(call):
            return Kind.SHARED
        whole = call.name == "slice" and call["step"] == 1 and call.out == call.shape(value)
        require(whole, "some rows are taken out of the batch")
        return place
    return place.moved(-(call.name == "select" and place.dim > dim))


def _is_first(call: Call) -> bool:
    """Whether the first row alone is taken, which there always is."""
    if call.name == "select":
        return bool(call["index"] == 0)
    return call.name == "slice" and [call["start"], call["end"], call["step"]] == [0, 1, 1]


@rule("view_as_real", "view_as_complex")
def paired(call: Call) -> Found:
    """Two numbers as one, along a last dimension."""
    place = call.place(call["self"])
    require(place.dim < len(call.shape(call["self"])) - (call.name == "view_as_complex"), "rows are cut across")
    return place


@rule("slice_backward", "select_backward", "unfold_backward", "diagonal_backward")
def uncut(call: Call) -> Found:
    """Zeros around it."""
    value, size = call.op.args[0], len(call.out)
    place = call.place(value)
    if call.name == "diagonal_backward":
        for dim in sorted([call["dim1"] % size, call["dim2"] % size]):
            place = place.moved(place.dim >= dim)
        return place
    dim = call["dim"] % size
    if call.name == "select_backward":
        return place.moved(place.dim >= dim)
    require(place.dim != dim or call.out == call.shape(value), "rows are put among other rows")
    require(place.dim == dim or not call.sized("end"), ELSEWHERE)
    return place


@rule("slice_scatter", "select_scatter")
def put_back(call: Call) -> Found:
    """Some values of each row replaced by its own."""
    value, source, dim = call["self"], call["src"], call["dim"] % len(call.out)
    place, other = call.place(value), call.place(source)
    require(place.dim != dim or call.shape(source) == call.out, "rows are put among other rows")
    require(place.dim == dim or not call.sized("end"), ELSEWHERE)
    back = call.name == "select_scatter" and other.dim >= dim
    return call.agree([(value, place), (source, other.moved(back))])


@rule("cat", "stack")
def joined(call: Call) -> Found:
    """Along a dimension that does not count rows."""
    tensors = [each for each in call["tensors"] if call.shape(each) != (0,)]  # torch skips these
    place, dim = call.agree((each, call.place(each)) for each in tensors), call["dim"] % len(call.out)
    if call.name == "stack":
        return place.moved(place.dim >= dim)
    require(dim != place.dim, "rows are put behind rows")
    return place


@rule("constant_pad_nd")
def padded(call: Call) -> Found:
    """Along the last dimensions, unless they count rows."""
    place, size = call.place(call["self"]), len(call.out)
    touched = {size - 1 - k // 2 for k, each in enumerate(call["pad"]) if each}
    require(place.dim not in touched, "rows are put behind rows")
    return place


@rule("gather", "scatter", "scatter_add", "scatter_reduce")
def gathered(call: Call) -> Found:
    """By index along a dimension that does not count rows."""
    value, index = call["self"], call["index"]
    dim = call["dim"] % max(1, len(call.shape(value)))
    if call.name == "gather" and call.where(value) is Kind.SHARED:
        require(call.place(index).dim == dim, ELSEWHERE)
        return call.place(index)
    tensors = [value, index, *([call["src"]] if call.has("src") else [])]
    place = call.agree((each, call.place(each)) for each in tensors)
    require(place.dim != dim, CROSSED)
    return place


@rule("index_select", "index_add", "index_copy", "index_fill")
def by_shared_index(call: Call) -> Found:
    """By an index that everybody shares, along another dimension; or rows of a table that everybody shares."""
    value, index = call["self"], call["index"]
    dim = call["dim"] % max(1, len(call.shape(value)))
    if call.name == "index_select" and call.where(value) is Kind.SHARED:
        return call.place(index).moved(dim)
    place = call.together("self", *(["source"] if call.has("source") else []))
    require(place.dim != dim, "some rows are taken out of the batch")
    return place


@rule("embedding")
def looked_up(call: Call) -> Found:
    """Rows of a table that everybody shares."""
    return call.together("indices")


@rule("embedding_dense_backward")
def table_end(call: Call) -> Found:
    """Rows added up into the table's."""
    require(not call["scale_grad_by_freq"], "gradients are scaled by how often the batch has a token")
    call.together("grad_output", "indices")
    return call.end("table", 0)


@rule("index", "_unsafe_index")
def indexed(call: Call) -> Found:
    """By tensors of indices: of each row something of its own, or along other dimensions for all rows alike."""
    return _indexed(call, call["self"], call["indices"])


def _indexed(call: Call, value: Ref, indices: Any) -> Place:
    """Where rows lie in value[indices]."""
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    for _, each in given:
        kind = call.facts.tape.values[each.number].dtype
        require(kind not in (torch.bool, torch.uint8), "how much is taken hangs on values")
    rank = max(len(call.shape(each)) for _, each in given)
    together = all(b - a == 1 for (a, _), (b, _) in pairwise(given))
    first = given[0][0] if together else 0
    if not isinstance(call.where(value), Place):
        require(call.where(value) is Kind.SHARED, ELSEWHERE)
        return _broadcast(call, [each for _, each in given], rank).moved(first)
    place, at = call.place(value), dict(given)
    if place.dim in at:
        return _own_row(call, place, at, rank).moved(first)
    call.shared(*at.values())
    left = place.dim - sum(dim < place.dim for dim in at)
    return place.moved(left - place.dim + (rank if left >= first else 0))


def _broadcast(call: Call, indices: list[Ref], rank: int) -> Place:
    """Of the rows of indices, which are broadcast against each other."""
    placed = []
    for each in indices:
        where = call.where(each)
        require(where is not Kind.NUMBERS, ELSEWHERE)
        if isinstance(where, Place):
            placed.append((each, where.moved(rank - len(call.shape(each)))))
    require(bool(placed), ELSEWHERE)
    return call.agree(placed)


def _own_row(call: Call, place: Place, at: dict[int, Ref], rank: int) -> Place:
    """From each row something of its own, as in x[arange(rows), index]."""
    number = at.pop(place.dim)
    require(call.where(number) is Kind.NUMBERS and place == Place(place.dim), CROSSED)
    dim = call.facts.tape.counts[number.number] + rank - len(call.shape(number))
    for each in at.values():
        where: Where = call.where(each)
        if isinstance(where, Place):
            where = where.moved(rank - len(call.shape(each)))
        require(where in (Kind.SHARED, Place(dim)), CROSSED)
    return Place(dim)


@rule("index_put", "_unsafe_index_put")
def put(call: Call) -> Found:
    """The way back of `index`: into each row's own, or an end, where the table is one that everybody shares."""
    value, indices, given = call["self"], call["indices"], call["values"]
    size = len(call.shape(value)) - sum(each is not None for each in indices)
    size += max(len(call.shape(each)) for each in indices if each is not None)
    if isinstance(call.where(value), Place):
        picked = _indexed(call, value, indices)
        if call.where(given) is not Kind.SHARED:
            require(call.place(given).moved(size - len(call.shape(given))) == picked, "rows meet other rows")
        return call.place(value)
    require(bool(call["accumulate"]) and is_zeros(call, value), "rows are written over each other")
    picked = _indexed(call, value, indices)
    require(call.place(given).moved(size - len(call.shape(given))) == picked, "rows meet other rows")
    return call.end("put", 0)
