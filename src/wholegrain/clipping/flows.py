"""From the ends of a proved tape to its parameters: which ends a parameter's gradient comes from, and by what.

Three cases. One end whose result is the gradient, up to its shape: then lengths are measured at the end. Several such
ends: their parts are summed before they are measured. Anything else that is linear: each unit's gradient is formed in
full, and goes through the same operations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from wholegrain.clipping.parameters import Layout, Slot
from wholegrain.clipping.program import result_places
from wholegrain.clipping.rows import End, Kind, Proof
from wholegrain.clipping.tape import NotTraceable, Op, Ref, Sized

VIEWS = {"view", "_unsafe_view", "reshape", "alias", "detach", "_reshape_alias"}
RESHAPES = VIEWS | {"t", "transpose", "permute", "unsqueeze", "squeeze", "clone", "contiguous"}
"""Operations that give the same values, in another order at most."""

Matrix = tuple[int, int]
"""A value as a matrix: its number, whatever its leading dimensions are, and its width."""
SlotOf = tuple[int, Slot]
"""An end, and the slot of its result."""


@dataclass(frozen=True, eq=False)
class Simple:
    """Parameters that come from one end: their slots by the place of the result, and orders where these are others."""

    end: int
    slots: Mapping[int, Slot]
    orders: Mapping[int, Tensor]

    @property
    def ends(self) -> tuple[int, ...]:
        """The one."""
        return (self.end,)


@dataclass(frozen=True, eq=False)
class Product:
    """Matrices that are products with the same rows, and biases that are sums of these."""

    weights: tuple[SlotOf, ...]
    biases: tuple[SlotOf, ...]
    turned: bool
    """Whether the rows that all have in common stand on the right."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Of all."""
        return tuple(dict.fromkeys(end for end, _ in (*self.weights, *self.biases)))


@dataclass(frozen=True, eq=False)
class Linear:
    """A parameter that comes from results of ends by these operations, and by values that everybody shares."""

    slot: Slot
    number: int
    results: tuple[tuple[int, int, int], ...]
    """Of each: the end, its place among the end's results, and its number."""
    ops: tuple[Op, ...]
    shared: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """Those of the results."""
        return tuple(end for end, _, _ in self.results)


@dataclass(frozen=True, eq=False)
class _Leaf:
    """A result of an end that is a parameter's gradient, or a part of it."""

    slot: Slot
    out: int
    order: Tensor | None
    """Which value of the flat result is which of the flat parameter; None where it is the same."""
    turned: bool
    """Whether the parameter is the result transposed, a matrix."""


class Flows:
    """How the parameters of a layout come from the ends of a proof; `outputs` are their gradients' numbers."""

    def __init__(self, proof: Proof, layout: Layout, outputs: Sequence[int | None]) -> None:
        self._proof, self._tape = proof, proof.tape
        self._makers = {out: op for op in self._tape.ops for out in op.outs}
        self._results = {
            out: (number, place)
            for number, end in enumerate(proof.ends)
            for place, out in zip(result_places(end.op), end.op.outs, strict=True)
        }
        self._leaves: dict[int, list[_Leaf]] = {}
        self.linear: list[Linear] = []
        for name, number in zip(layout.names, outputs, strict=True):
            if number is not None and not self._is_zero(number):
                self._follow(Slot(name), number)
        self.plans: list[Simple | Product] = [*self._products(), *self._others()]
        self.needed = {end for plan in (*self.plans, *self.linear) for end in plan.ends}
        """Ends that lead to a parameter."""
        self.shared = tuple(dict.fromkeys(number for each in self.linear for number in each.shared))
        """Values without rows that operations after ends need."""
        self.ready: dict[int, list[Simple | Product]] = {}
        """The plans for which nothing is missing after an end, by its number."""
        for plan in self.plans:
            self.ready.setdefault(max(plan.ends), []).append(plan)
        self.done = self._find_done()
        """The ends whose operands nobody needs after an end, by its number."""

    def _find_done(self) -> dict[int, list[int]]:
        last = {end: max(plan.ends) for plan in self.plans for end in plan.ends}
        for plan in self.plans:
            last |= {end: max(last[end], max(plan.ends)) for end in plan.ends}
        kept = {end for each in self.linear for end in each.ends}
        done: dict[int, list[int]] = {}
        for end, at in last.items():
            if end not in kept:
                done.setdefault(at, []).append(end)
        return done

    def told(self) -> str:
        """All of it in words, which tell it from any other."""
        plans = [(type(plan).__name__, vars(plan)) for plan in self.plans]
        return repr((plans, [(each.slot, each.results, [str(op.target) for op in each.ops]) for each in self.linear]))

    def _is_zero(self, number: int) -> bool:
        """Whether a parameter has a gradient of zeros whatever the items are."""
        if self._proof.where[number] is not Kind.SHARED:
            return False
        maker, kept = self._makers.get(number), self._tape.constants.get(number)
        if maker is not None and maker.name in ("zeros", "zeros_like", "new_zeros"):
            return True
        return kept is not None and not bool(kept.any())

    def _follow(self, slot: Slot, number: int) -> None:
        if self._proof.where[number] is not Kind.SUMMED:
            raise NotTraceable(f"the gradient of '{slot.name}' is no sum over items")
        found = self._find_leaves(number)
        if found is None or any(len(self._shape(result)) != 2 and self._is_product(result) for result, _ in found):
            self.linear.append(self._find_linear(slot, number))
            return
        leaves = [(self._results[result][0], self._leaf(slot, result, chain)) for result, chain in found]
        if any(self._proof.ends[end].rule == "product" and each.order is not None and not each.turned
               for end, each in leaves):  # fmt: skip
            self.linear.append(self._find_linear(slot, number))
            return
        for end, leaf in leaves:
            self._leaves.setdefault(end, []).append(leaf)

    def _shape(self, number: int) -> tuple[int, ...]:
        return self._tape.shape(number)

    def _is_product(self, result: int) -> bool:
        return self._proof.ends[self._results[result][0]].rule == "product"

    def _find_leaves(self, number: int) -> list[tuple[int, list[Op]]] | None:
        """The results of ends that add up to a value, with what re-shapes each; None where something else is done."""
        chain: list[Op] = []
        while number not in self._results:
            op = self._makers[number]
            if op.name == "add" and len(op.inputs) == 2 and op.kwargs.get("alpha", 1) == 1:
                sides = [self._find_leaves(each) for each in op.inputs]
                if any(side is None for side in sides):
                    return None
                return [(leaf, [*own, *chain]) for side in sides if side for leaf, own in side]
            if op.name not in RESHAPES or len(op.inputs) != 1:
                return None
            chain.insert(0, op)
            number = op.inputs[0]
        return [(number, chain)]

    def _leaf(self, slot: Slot, result: int, chain: Sequence[Op]) -> _Leaf:
        own = self._shape(result)
        numbers = torch.arange(prod(own)).view(own)
        found = numbers
        for op in chain:
            found = apply(op, {op.inputs[0]: found})
        out, flat = self._results[result][1], found.flatten()
        if torch.equal(flat, numbers.flatten()):
            return _Leaf(slot, out, None, turned=False)
        return _Leaf(slot, out, flat, turned=len(own) == 2 and torch.equal(flat, numbers.t().flatten()))

    def _find_linear(self, slot: Slot, number: int) -> Linear:
        """Everything that is between ends and a parameter."""
        ops, results, shared = set[Op](), dict[int, tuple[int, int, int]](), list[int]()
        waiting, seen = [number], set[int]()
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in self._results:
                results[at] = (*self._results[at], at)
            elif self._proof.where[at] is Kind.SUMMED:
                waiting += self._makers[at].inputs
                ops.add(self._makers[at])
            else:
                shared.append(at)
        ordered = tuple(op for op in self._tape.ops if op in ops)
        return Linear(slot, number, tuple(results.values()), ordered, tuple(shared))

    def _products(self) -> Iterator[Product]:
        """Products with the same rows together, and with sums of these."""
        ends = self._proof.ends
        sums: dict[Matrix, list[SlotOf]] = {}
        for end, leaves in self._leaves.items():
            rows = self._rows_of_sum(ends[end])
            if rows is not None and all(leaf.order is None for leaf in leaves):
                sums.setdefault(rows, []).extend((end, leaf.slot) for leaf in leaves)
        groups: dict[tuple[Matrix, bool, int], list[SlotOf]] = {}
        for end in [end for end in self._leaves if ends[end].rule == "product"]:
            left, right = self._sides(ends[end])
            turned = left not in sums and right in sums
            common = right if turned else left
            for leaf in self._leaves.pop(end):
                own = self._shape(ends[end].op.outs[0])
                view = Slot(leaf.slot.name, own[::-1] if leaf.turned else own, leaf.turned)
                members = groups.setdefault((common, turned, 0), [])
                if any(other.name == view.name for _, other in members):  # another use of the same matrix
                    members = groups.setdefault((common, turned, end), [])
                members.append((end, view.turn() if turned else view))
        for (rows, turned, _), weights in groups.items():
            biases = sums.pop(rows, [])
            for end, _ in biases:
                self._leaves.pop(end, None)
            yield Product(tuple(weights), tuple(biases), turned)

    def _others(self) -> Iterator[Simple]:
        """A plan for each end; several, where a result is the gradient of several parameters."""
        for end, leaves in self._leaves.items():
            while leaves:
                now: dict[int, _Leaf] = {}
                for leaf in leaves:
                    if leaf.slot.name not in {each.slot.name for each in now.values()}:
                        now.setdefault(leaf.out, leaf)
                leaves = [leaf for leaf in leaves if leaf not in now.values()]
                orders = {out: leaf.order for out, leaf in now.items() if leaf.order is not None}
                yield Simple(end, {out: leaf.slot for out, leaf in now.items()}, orders)

    def _rows_of_sum(self, end: End) -> Matrix | None:
        """The matrix of which a sum has all rows added up."""
        if end.rule != "sum" or not isinstance(end.op.args[0], Ref):
            return None
        shape, out = self._shape(end.op.args[0].number), self._shape(end.op.outs[0])
        if not shape or not out or prod(out) != shape[-1] or out[-1] != shape[-1]:
            return None
        return self._matrix(end.op.args[0].number)

    def _matrix(self, number: int) -> Matrix:
        """The same for values that differ in their leading dimensions alone."""
        width = self._shape(number)[-1]
        while (maker := self._makers.get(number)) is not None and maker.name in VIEWS:
            source = maker.inputs[0]
            if not self._shape(source) or self._shape(source)[-1] != width:
                break
            number = source
        return number, width

    def _sides(self, end: End) -> tuple[Matrix, Matrix]:
        """The rows on the left and on the right of a product."""
        left, right = (each.number for each in end.op.args[:2])
        maker = self._makers.get(left)
        if maker is not None and maker.name in ("t", "transpose") and len(self._shape(left)) == 2:
            return self._matrix(maker.inputs[0]), self._matrix(right)
        return (left, -1), self._matrix(right)


def apply(op: Op, values: Mapping[int, Any]) -> Any:
    """What an operation gives for these values."""

    def told(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.number]
        if isinstance(value, (list, tuple)):
            return [told(each) for each in value]
        if isinstance(value, Sized):
            raise NotTraceable(f"after a sum over items it uses how many there are ({op.name})", op.line)
        return value

    return op.target(*(told(each) for each in op.args), **{name: told(each) for name, each in op.kwargs.items()})
