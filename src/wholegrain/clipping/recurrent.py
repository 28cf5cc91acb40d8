"""Recurrent layers kept whole: one operation for a layer in one direction, and one for its way back.

Taken apart, an LSTM is thousands of operations. These are inside only for what hangs on the time before: products with
inputs and gradients of weights are ordinary operations outside, so that nothing that reads a recorded program has to
know of recurrence but where the rows of these six operations lie. That is always along the second-last dimension, of
values [time, row, feature] and states [row, feature]; only weights, and the bias of `gru`, have none.

Inside, each row is computed by itself: products of rows with a weight, and pointwise functions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from wholegrain.errors import ModelError

aten = torch.ops.aten
WORTH = 1 << 15
"""Values of a weight, from which on oneDNN multiplies faster than torch's `mm`, which may be half as fast on AMD."""
ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""A fact about the build of torch alone: a switch could be turned after the kernels were checked."""
Maybe = Tensor | None


def _times(values: Tensor, reverse: bool) -> Sequence[Tensor]:
    """Values by time, in the order in which they are computed."""
    return values.unbind()[::-1] if reverse else values.unbind()


def _after(states: Tensor, reverse: bool) -> Tensor:
    """Of states before and after all times, those after each; in reverse, before."""
    return states[:-1] if reverse else states[1:]


def _tanh(x: Tensor, out: Tensor) -> Tensor:
    """2 σ(2x) − 1, which torch computes several times as fast as its tanh, and to 2e-7 in single precision."""
    return torch.add(x, x, out=out).sigmoid_().mul_(2).sub_(1)


def _begin(given: Maybe, like: Tensor) -> Tensor:
    """A gradient to add to."""
    return torch.zeros_like(like) if given is None else given.clone(memory_format=torch.contiguous_format)


class _Product:
    """Rows times one weight [out, in], time after time; how is chosen by the weight alone, not by how many rows."""

    def __init__(self, weight: Tensor) -> None:
        self._weight, self._turned = weight, weight.t()
        host = weight.device.type == "cpu" and weight.dtype is torch.float32
        self._fast = ONEDNN and host and weight.numel() >= WORTH

    def add(self, start: Tensor, rows: Tensor, out: Tensor) -> None:
        """The product, plus what it starts from."""
        if self._fast:
            torch.add(start, self._multiply(rows), out=out)
        else:
            torch.addmm(start, rows, self._turned, out=out)

    def to(self, rows: Tensor, out: Tensor) -> Tensor:
        """The product, in `out` or in memory of its own."""
        made: Tensor = self._multiply(rows) if self._fast else torch.mm(rows, self._turned, out=out)
        return made

    def _multiply(self, rows: Tensor) -> Any:
        return torch.ops.mkldnn._linear_pointwise(rows, self._weight, None, "none", [], "")


def _lstm(x: Tensor, h: Tensor, c: Tensor, weight: Tensor, reverse: bool) -> tuple[Tensor, ...]:
    """Products with inputs [time, row, 4 × hidden] to states and cells before and after all times, and gates."""
    times, rows, hidden = x.shape[0], x.shape[1], weight.shape[1]
    states, cells = x.new_empty(times + 1, rows, hidden), x.new_empty(times + 1, rows, hidden)
    gates = x.new_empty(x.shape)
    if x.is_meta:
        return states, cells, gates
    hs, cs = _times(states, reverse), _times(cells, reverse)
    hs[0].copy_(h)
    cs[0].copy_(c)
    product, squashed = _Product(weight), x.new_empty(rows, hidden)
    i, f, g, o = (_times(part, reverse) for part in torch.split(gates, hidden, 2))
    for t, (given, gate) in enumerate(zip(_times(x, reverse), _times(gates, reverse), strict=True)):
        product.add(given, hs[t], gate)
        g[t].mul_(2)  # its tanh is 2 σ(2g) − 1
        gate.sigmoid_()
        torch.mul(i[t], g[t].mul_(2).sub_(1), out=cs[t + 1]).addcmul_(f[t], cs[t])
        torch.mul(o[t], _tanh(cs[t + 1], squashed), out=hs[t + 1])
    return states, cells, gates


def _lstm_backward(
    dy: Maybe, dh: Maybe, dc: Maybe, weight: Tensor, cells: Tensor, gates: Tensor, reverse: bool
) -> tuple[Tensor, ...]:
    """Gradients of outputs and of the last state and cell to those of products and of the first state and cell."""
    hidden, delta = weight.shape[1], torch.empty_like(gates)
    dh, dc = _begin(dh, cells[0]), _begin(dc, cells[0])
    if gates.is_meta:
        return delta, dh, dc
    after, before = _after(cells, reverse), _after(cells, not reverse)
    (i, f, g, o), (di, df, dg, do) = torch.split(gates, hidden, 2), torch.split(delta, hidden, 2)
    squashed = _tanh(after, torch.empty_like(after))
    # What each gate's gradient is a multiple of, for all times at once, and what of a state's reaches its cell.
    aten.sigmoid_backward.grad_input(g, i, grad_input=di)
    aten.sigmoid_backward.grad_input(before, f, grad_input=df)
    aten.tanh_backward.grad_input(i, g, grad_input=dg)
    aten.sigmoid_backward.grad_input(squashed, o, grad_input=do)
    reach = aten.tanh_backward.grad_input(o, squashed, grad_input=squashed)
    product, back = _Product(weight.t()), not reverse
    cell = delta[:, :, : 3 * hidden].view(*delta.shape[:2], 3, hidden)
    parts = (_times(each, back) for each in (delta, cell, do, f, reach))
    for t, (whole, three, out, forget, reached) in enumerate(zip(*parts, strict=True)):
        if dy is not None:
            dh = dh.add_(dy[t if reverse else -1 - t])
        dc.addcmul_(dh, reached)
        three.mul_(dc[:, None])
        out.mul_(dh)
        dc.mul_(forget)
        dh = product.to(whole, dh)
    return delta, dh, dc


def _gru(x: Tensor, h: Tensor, weight: Tensor, bias: Maybe, reverse: bool) -> tuple[Tensor, ...]:
    """Gates' products with the input [time, row, 3 × hidden] to states, gates, and what the first gate scales."""
    times, rows, hidden = x.shape[0], x.shape[1], weight.shape[1]
    states, gates = x.new_empty(times + 1, rows, hidden), x.new_empty(x.shape)
    scaled = x.new_empty(times, rows, hidden)
    if x.is_meta:
        return states, gates, scaled
    hs = _times(states, reverse)
    hs[0].copy_(h)
    product, inner = _Product(weight), x.new_empty(rows, 3 * hidden)
    start = x.new_zeros(3 * hidden) if bias is None else bias
    (given, gate), kept = (_times(v[:, :, : 2 * hidden], reverse) for v in (x, gates)), _times(scaled, reverse)
    r, z, n = (_times(part, reverse) for part in torch.split(gates, hidden, 2))
    for t, new in enumerate(_times(x[:, :, 2 * hidden :], reverse)):
        product.add(start, hs[t], inner)
        torch.add(given[t], inner[:, : 2 * hidden], out=gate[t]).sigmoid_()
        kept[t].copy_(inner[:, 2 * hidden :])
        _tanh(torch.addcmul(new, r[t], kept[t], out=n[t]), n[t])
        torch.sub(hs[t], n[t], out=hs[t + 1]).mul_(z[t]).add_(n[t])
    return states, gates, scaled


def _gru_backward(
    dy: Maybe, dh: Maybe, weight: Tensor, states: Tensor, gates: Tensor, scaled: Tensor, reverse: bool
) -> tuple[Tensor, ...]:
    """Gradients of outputs and the last state to those of products with inputs, the first state, and inner products."""
    hidden, delta, inner = weight.shape[1], torch.empty_like(gates), torch.empty_like(gates)
    dh = _begin(dh, states[0])
    if gates.is_meta:
        return delta, dh, inner
    before = _after(states, not reverse)
    (r, z, n), (ir, iz, in_) = torch.split(gates, hidden, 2), torch.split(inner, hidden, 2)
    dn = delta[:, :, 2 * hidden :]
    # What each gradient is a multiple of, for all times at once.
    aten.tanh_backward.grad_input(1 - z, n, grad_input=dn)
    aten.sigmoid_backward.grad_input(dn * scaled, r, grad_input=ir)
    aten.sigmoid_backward.grad_input(before - n, z, grad_input=iz)
    torch.mul(dn, r, out=in_)
    product, back = _Product(weight.t()), not reverse
    parts = (_times(each, back) for each in (inner, inner.view(*inner.shape[:2], 3, hidden), dn, z))
    for t, (whole, three, new, stay) in enumerate(zip(*parts, strict=True)):
        if dy is not None:
            dh = dh.add_(dy[t if reverse else -1 - t])
        three.mul_(dh[:, None])
        new.mul_(dh)
        dh = product.to(whole, torch.empty_like(dh)).addcmul_(dh, stay)
    delta[:, :, : 2 * hidden] = inner[:, :, : 2 * hidden]
    return delta, dh, inner


def _rnn(x: Tensor, h: Tensor, weight: Tensor, relu: bool, reverse: bool) -> Tensor:
    """Products with the input [time, row, hidden] to states before and after all times."""
    states = x.new_empty(x.shape[0] + 1, x.shape[1], weight.shape[1])
    if x.is_meta:
        return states
    hs, product = _times(states, reverse), _Product(weight)
    hs[0].copy_(h)
    for t, given in enumerate(_times(x, reverse)):
        product.add(given, hs[t], hs[t + 1])
        hs[t + 1].relu_() if relu else _tanh(hs[t + 1], hs[t + 1])
    return states


def _rnn_backward(
    dy: Maybe, dh: Maybe, weight: Tensor, states: Tensor, relu: bool, reverse: bool
) -> tuple[Tensor, ...]:
    """Gradients of outputs and the last state to those of products and of the first state."""
    outputs = _after(states, reverse)
    delta, dh = torch.empty_like(outputs), _begin(dh, states[0])
    if states.is_meta:
        return delta, dh
    product, back = _Product(weight.t()), not reverse
    for t, (after, out) in enumerate(zip(_times(outputs, back), _times(delta, back), strict=True)):
        if dy is not None:
            dh = dh.add_(dy[t if reverse else -1 - t])
        if relu:
            aten.threshold_backward.grad_input(dh, after, 0, grad_input=out)
        else:
            aten.tanh_backward.grad_input(dh, after, grad_input=out)
        dh = product.to(out, dh)
    return delta, dh


LIBRARY = torch.library.Library("wholegrain", "DEF")  # type: ignore[no-untyped-call]
OPERATIONS: dict[str, Callable[..., Any]] = {
    "lstm(Tensor x, Tensor h, Tensor c, Tensor weight, bool reverse) -> (Tensor, Tensor, Tensor)": _lstm,
    "lstm_backward(Tensor? dy, Tensor? dh, Tensor? dc, Tensor weight, Tensor cells, Tensor gates, bool reverse)"
    " -> (Tensor, Tensor, Tensor)": _lstm_backward,
    "gru(Tensor x, Tensor h, Tensor weight, Tensor? bias, bool reverse) -> (Tensor, Tensor, Tensor)": _gru,
    "gru_backward(Tensor? dy, Tensor? dh, Tensor weight, Tensor states, Tensor gates, Tensor scaled, bool reverse)"
    " -> (Tensor, Tensor, Tensor)": _gru_backward,
    "rnn(Tensor x, Tensor h, Tensor weight, bool relu, bool reverse) -> Tensor": _rnn,
    "rnn_backward(Tensor? dy, Tensor? dh, Tensor weight, Tensor states, bool relu, bool reverse)"
    " -> (Tensor, Tensor)": _rnn_backward,
}
for _schema, _kernel in OPERATIONS.items():
    LIBRARY.define(_schema)  # type: ignore[no-untyped-call]
    # For every device by the same code; tensors without memory leave it as soon as shapes are known.
    LIBRARY.impl(_schema.partition("(")[0], _kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


class _Recurrence(torch.autograd.Function):
    """Products with inputs, the weight and bias for states, and first states to outputs, last states, what is kept."""

    @staticmethod
    def forward(
        name: str, options: tuple[bool, ...], x: Tensor, weight: Tensor, bias: Maybe, *begins: Tensor
    ) -> tuple[Tensor, ...]:
        more = (bias,) if name == "gru" else ()
        made = getattr(torch.ops.wholegrain, name)(x, *begins, weight, *more, *options)
        kept = made if isinstance(made, tuple) else (made,)
        last = 0 if options[-1] else -1
        return _after(kept[0], options[-1]), *(states[last] for states in kept[: len(begins)]), *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.name, ctx.options, _, weight, _, *begins = inputs
        ctx.ends = len(begins)
        kept = output[1 + ctx.ends :]
        ctx.save_for_backward(weight, *kept)
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Maybe, *others: Maybe) -> tuple[Maybe, ...]:
        """Weights' gradients are ordinary products, which add rows up."""
        weight, *kept = ctx.saved_tensors
        back = getattr(torch.ops.wholegrain, f"{ctx.name}_backward")
        needed = kept[1:] if ctx.name == "lstm" else kept
        delta, *more = back(dy, *others[: ctx.ends], weight, *needed, *ctx.options)
        inner = (more[-1] if ctx.name == "gru" else delta).flatten(0, 1)
        before = _after(kept[0], not ctx.options[-1]).flatten(0, 1)
        of_weight = inner.t() @ before if ctx.needs_input_grad[3] else None
        of_bias = inner.sum(0) if ctx.needs_input_grad[4] else None
        return None, None, delta, of_weight, of_bias, *more[: ctx.ends]


Kind = tuple[str, tuple[bool, ...]]
KINDS: dict[Any, Kind] = {
    torch.lstm: ("lstm", ()),
    torch.gru: ("gru", ()),
    torch.rnn_tanh: ("rnn", (False,)),
    torch.rnn_relu: ("rnn", (True,)),
}
NAMES = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")


class WholeRecurrent(TorchFunctionMode):
    """While a model is recorded, its recurrent layers are these operations.

    What these do not know stays with torch, which takes it apart: projections, inputs that are no batches of sequences,
    several types of numbers at once. Dropout between layers belongs to no item, and is refused.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._VF._pack_padded_sequence:
            raise NotImplementedError(
                "packed sequences are as long as values say; leave them padded to one length, and take each one's last"
                " output by gather"
            )
        given = dict(zip(NAMES, args, strict=False)) | kwargs
        if func not in KINDS or not _fits(given):
            return func(*args, **kwargs)
        if given["dropout"] and given["train"] and given["num_layers"] > 1:
            raise ModelError(
                f"The dropout between layers of torch.{func.__name__} belongs to no item; use nn.Dropout, or switch it"
                " off (its dropout = 0, or the model's .eval())."
            )
        return _compute(KINDS[func], given)


def _states(given: dict[str, Any]) -> list[Tensor]:
    """First states [layer and direction, row, hidden], of which an LSTM has two."""
    return [given["hx"]] if isinstance(given["hx"], Tensor) else list(given["hx"])


def _fits(given: dict[str, Any]) -> bool:
    """Whether this is a batch of sequences of one length, for layers without projections, in one type of numbers."""
    if set(given) != set(NAMES) or not isinstance(given["has_biases"], bool):
        return False  # of packed sequences
    x, params, states = given["input"], given["params"], _states(given)
    if x.dim() != 3 or not x.numel() or not x.is_floating_point() or torch.is_autocast_enabled(x.device.type):
        return False
    count = given["num_layers"] * (2 if given["bidirectional"] else 1)
    rows = x.shape[0 if given["batch_first"] else 1]
    return (
        len(params) == count * (4 if given["has_biases"] else 2)
        and {state.shape for state in states} == {(count, rows, params[1].shape[1])}
        and len({(each.dtype, each.device) for each in (x, *states, *params)}) == 1
    )


def _compute(kind: Kind, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Outputs of all layers, one after the other in each of one or two directions, and their last states."""
    x, params, states, ends = given["input"], given["params"], _states(given), []
    x = x.transpose(0, 1) if given["batch_first"] else x
    count, ways = len(states[0]), 2 if given["bidirectional"] else 1
    each = len(params) // count
    for k in range(0, count, ways):
        outs = []
        for way in range(k, k + ways):
            begins = [state[way] for state in states]
            out, *end = _layer(kind, x, params[way * each : (way + 1) * each], begins, way > k)
            outs.append(out)
            ends.append(end)
        x = torch.cat(outs, 2) if ways > 1 else outs[0]
    out = x.transpose(0, 1) if given["batch_first"] else x
    # What may be written into is no longer memory that the way back reads.
    out = out.clone(memory_format=torch.contiguous_format) if ways == 1 else out
    return out, *(torch.stack(part) for part in zip(*ends, strict=True))


def _layer(kind: Kind, x: Tensor, weights: Sequence[Tensor], begins: list[Tensor], reverse: bool) -> Sequence[Tensor]:
    """Outputs of a layer in one direction, and its last states."""
    (name, options), (weight, recurrent, *biases) = kind, weights
    bias, inner = biases or (None, None)
    if bias is not None and inner is not None and name != "gru":  # whose last gate scales what the other is added to
        bias, inner = bias + inner, None
    rows = x.flatten(0, 1)
    product = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    given = product.view(*x.shape[:2], len(weight)), recurrent, inner, *begins
    made: Sequence[Tensor] = _Recurrence.apply(name, (*options, reverse), *given)  # type: ignore[no-untyped-call]
    return made[: 1 + len(begins)]
