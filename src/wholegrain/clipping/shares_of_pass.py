"""A pass over some units: the shares of all parameters, made as soon as their ends have been reached."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from wholegrain.clipping.bookkeeping import Rows, Share
from wholegrain.clipping.clip_units import UnitRun, Units
from wholegrain.clipping.ends import RULES, EndUse, places_of, positions
from wholegrain.clipping.flows import Flows, Linear, Product, Simple, SlotOf, apply
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.parameters import Slot
from wholegrain.clipping.program import result_places
from wholegrain.clipping.rows import Proof
from wholegrain.clipping.vmap_gradients import silence_vmap


@dataclass(eq=False)
class Pass:
    """What one pass collects."""

    flows: Flows
    proof: Proof
    rows: int
    units: Units
    shares: list[Share] = field(default_factory=list)
    _operands: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)

    def take(self, number: int, values: tuple[Tensor, ...]) -> None:
        """Note what an end is given, and make the shares that nothing more is needed for."""
        self._operands[number] = values
        for plan in self.flows.ready.get(number, ()):
            self.shares.append(self._product(plan) if isinstance(plan, Product) else self._simple(plan))
        for end in self.flows.done.get(number, ()):
            del self._operands[end]

    def finish(self, shared: Mapping[int, Tensor]) -> list[Share]:
        """All shares, those behind other operations last."""
        return [*self.shares, *(self._linear(each, shared) for each in self.flows.linear)]

    def _share(self, number: int, slots: Mapping[int, Slot]) -> Share:
        end = self.proof.ends[number]
        if end.rule == "product":
            return self._outer([(number, slots[0])], (), turned=False)
        values = dict(zip(end.op.inputs, self._operands[number], strict=True))
        made = dict(zip(result_places(end.op), (self.proof.tape.values[out] for out in end.op.outs), strict=True))
        shapes, kinds = {at: tuple(each.shape) for at, each in made.items()}, {at: made[at].dtype for at in made}
        use = EndUse(end, places_of(self.proof, end), values, self.rows, self.units, slots, shapes, kinds)
        return RULES[end.rule](use)

    def _simple(self, plan: Simple) -> Share:
        share = self._share(plan.end, plan.slots)
        orders = {plan.slots[out].name: order for out, order in plan.orders.items()}
        return _reorder(share, self.units, orders) if orders else share

    def _product(self, plan: Product) -> Share:
        return self._outer(plan.weights, plan.biases, plan.turned)

    def _outer(self, weights: Sequence[SlotOf], biases: Sequence[SlotOf], turned: bool) -> Outer:
        factors, outward, first = [], torch.empty(0), False
        for number, slot in weights:
            end = self.proof.ends[number]
            place = places_of(self.proof, end)[end.op.args[1].number]
            left, right = self._operands[number]
            ours, theirs = (right, left.t()) if turned else (left.t(), right)
            outward, first = positions(ours, place, self.rows)
            factors.append((slot, positions(theirs, place, self.rows)[0]))
        return Outer(outward, tuple(factors), tuple(slot for _, slot in biases), first)

    def _linear(self, plan: Linear, shared: Mapping[int, Tensor]) -> Share:
        """Every unit's gradient in full."""
        numbers = [number for _, _, number in plan.results]
        formed = [self._formed(*result) for result in plan.results]

        def through(*parts: Tensor) -> Tensor:
            values: dict[int, Any] = dict(shared) | dict(zip(numbers, parts, strict=True))
            for op in plan.ops:
                found = apply(op, values)
                values.update(zip(op.outs, found if isinstance(found, (tuple, list)) else (found,), strict=True))
            last: Tensor = values[plan.number]
            return last

        with silence_vmap():
            return Rows([(plan.slot, vmap(through)(*formed))])

    def _formed(self, end: int, out: int, number: int) -> Tensor:
        """Each unit's part of a result of an end [unit, …]."""
        shape = self.proof.tape.shape(number)
        share = self._share(end, {out: Slot("", shape)})
        parts = [formed for run in self.units.runs for _, formed in _named(share, self.units, run)]
        return torch.cat([part.reshape(len(part), -1) for part in parts]).reshape(self.units.count, *shape)


def _named(share: Share, units: Units, run: UnitRun) -> Iterator[tuple[str, Tensor]]:
    """The gradients of a run's units, by the names of parameters."""
    return ((slot.name, formed) for slot, formed in share.gradients(units, run, slice(0, run.count)))


def _reorder(share: Share, units: Units, orders: Mapping[str, Tensor]) -> Rows:
    """Formed gradients of parameters that have their values in another order."""
    found = [dict(_named(share, units, run)) for run in units.runs]
    held = []
    for slot in share.slots:
        rows = torch.cat([each[slot.name].reshape(len(each[slot.name]), -1) for each in found])
        held.append((slot, rows[:, orders[slot.name]] if slot.name in orders else rows))
    return Rows(held)
