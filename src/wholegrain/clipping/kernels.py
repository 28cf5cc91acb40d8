"""Checks of the platform: a kernel must give a row the same bits wherever it lies, and whatever is beside it.

The proof over a graph says that rows stay apart in exact arithmetic. A product over one row more may still add up in
another order, and round every row otherwise. The order follows from sizes, places in memory and the kind of processor,
never from values; so every operation is tried once for each size, with random rows that repeat: equal rows must come
out equal to the last bit, and the same as in a pass of `BASE` rows. What has been tried is kept on disk, under
everything that decides it (`verdicts`).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wholegrain.clipping import verdicts
from wholegrain.clipping.batch_invariance import LARGER, LEAST_ROWS, WIDE, round_size_up
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.ends import rows_first
from wholegrain.clipping.gradient_norms import add_lengths, group_lengths, merge_uses
from wholegrain.clipping.operations import is_by_value, is_product, is_rounded_once
from wholegrain.clipping.rows import Kind, Place
from wholegrain.clipping.shares_of_pass import Pass
from wholegrain.clipping.tape import Op, Ref
from wholegrain.clipping.traced import TracedGradients

METHOD = 2
"""Of these checks: another number for others, so that no verdict of earlier ones is believed."""
BASE = 64
"""Rows of the pass that all others are compared with."""
PERIOD = 7
"""Different rows of a pass that is tried: no multiple of it is a place where vectors begin again."""
DIFFERENT = 3
"""Different units."""
FEWER = (1, 2, 3, 4, 5, 8, 17)
"""Numbers of units that must come out as many do: libraries have other kernels for very few."""
VECTOR = 16
"""Values of the widest vector, at each of which a unit's rows may begin."""
MOST_TRIED = 32
"""Units of more items than this are not tried; each has a pass of its own."""


class KernelChecks:
    """In which sizes a traced program may be run: what was tried, and what is tried when it first occurs."""

    def __init__(self, traced: TracedGradients, inputs: Tensor, targets: Tensor, most: int) -> None:
        self._traced, self._most = traced, most
        self._like = inputs, targets
        self._trusted: dict[int, bool] = {}
        self._digests: dict[int, str] = {}
        """Of every operation that is run: what its rows are in the base's size."""
        self._operands: dict[int, list[Tensor]] = {}
        self.multiple = _multiple(traced)

    def fit(self, items: int) -> int | None:
        """The smallest trusted size for so many items; None where there is none, and the batch must be divided."""
        if items > self._most:
            return None
        size = round_size_up(items, self.multiple)
        tried = size, *(round_size_up(size, WIDE) + k * WIDE for k in range(LARGER))
        return next((each for each in tried if self.trusts(each)), None)

    def trusts(self, rows: int) -> bool:
        """Whether every row of a pass of this size is what it is in the base's."""
        if BASE not in self._trusted and rows != BASE:
            self.trusts(BASE)
        if rows not in self._trusted:
            key = self._key("pass", rows)
            self._trusted[rows] = verdicts.remembered(key, lambda: self._try(rows))
        return self._trusted[rows]

    def _key(self, kind: str, size: int) -> str:
        return f"{METHOD} {kind} {size} {torch._C._get_mkldnn_enabled()} {self._traced.signature}"

    def _try(self, rows: int) -> bool:
        """Run the program on made-up items, and every operation on its way with random rows as well."""
        if rows != BASE and not self._digests:
            self._run(BASE)
        return self._run(rows)

    def _run(self, rows: int) -> bool:
        traced, ok = self._traced, True
        program = traced.program

        def checked(number: int, op: Op, ends: bool) -> Callable[..., Any]:
            usual = program.operations[number]

            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal ok
                if ok and (rows == BASE or not is_by_value(op)) and not is_rounded_once(op):
                    ok = self._repeats(number, op, ends, args, kwargs, rows)
                return usual(*args, **kwargs)

            return call

        operations = [checked(number, op, ends) for number, (op, ends) in enumerate(program.kept)]
        inputs, targets = (each.new_zeros(rows, *each.shape[1:]) for each in self._like)
        parameters = traced.made_up()
        traced.call(operations, lambda *_: None, parameters, inputs, targets)
        return ok

    def _repeats(self, number: int, op: Op, ends: bool, args: Any, kwargs: Any, rows: int) -> bool:
        """Whether equal rows come out equal, and as in the base's pass."""
        where, draws = self._traced.proof.where, torch.Generator().manual_seed(number)
        if not any(isinstance(where.get(out), Place) for out in op.outs):
            return True

        def drawn(told: Any, value: Any) -> Any:
            if isinstance(told, Ref) and isinstance(value, Tensor):
                return _draw(value, where[told.number], rows, draws)
            if isinstance(told, (list, tuple)):
                return [drawn(a, b) for a, b in zip(told, value, strict=True)]
            return value

        given = [drawn(told, value) for told, value in zip(op.args, args, strict=True)]
        named = {name: drawn(op.kwargs[name], value) for name, value in kwargs.items()}
        found = self._traced.program.operations[number](*given, **named)
        results = [each for each in (found if isinstance(found, (tuple, list)) else [found]) if each is not None]
        total = hashlib.sha256()
        for out, each in zip(op.outs, results, strict=False):
            place = where.get(out)
            if isinstance(place, Place):
                own = rows_first(each, place, rows)
                if not _is_periodic(own, PERIOD):
                    return False
                total.update(_bytes(own[:PERIOD]))
        first = self._digests.setdefault(number, total.hexdigest()) if rows == BASE else self._digests.get(number)
        return first == total.hexdigest()

    def steady(self, size: int, subjects: bool) -> bool:
        """Whether units of so many items (subjects, or single items) come out the same wherever they stand."""
        if size > MOST_TRIED:
            return False
        key = self._key("subjects" if subjects else "items", size)
        return verdicts.remembered(key, lambda: self._try_units(size, subjects))

    @torch.inference_mode()
    def _try_units(self, size: int, subjects: bool) -> bool:
        most = 3 * VECTOR + 1
        first = self._measure(most, size, subjects)
        if not all(_is_periodic(each, DIFFERENT) for each in first):
            return False
        fewer = ((count, self._measure(count, size, subjects)) for count in FEWER)
        return all(_same(a[:count], b[:count]) for count, found in fewer for a, b in zip(first, found, strict=True))

    def _measure(self, count: int, size: int, subjects: bool) -> list[Tensor]:
        """Norms and formed gradients of units that repeat, first of all, from random operands of all ends."""
        units = _in_company(count, size) if subjects else Units.of_items(max(count, LEAST_ROWS))
        traced, rows, found = self._traced, units.items, []
        passed = Pass(traced.flows, traced.proof, rows, units)
        for number, end in enumerate(traced.proof.ends):
            if number in traced.flows.needed:
                draws = torch.Generator().manual_seed(number)
                values = [self._operand(each, rows, size, draws) for each in end.op.inputs]
                passed.take(number, tuple(values))
        shared = {each: _some(value) for each, value in traced.shared_values()}
        uses = merge_uses(passed.finish(shared))
        lengths = []
        for group in uses.groups:
            lengths.append(group_lengths(group, units))
            for share in group:
                own = lengths[-1] if len(group) == 1 else share.lengths(units)
                found += [own.squared, own.squared if own.apart is None else own.apart]
                found += [each.clone() for each in share.hand_over(units.runs[0])]
        return [*found, add_lengths(lengths).squared]

    def _operand(self, number: int, rows: int, size: int, draws: torch.Generator) -> Tensor:
        """A random value in the place of one of the tape's, as many rows as told."""
        tape, place = self._traced.proof.tape, self._traced.proof.where[number]
        like, shape = tape.values[number], list(tape.shape(number))
        if not isinstance(place, Place):
            return _some(tape.constants.get(number, like))
        shape[place.dim] = place.outer * rows * place.inner
        made = torch.empty(shape, dtype=like.dtype)
        _fill(made, place, rows, DIFFERENT * size, draws)
        return made


def _in_company(count: int, size: int) -> Units:
    """So many units of a size, and of another one as many as a pass has at least."""
    other = 2 if size == 1 else 1
    more = -(-max(0, LEAST_ROWS - count * size) // other)
    return Units.of_sizes(np.repeat([size, other], [count, more]))


def _multiple(traced: TracedGradients) -> int:
    """Of how many rows a pass must be a multiple, so that no elementwise function has a remainder.

    Vectorised code computes many values at a time and the remainder one by one, with other instructions, which may
    round differently. Multiples of WIDE values have no remainder. Along a line it is the same, where vectors reach over
    values of several rows that lie side by side, as with time first.
    """
    found, proof = 1, traced.proof
    for op, _ in traced.program.kept:
        if is_rounded_once(op) or is_product(op):
            continue
        for number in op.outs if is_by_value(op) else (*op.inputs, *op.outs):
            place, like = proof.where.get(number), proof.tape.values[number]
            if isinstance(place, Place) and like.is_floating_point():
                side = like.numel() // proof.tape.rows if is_by_value(op) else _beside(like, place)
                found = max(found, WIDE // gcd(WIDE, side))
    return found


def _beside(like: Tensor, place: Place) -> int:
    """How many values of a row lie side by side before the next row's; none, where all of them do."""
    strides = [stride for size, stride in zip(like.shape, like.stride(), strict=True) if size > 1]
    outermost = like.stride(place.dim) >= max(strides, default=1) and place.outer == 1
    return 0 if outermost else place.inner * like.stride(place.dim)


def _some(like: Tensor) -> Tensor:
    """A value that is kept; one of parameters is random, and numbers of rows or columns are the first."""
    if like.device.type != "meta":
        return like
    made = torch.ones(like.shape, dtype=like.dtype)
    return made.normal_(generator=torch.Generator().manual_seed(2)) if made.is_floating_point() else made


def _draw(value: Tensor, place: Any, rows: int, draws: torch.Generator) -> Tensor:
    """Random values that lie in memory as these do; along rows they repeat."""
    if not isinstance(place, Place):
        if not value.is_floating_point() or place is not Kind.SHARED:
            return value
        made, own = _like(value)
        own.normal_(generator=draws)
        return made
    made, own = _like(value)
    if own.shape[place.dim] != made.shape[place.dim]:  # one row for all
        own.copy_(torch.randn(own.shape, generator=draws) if value.is_floating_point() else value[_first(value)])
    elif value.is_floating_point():
        _fill(own, place, rows, PERIOD, draws)
    else:
        source, target = _split(value[_first(value)], place, rows), _split(own, place, rows)
        target.copy_(source[torch.arange(rows) % PERIOD])
    return made


def _first(value: Tensor) -> tuple[slice, ...]:
    """One place along dimensions in which all places are the same memory."""
    return tuple(slice(1) if not stride else slice(None) for stride in value.stride())


def _like(value: Tensor) -> tuple[Tensor, Tensor]:
    """Memory with the same strides, as far from where a vector begins; and what of it can be written into."""
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    offset = value.data_ptr() // value.element_size() % VECTOR if value.numel() else 0
    base = torch.empty(max(0, reach) + offset + VECTOR, dtype=value.dtype)
    start = (-(base.data_ptr() // base.element_size()) + offset) % VECTOR
    made = base.as_strided(value.shape, value.stride(), start)
    return made, made[_first(made)]


def _split(value: Tensor, place: Place, rows: int) -> Tensor:
    """A view with rows first."""
    sizes = (place.outer, rows, place.inner)
    return value.view(*value.shape[: place.dim], *sizes, *value.shape[place.dim + 1 :]).movedim(place.dim + 1, 0)


def _fill(made: Tensor, place: Place, rows: int, period: int, draws: torch.Generator) -> None:
    view = _split(made, place, rows)
    shape = (min(period, rows), *view.shape[1:])
    if made.is_floating_point():
        some = torch.randn(shape, generator=draws) * 2.0 ** torch.randint(-2, 3, shape, generator=draws)
    else:
        some = torch.zeros(shape, dtype=torch.int64)  # a place that every table has
    view.copy_(some.to(made.dtype)[torch.arange(rows) % shape[0]])


def _is_periodic(rows: Tensor, period: int) -> bool:
    return all(_same(some, rows[: len(some)]) for some in torch.split(rows, period))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether all values are the same; what is not a number equals itself here."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _bytes(rows: Tensor) -> bytes:
    return rows.contiguous().view(torch.uint8).numpy().tobytes() if rows.dim() else b""


Rows = Sequence[Tensor]
Found = Iterator[Tensor]
