"""nn.LSTM and nn.GRU, stacked and in both directions: a layer in one direction is a rule, a module a stack of them.

Time is the first dimension inside, so that every step works on one block of memory. The backward pass through time is
written out, with gradients of the gates left in one buffer: all weights of a layer share it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.layers.base import (
    Gradients,
    ModuleSlots,
    Needed,
    Outward,
    RuleError,
    Space,
    align_rows,
    matrix_product,
)
from wholegrain.clipping.products import CompiledProducts, current

Apply = Callable[..., Any]


class _Cell:
    """The parameters of one layer in one direction."""

    def __init__(self, module: nn.RNNBase, owned: ModuleSlots, suffix: str) -> None:
        self._module, self._suffix = module, suffix
        self.inner, self.recurrent = owned.slot(f"weight_ih{suffix}"), owned.slot(f"weight_hh{suffix}")
        self.inner_bias, self.recurrent_bias = owned.slot(f"bias_ih{suffix}"), owned.slot(f"bias_hh{suffix}")

    def value(self, name: str) -> Tensor:
        """A parameter's present value."""
        parameter: Tensor = getattr(self._module, f"{name}{self._suffix}").data
        return parameter

    @property
    def has_bias(self) -> bool:
        """Whether there are biases."""
        return bool(self._module.bias)


class LSTMCell(_Cell):
    """x [time, item, in], h and c [item, hidden] to outputs [time, item, hidden] and the last h and c."""

    def forward(self, space: Space, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """Gates i, f, g, o in one buffer, overwritten by their activations."""
        x, h, c = inputs
        times, items, _ = x.shape
        hidden = h.shape[1]
        gates = space.take("gates", (times, items, 4 * hidden), x)
        bias = self.value("bias_ih") + self.value("bias_hh") if self.has_bias else x.new_zeros(4 * hidden)
        matrix_product(space, x.reshape(-1, x.shape[2]), self.value("weight_ih").t(), bias, gates.view(-1, 4 * hidden))
        outs = space.take("h", (times + 1, items, hidden), x)
        cells = space.take("c", (times + 1, items, hidden), x)
        squashed = space.take("tanh(c)", (times, items, hidden), x)
        outs[0], cells[0] = h, c
        self._through_time(space, gates, outs, cells, squashed)
        return (outs[1:], outs[-1], cells[-1]), (x, gates, outs, cells, squashed)

    def _through_time(self, space: Space, gates: Tensor, outs: Tensor, cells: Tensor, squashed: Tensor) -> None:
        hidden, products = squashed.shape[2], current()
        if isinstance(products, CompiledProducts) and products.steps(self.value("weight_hh"), squashed):
            products.forward_lstm(self.value("weight_hh"), gates, outs, cells, squashed)
            return
        weight = self.value("weight_hh").t()
        states = zip(gates.unbind(), outs.unbind(), outs[1:].unbind(), cells.unbind(), cells[1:].unbind(),
                     squashed.unbind(), strict=False)  # fmt: skip
        for gate, before, after, cell, following, squash in states:
            gate.addmm_(align_rows(space, before), weight)
            gate[:, : 2 * hidden].sigmoid_()
            i, f, g, o = torch.split(gate, hidden, 1)
            torch.mul(i, g.tanh_(), out=following).addcmul_(f, cell)
            torch.tanh(following, out=squash)
            torch.mul(o.sigmoid_(), squash, out=after)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """Back through time; every gate's gradient is prepared for all times at once, then scaled step by step."""
        x, gates, outs, cells, squashed = saved
        products = current()
        if isinstance(products, CompiledProducts) and products.steps(self.value("weight_hh"), squashed):
            delta, dh, cell = self._back_in_c(products, gates, cells, squashed, outward)
        else:
            delta, dh, cell = self._back_through_time(space, gates, cells, squashed, outward)
        gx = matrix_product(space, delta.flatten(0, 1), self.value("weight_ih")).view(x.shape) if needed[0] else None
        return (gx, dh if needed[1] else None, cell if needed[2] else None), self._shares(delta, x, outs[:-1])

    def _back_in_c(
        self, products: CompiledProducts, gates: Tensor, cells: Tensor, squashed: Tensor, outward: Outward
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients at the gates, which take the place of these, and of the first state."""
        dy, dh, dc = outward
        states = [torch.zeros_like(cells[0]) if d is None else d.clone().contiguous() for d in (dh, dc)]
        dy = dy if dy is None or dy.stride(2) == 1 else dy.contiguous()
        products.backward_lstm(self.value("weight_hh"), (gates, cells, squashed), dy, states, gates)
        return gates, states[0], states[1]

    def _back_through_time(
        self, space: Space, gates: Tensor, cells: Tensor, squashed: Tensor, outward: Outward
    ) -> tuple[Tensor, Tensor, Tensor]:
        times, items, hidden = squashed.shape
        (i, f, g, o), delta = torch.split(gates, hidden, 2), space.take("delta", tuple(gates.shape), gates)
        di, df, dg, do = torch.split(delta, hidden, 2)
        torch.addcmul(i, i, i, value=-1, out=di).mul_(g)
        torch.addcmul(f, f, f, value=-1, out=df).mul_(cells[:-1])
        torch.mul(g, g, out=dg).neg_().add_(1).mul_(i)
        torch.addcmul(o, o, o, value=-1, out=do).mul_(squashed)
        # What of an output's gradient reaches the cell: o·(1 − tanh²(c)).
        reach = squashed.mul_(squashed).neg_().add_(1).mul_(o)
        dy, dh, dc = outward
        weight = self.value("weight_hh")
        back = space.take("dh", (items, hidden), gates)
        cell = torch.zeros_like(back) if dc is None else dc.clone()
        for t in range(times - 1, -1, -1):
            dh = _receive(dy, dh, t, back)
            cell.addcmul_(dh, reach[t])
            step = delta[t]
            step[:, : 3 * hidden].view(items, 3, hidden).mul_(cell[:, None])
            step[:, 3 * hidden :].mul_(dh)
            cell.mul_(f[t])
            dh = matrix_product(space, step, weight, out=back)
        assert dh is not None
        return delta, dh, cell

    def _shares(self, delta: Tensor, x: Tensor, before: Tensor) -> tuple[Share, ...]:
        factors = tuple((slot, rows) for slot, rows in ((self.inner, x), (self.recurrent, before)) if slot)
        biases = tuple(slot for slot in (self.inner_bias, self.recurrent_bias) if slot)
        return (Outer(delta, factors, biases, positions_first=True),) if factors or biases else ()


class GRUCell(_Cell):
    """x [time, item, in] and h [item, hidden] to outputs [time, item, hidden] and the last h."""

    def forward(self, space: Space, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """Gates r, z, n in one buffer; the recurrent part of n apart, because r scales it."""
        x, h = inputs
        times, items, _ = x.shape
        hidden = h.shape[1]
        gates = space.take("gates", (times, items, 3 * hidden), x)
        bias = self.value("bias_ih") if self.has_bias else x.new_zeros(3 * hidden)
        matrix_product(space, x.reshape(-1, x.shape[2]), self.value("weight_ih").t(), bias, gates.view(-1, 3 * hidden))
        outs = space.take("h", (times + 1, items, hidden), x)
        scaled = space.take("recurrent n", (times, items, hidden), x)
        outs[0] = h
        weight = self.value("weight_hh").t()
        bias = self.value("bias_hh") if self.has_bias else bias.new_zeros(3 * hidden)
        inner = space.take("product", (items, 3 * hidden), x)
        for gate, before, after, apart in zip(
            gates.unbind(), outs.unbind(), outs[1:].unbind(), scaled.unbind(), strict=False
        ):
            matrix_product(space, before, weight, bias, inner)
            gate[:, : 2 * hidden].add_(inner[:, : 2 * hidden]).sigmoid_()
            r, z, n = torch.split(gate, hidden, 1)
            apart.copy_(inner[:, 2 * hidden :])
            n.addcmul_(r, apart).tanh_()
            torch.sub(before, n, out=after).mul_(z).add_(n)
        return (outs[1:], outs[-1]), (x, gates, outs, scaled)

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """Back through time."""
        x, gates, outs, scaled = saved
        times, items, hidden = scaled.shape
        delta = space.take("delta", tuple(gates.shape), gates)  # at the products with x
        inner = space.take("recurrent delta", tuple(gates.shape), gates)  # at the products with h
        dy, dh = outward
        weight = self.value("weight_hh")
        back = space.take("dh", (items, hidden), gates)
        for t in range(times - 1, -1, -1):
            dh = _receive(dy, dh, t, back)
            (r, z, n), (dr, dz, dn) = torch.split(gates[t], hidden, 1), torch.split(delta[t], hidden, 1)
            torch.addcmul(dh, dh, z, value=-1, out=dn)
            torch.addcmul(dn, dn * n, n, value=-1, out=dn)
            torch.mul(dn, scaled[t], out=dr).mul_(r).addcmul_(dr, r, value=-1)
            torch.sub(outs[t], n, out=dz).mul_(dh).mul_(z).addcmul_(dz, z, value=-1)
            inner[t, :, : 2 * hidden] = delta[t, :, : 2 * hidden]
            torch.mul(dn, r, out=inner[t, :, 2 * hidden :])
            dh = torch.addmm(dh * z, align_rows(space, inner[t]), weight, out=back)
        gx = matrix_product(space, delta.flatten(0, 1), self.value("weight_ih")).view(x.shape) if needed[0] else None
        return (gx, dh if needed[1] else None), self._shares(delta, inner, x, outs[:-1])

    def _shares(self, delta: Tensor, inner: Tensor, x: Tensor, before: Tensor) -> tuple[Share, ...]:
        uses = (
            (delta, self.inner, self.inner_bias, x),
            (inner, self.recurrent, self.recurrent_bias, before),
        )
        return tuple(
            Outer(gradient, ((weight, rows),) if weight else (), (bias,) if bias else (), positions_first=True)
            for gradient, weight, bias, rows in uses
            if weight or bias
        )


class Recurrent:
    """A module: its layers, one after the other, each in one or two directions."""

    def __init__(self, module: nn.LSTM | nn.GRU, owned: ModuleSlots) -> None:
        if module.proj_size:
            raise RuleError("it projects its outputs (proj_size)")
        owned.require(*module._flat_weights_names)
        self._module = module
        self._ways = 2 if module.bidirectional else 1
        kind = LSTMCell if isinstance(module, nn.LSTM) else GRUCell
        suffixes = [f"_l{k}{way}" for k in range(module.num_layers) for way in ("", "_reverse")[: self._ways]]
        self._cells = [kind(module, owned, suffix) for suffix in suffixes]

    def __call__(self, apply: Apply, items: int, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """What the module's own forward returns."""
        module = self._module
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[0 if module.batch_first else 1] != items:
            raise RuleError("its input is not a batch of sequences of one length")
        rows = (x.transpose(0, 1) if module.batch_first else x).contiguous()
        begins = self._beginnings(rows, hx)
        ends = []
        for k in range(module.num_layers):
            outs = []
            for way in range(self._ways):
                number = k * self._ways + way
                out, *end = apply(self._cells[number], rows.flip(0) if way else rows, *(b[number] for b in begins))
                outs.append(out.flip(0) if way else out)
                ends.append(end)
            rows = torch.cat(outs, 2) if len(outs) > 1 else outs[0]
        stacked = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        last = stacked if len(stacked) > 1 else stacked[0]
        return (rows.transpose(0, 1) if module.batch_first else rows), last

    def _beginnings(self, rows: Tensor, hx: Any) -> tuple[Tensor, ...]:
        """Initial states [layer × direction, item, hidden], of which an LSTM has two."""
        states = 2 if isinstance(self._module, nn.LSTM) else 1
        if hx is None:
            shape = (len(self._cells), rows.shape[1], self._module.hidden_size)
            return (rows.new_zeros(shape),) * states
        return tuple(hx) if states > 1 else (hx,)


def _receive(dy: Tensor | None, dh: Tensor | None, t: int, like: Tensor) -> Tensor:
    """The gradient of the output at time t: from above, and from the time after it."""
    if dh is None:
        return torch.zeros_like(like) if dy is None else dy[t]
    return dh if dy is None else dh.add_(dy[t]) if dh is like else dh + dy[t]
