"""Recurrent layers that are kept whole: torch's own in every option, and each row by itself."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.utils._python_dispatch import TorchDispatchMode

from wholegrain.clipping.recurrent import WORTH, WholeRecurrent, _Recurrence
from wholegrain.errors import ModelError

Kind = Callable[..., nn.RNNBase]
KINDS: dict[str, Kind] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": partial(nn.RNN, nonlinearity="relu"),
}
OPTIONS = ("bidirectional", "batch_first", "bias", "begins")
NEAR = {torch.float32: 1e-6, torch.float64: 1e-12}
TIMES, ROWS, GATES = 7, 5, {"lstm": 4, "gru": 3, "rnn": 1}
whole = torch.ops.wholegrain


class Calls(TorchDispatchMode):
    """Keeps the operations of the package, with what they were given and what they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, tuple[Any, ...], tuple[Tensor, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.namespace == "wholegrain":
            self.made.append((func.name().partition("::")[2], args, made if isinstance(made, tuple) else (made,)))
        return made


def sequences(net: nn.RNNBase, kind: torch.dtype = torch.float64, width: int = 3) -> Tensor:
    shape = (ROWS, TIMES, width) if net.batch_first else (TIMES, ROWS, width)
    return torch.randn(shape, dtype=kind, requires_grad=True)


def beginnings(net: nn.RNNBase, kind: torch.dtype) -> list[Tensor]:
    shape = (net.num_layers * (1 + net.bidirectional), ROWS, net.hidden_size)
    count = 2 if isinstance(net, nn.LSTM) else 1
    return [torch.randn(shape, dtype=kind, requires_grad=True) for _ in range(count)]


def results(net: nn.RNNBase, x: Tensor, begins: list[Tensor]) -> list[Tensor]:
    """Outputs, last states, and gradients of a loss that hangs on all of them."""
    out, ends = net(x, (tuple(begins) if len(begins) > 1 else begins[0]) if begins else None)
    ends = ends if isinstance(ends, tuple) else (ends,)
    loss = out.square().sum() + sum((k + 2) * end.sin().sum() for k, end in enumerate(ends))
    return [out, *ends, *torch.autograd.grad(loss, [x, *net.parameters(), *begins])]


def farthest(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, in parts of the largest value where that is above 1."""
    assert [each.shape for each in found] == [each.shape for each in expected]
    pairs = zip(found, expected, strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs)


@pytest.mark.parametrize("kind", NEAR, ids=("float32", "float64"))
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", KINDS)
def test_torchs_own_in_every_option(name: str, layers: int, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    for chosen in product((False, True), repeat=len(OPTIONS)):
        options = dict(zip(OPTIONS, chosen, strict=True))
        begins = options.pop("begins")
        net = KINDS[name](3, 4, num_layers=layers, dtype=kind, **options)
        x = sequences(net, kind)
        states = beginnings(net, kind) if begins else []
        expected = results(net, x, states)
        with WholeRecurrent(), Calls() as calls:
            found = results(net, x, states)
        assert farthest(found, expected) < NEAR[kind], (options, begins)
        assert len(calls.made) == 2 * layers * (1 + net.bidirectional)


@pytest.mark.parametrize("name", KINDS)
def test_weights_that_onednn_multiplies(name: str) -> None:
    torch.manual_seed(0)
    net = KINDS[name](8, 192, bidirectional=True)
    assert net.weight_hh_l0.numel() >= WORTH
    x = sequences(net, torch.float32, 8)
    expected = results(net.double(), x.detach().double().requires_grad_(), [])
    with WholeRecurrent():
        found = results(net.float(), x, [])
    assert farthest([each.double() for each in found], expected) < NEAR[torch.float32]


def arguments(name: str, rows: int = ROWS, hidden: int = 4, kind: torch.dtype = torch.float64) -> list[Tensor]:
    """Products with inputs, weight, bias of a GRU, and first states."""
    gates = GATES[name] * hidden
    make = partial(torch.randn, dtype=kind)
    bias = [make(gates)] if name == "gru" else []
    begins = [make(rows, hidden) for _ in range(2 if name == "lstm" else 1)]
    return [make(TIMES, rows, gates), make(gates, hidden) / hidden**0.5, *bias, *begins]


def recur(name: str, options: tuple[bool, ...], *given: Tensor) -> tuple[Tensor, ...]:
    """Outputs and last states."""
    x, weight, *others = given
    bias = others.pop(0) if name == "gru" else None
    made: tuple[Tensor, ...] = _Recurrence.apply(name, options, x, weight, bias, *others)
    return made[: 1 + len(others)]


WAYS = [
    (name, (*first, reverse))
    for name, firsts in {"lstm": [()], "gru": [()], "rnn": [(False,), (True,)]}.items()
    for first in firsts
    for reverse in (False, True)
]
every_way = pytest.mark.parametrize(("name", "options"), WAYS)


@every_way
def test_gradients_by_finite_differences(name: str, options: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    given = [each.requires_grad_() for each in arguments(name)]
    assert torch.autograd.gradcheck(partial(recur, name, options), given)


def backward_arguments(name: str, options: tuple[bool, ...], given: list[Tensor]) -> list[Any]:
    """Of the operation of the way back, by which the forward one was called on `given`."""
    x, weight, *others = given
    bias = [others.pop(0)] if name == "gru" else []
    made = getattr(whole, name)(x, *others, weight, *bias, *options)
    kept = made if isinstance(made, tuple) else (made,)
    out = torch.randn_like(kept[0][1:])
    ends = [torch.randn_like(each) for each in others]
    return [out, *ends, weight, *(kept[1:] if name == "lstm" else kept), *options]


@every_way
def test_operations_keep_what_they_are_given_and_know_their_shapes(name: str, options: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    x, weight, *others = given = arguments(name)
    bias = [others.pop(0)] if name == "gru" else []
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(getattr(whole, name).default, (x, *others, weight, *bias, *options), test_utils=tests)
    back = backward_arguments(name, options, given)
    torch.library.opcheck(getattr(whole, f"{name}_backward").default, tuple(back), test_utils=tests)


@pytest.mark.parametrize("kind", NEAR, ids=("float32", "float64"))
@pytest.mark.parametrize("hidden", [4, 192])
@pytest.mark.parametrize("others", [1e3, float("nan"), float("inf")])
@every_way
def test_a_row_has_the_same_bits_whatever_the_others_hold(
    name: str, options: tuple[bool, ...], others: float, hidden: int, kind: torch.dtype
) -> None:
    torch.manual_seed(0)

    def changed(each: Any) -> Any:
        """All rows but one are others; what everybody shares stays."""
        if not isinstance(each, Tensor) or each.dim() < 2 or each.shape[-2] != ROWS:
            return each
        found = torch.randn_like(each) * others
        found[..., 2, :] = each[..., 2, :]
        return found

    x, weight, *more = given = arguments(name, hidden=hidden, kind=kind)
    bias = [more.pop(0)] if name == "gru" else []
    for operation, values in (
        (getattr(whole, name), [x, *more, weight, *bias, *options]),
        (getattr(whole, f"{name}_backward"), backward_arguments(name, options, given)),
    ):
        before, after = operation(*values), operation(*(changed(each) for each in values))
        for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (before, after)), strict=True):
            assert torch.equal(one[..., 2, :], other[..., 2, :])
            assert not torch.equal(one[..., 3, :], other[..., 3, :])


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_rows_lie_along_the_second_last_dimension(name: str, first: bool) -> None:
    net = KINDS[name](3, 4, num_layers=2, bidirectional=True, batch_first=first, dtype=torch.float64)
    with WholeRecurrent(), Calls() as calls:
        results(net, sequences(net), beginnings(net, torch.float64))
    weights = {each.data_ptr() for each in net.parameters()}
    for _, given, made in calls.made:
        rows = [each for each in given if isinstance(each, Tensor) and each.data_ptr() not in weights]
        assert {each.shape[-2] for each in (*rows, *made)} == {ROWS}
        assert sum(isinstance(each, Tensor) for each in given) - len(rows) == (
            2 if name == "gru" and len(made[0]) > TIMES else 1
        )


@pytest.mark.parametrize("name", KINDS)
def test_gradients_under_function_transforms(name: str) -> None:
    torch.manual_seed(0)
    net = KINDS[name](3, 4, num_layers=2, bidirectional=True, dtype=torch.float64)
    x, found = sequences(net).detach(), []
    weights = {each: value.detach() for each, value in net.named_parameters()}
    for mode in (nullcontext(), WholeRecurrent()):
        with mode:
            out, pull = vjp(lambda given: functional_call(net, given, (x,))[0].square(), weights)
            found.append([out, *pull(torch.ones_like(out))[0].values()])
    assert farthest(found[1], found[0]) < NEAR[torch.float64]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_outputs_may_be_written_into(name: str, first: bool) -> None:
    torch.manual_seed(0)
    net = KINDS[name](3, 4, batch_first=first, dtype=torch.float64)
    x = sequences(net)
    with WholeRecurrent():
        expected = torch.autograd.grad(net(x)[0].mul(3).square().sum(), [x, *net.parameters()])
        found = torch.autograd.grad(net(x)[0].mul_(3).square().sum(), [x, *net.parameters()])
    assert farthest(list(found), list(expected)) == 0


def test_second_derivatives_are_refused() -> None:
    net = nn.LSTM(3, 4, dtype=torch.float64)
    x = sequences(net)
    with WholeRecurrent():
        (gradient,) = torch.autograd.grad(net(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("name", KINDS)
def test_dropout_between_layers_is_refused(name: str) -> None:
    net = KINDS[name](3, 4, num_layers=2, dropout=0.5, dtype=torch.float64)
    x = sequences(net)
    with WholeRecurrent(), pytest.raises(ModelError, match=r"^The dropout between layers of torch\.\w+ .* nn\.Dropout"):
        net(x)
    net.eval()
    expected = results(net, x, [])
    with WholeRecurrent():
        assert farthest(results(net, x, []), expected) < NEAR[torch.float64]


def test_packed_sequences_are_refused_with_a_remedy() -> None:
    with WholeRecurrent(), pytest.raises(NotImplementedError, match="leave them padded to one length"):
        nn.utils.rnn.pack_padded_sequence(torch.zeros(TIMES, ROWS, 3), torch.tensor([5, 4, 3, 2, 1]))


def packed(net: nn.RNNBase) -> nn.utils.rnn.PackedSequence:
    return nn.utils.rnn.pack_padded_sequence(sequences(net), torch.tensor([5, 4, 3, 2, 1]))


UNKNOWN: dict[str, tuple[dict[str, Any], Callable[[nn.RNNBase], Any]]] = {
    "projections": ({"proj_size": 2}, sequences),
    "packed before": ({}, packed),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_stays_with_torch(case: str) -> None:
    options, make = UNKNOWN[case]
    net = nn.LSTM(3, 4, dtype=torch.float64, **options)
    given = make(net)
    expected = net(given)
    with WholeRecurrent(), Calls() as calls:
        found = net(given)
    assert not calls.made
    assert all(map(torch.equal, found[1], expected[1]))


def test_one_sequence_by_itself() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(3, 4, dtype=torch.float64)
    x = torch.randn(TIMES, 3, dtype=torch.float64, requires_grad=True)
    expected = results(net, x, [])
    with WholeRecurrent():
        assert farthest(results(net, x, []), expected) < NEAR[torch.float64]


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, ROWS, 3)])
def test_first_states_of_another_shape_are_torchs_error(shape: tuple[int, ...]) -> None:
    net = nn.GRU(3, 4, dtype=torch.float64)
    weights = [each.detach() for each in net.parameters()]
    x, h = torch.zeros(TIMES, ROWS, 3, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    messages = []
    for mode in (nullcontext(), WholeRecurrent()):
        with mode, pytest.raises(RuntimeError) as error:
            torch.gru(x, h, weights, True, 1, 0.0, True, False, False)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_lower_precision_stays_with_torch() -> None:
    net = nn.GRU(3, 4)
    x = torch.zeros(TIMES, ROWS, 3)
    with torch.autocast("cpu", torch.bfloat16), WholeRecurrent(), Calls() as calls:
        net(x)
    assert not calls.made
