"""What a program does while it is recorded: what is kept of it, and what it may not do."""

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tape_runs import hold, prove, record_of, run
from wholegrain.clipping.rows import Kind, Place, Proof
from wholegrain.clipping.trace import SIZES, NotTraceable, Recorder, Sized, Tape, record

DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(7, 6, generator=DRAWS)
Y = torch.randint(0, 3, (7,), generator=DRAWS)
Leaves = dict[str, Tensor]


def record_model(model: nn.Module, x: Any = X, loss: Any = nn.functional.cross_entropy) -> Tape:
    """Forward and backward, as the engine does."""
    parameters = dict(model.named_parameters())
    rows = x if isinstance(x, dict) else {"x": x}

    def program(recorder: Recorder) -> Sequence[Tensor | None]:
        leaves = {name: recorder.input(name, each).requires_grad_() for name, each in parameters.items()}
        given = {name: recorder.input(name, each, each.shape) for name, each in rows.items()}
        y = recorder.input("y", Y, Y.shape)
        with torch.enable_grad():
            outputs = functional_call(model, leaves, (given if isinstance(x, dict) else given["x"],))
            losses = torch.vmap(lambda o, t: loss(o[None], t[None]))(outputs, y)
            return [losses, *torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)]

    return record(SIZES[0], program)


class Model(nn.Module):
    """A linear layer after what somebody does to the batch."""

    def __init__(self, does: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.does, self.out = does, nn.Linear(6, 3)
        self.register_buffer("kept", torch.zeros(6))
        self.calls, self.seen, self.draws = 0, [], np.random.default_rng(0)
        self.last: Any = None
        self.parts = torch.arange(24.0).view(4, 6).unbind()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.does(self, x))


def _counts_calls(self: Model, x: Tensor) -> Tensor:
    self.calls += 1
    return x * self.calls


def _keeps_a_value(self: Model, x: Tensor) -> Tensor:
    before, self.last = self.last, x
    return x if before is None else x + before.mean()


def _grows(self: Model, x: Tensor) -> Tensor:
    self.seen.append(x.mean())
    return x - sum(self.seen)


def _keeps_the_greatest(self: Model, x: Tensor) -> Tensor:
    self.kept = torch.maximum(self.kept, x.amax())
    return x / self.kept.clamp(min=1)


def _changes_its_mind(self: Model, x: Tensor) -> Tensor:
    try:
        return x / x.max().item()
    except Exception:
        return x


def _in_a_thread(_: Model, x: Tensor) -> Tensor:
    made: list[Any] = []

    def work() -> None:
        with contextlib.suppress(NotTraceable):
            made.append(x.flip(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return made[0]


class _MixesBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / g.norm()


class _Stores(torch.autograd.Function):
    last: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        before, _Stores.last = _Stores.last, x
        return x.clone() if before is None else x + before

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def _keeps_in_step(self: Model, x: Tensor) -> Tensor:
    self.kept += 1
    return x * self.kept


def _takes_turns(self: Model, x: Tensor) -> Tensor:
    self.calls += 1
    return x + self.parts[self.calls]


def _writes_a_parameter(self: Model, x: Tensor) -> Tensor:
    self.out.weight.data.clamp_(-1, 1)
    return x


REFUSED: dict[str, tuple[Callable[[Model, Tensor], Tensor], str]] = {
    "item": (lambda _, x: x / x.max().item(), "decides by values"),
    "if": (lambda _, x: -x if (x > 7).any() else x, "decides by values"),
    "if of a parameter": (lambda self, x: -x if (self.out.weight > 7).any() else x, "decides by values"),
    "if of a buffer": (lambda self, x: -x if self.kept.sum() > 7 else x, "decides by values"),
    "list": (lambda _, x: x * len(set(x.flatten().tolist())), ""),
    "numpy": (lambda _, x: x + torch.from_numpy(x.detach().numpy()).mean(), ""),
    "array": (lambda _, x: x + float(np.asarray(x.detach()).mean()), ""),
    "pointer": (lambda _, x: x + x.data_ptr(), ""),
    "data": (lambda _, x: x - x.data.mean(), "values of several rows"),
    "nonzero": (lambda _, x: x + len(x.nonzero()), "values"),
    "mask": (lambda _, x: x - x[x > 0].mean(), "depends on values"),
    "unique": (lambda _, x: x + x.unique().mean(), "values"),
    "goes on after a refusal": (_changes_its_mind, "decides by values"),
    "calls": (_counts_calls, "changes from call to call"),
    "kept value": (_keeps_a_value, "earlier batch"),
    "growing list": (_grows, "earlier batch"),
    "greatest so far": (_keeps_the_greatest, "earlier batch"),
    "buffer": (_keeps_in_step, "changes a tensor that it keeps"),
    "buffer by a view": (lambda self, x: x + self.kept[:3].add_(1).sum(), "changes a tensor that it keeps"),
    "buffer of rows": (lambda self, x: x + self.kept.copy_(x[0]), "changes a tensor that it keeps"),
    "parameter": (_writes_a_parameter, "changes its own parameters"),
    "thread": (_in_a_thread, ""),
    "torch's draws": (lambda _, x: x + torch.randn(6), "draws random numbers"),
    "dropout": (lambda _, x: nn.functional.dropout(x), "draws random numbers"),
    "dropout of attention": (
        lambda _, x: nn.functional.scaled_dot_product_attention(*[x[:, None, None]] * 3, dropout_p=0.5)[:, 0, 0],
        "draws random numbers",
    ),
    "python's draws": (lambda _, x: x * random.random(), ""),
    "numpy's draws": (lambda _, x: x + torch.from_numpy(np.random.rand(6)).float(), ""),
    "draws of its own": (
        lambda self, x: x + torch.from_numpy(self.draws.random(6)).float(),
        "changes from call to call",
    ),
    "unwritten": (lambda _, x: x + torch.empty_permuted((6,), (0,)), "nobody has written"),
    "backward": (lambda _, x: _MixesBack.apply(x * 1.0), ""),
    "function with state": (lambda _, x: _Stores.apply(x), "earlier batch"),
    "batch norm": (
        lambda _, x: nn.functional.batch_norm(x, torch.zeros(6), torch.ones(6), training=True),
        "statistics",
    ),
    "by the number of rows": (lambda _, x: x * 2 if len(x) % 2 else x.flip(0) if len(x) == SIZES[1] else x, ""),
    "another program for more rows": (lambda _, x: x.flip(0) if len(x) > SIZES[0] else x, "number of rows"),
    "another part each time": (_takes_turns, "changes from call to call"),
    "complex": (lambda _, x: torch.fft.ifft(torch.fft.fft(x, dim=0), dim=0).real, ""),
    "sparse": (lambda _, x: x + x.to_sparse().to_dense(), ""),
    "out": (lambda _, x: torch.add(x, 1, out=torch.zeros(len(x), 6)), "writes into a tensor"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [each for each in REFUSED if each not in ("backward", "by the number of rows")])
def test_a_program_that_is_no_fixed_list_of_operations_on_rows_is_refused(name: str) -> None:
    does, reason = REFUSED[name]
    _Stores.last = None
    with pytest.raises(NotTraceable, match=reason):
        prove(record_model(Model(does)), {"x": X, "y": Y})


def test_a_backward_pass_that_mixes_is_refused_with_its_line() -> None:
    model = nn.Sequential(nn.Linear(6, 6), Model(lambda _, x: _MixesBack.apply(x)))
    with pytest.raises(NotTraceable, match=r"linalg_vector_norm .*test_trace.py"):
        prove(record_model(model), {"x": X, "y": Y})


def test_a_step_with_random_numbers_that_leave_no_trace_is_refused() -> None:
    def draws(_: Model, x: Tensor) -> Tensor:
        random.random()
        return x

    with pytest.raises(NotTraceable, match="random"):
        record_model(Model(draws))


def _embedding(**options: Any) -> nn.Module:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 3, **options)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).mean(1)

    return Reads()


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_tables_that_are_changed_or_scaled_by_the_batch_are_refused(option: dict[str, Any]) -> None:
    tokens = torch.randint(0, 9, (7, 5), generator=DRAWS)
    with pytest.raises(NotTraceable):
        prove(record_model(_embedding(**option), tokens), {"x": tokens, "y": Y})


def test_batch_norm_in_training_says_what_to_do() -> None:
    with pytest.raises(NotTraceable, match=r"unless one calls eval\(\)"):
        record_model(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).train())


def test_a_refusal_names_the_operation_and_the_line_that_does_it() -> None:
    def mixes(_: Model, x: Tensor) -> Tensor:
        return x - x.mean(0)

    with pytest.raises(NotTraceable, match=r"in mean values of several rows are put together") as found:
        prove(record_model(Model(mixes)), {"x": X, "y": Y})
    line = mixes.__code__.co_firstlineno + 1
    assert found.value.line == f"test_trace.py, line {line}, in mixes"


# What is done in place is replayed as it was done.


def _views(_: Model, x: Tensor) -> Tensor:
    base = x * 1.0
    first, rest = base[:, :2], base[:, 2:]
    turned = base.t()
    first.mul_(3)
    turned[5] += 1.0
    base.relu_()
    rest.copy_(first.sum(1, keepdim=True).expand(-1, 4))
    return torch.cat([first, rest, turned.t()], 1)[:, 2:8] + base


def _through_data(_: Model, x: Tensor) -> Tensor:
    y = x + 1
    y.data.mul_(2)
    y.detach()[:, 0] = 5.0
    return y


def _on_the_input(_: Model, x: Tensor) -> Tensor:
    before = x.clone()
    x.clamp_(min=0)
    return before + x.unsqueeze(1).squeeze_(1)


def _masks(_: Model, x: Tensor) -> Tensor:
    mask = torch.zeros(6, 6)
    mask[2:, :3] = float("-inf")
    mask.fill_diagonal_(0) if False else mask.view(36)[::7].zero_()
    scores = x[:, :, None] * x[:, None, :] + mask
    return scores.softmax(-1).sum(1)


def _integers(_: Model, x: Tensor) -> Tensor:
    count = torch.zeros(len(x), 6, dtype=torch.int64)
    count += (x > 0).long()
    count.add_(1).mul_(2)
    return x * count


@pytest.mark.parametrize("does", [_views, _through_data, _on_the_input, _masks, _integers])
def test_what_is_done_in_place_is_replayed(does: Callable[[Model, Tensor], Tensor]) -> None:
    model = Model(does)
    rows, parameters = {"x": X, "y": Y}, {name: each.detach() for name, each in model.named_parameters()}
    tape = record_model(model)
    proof = prove(tape, rows)
    assert not any(op.mutates for op in tape.ops)
    made = run(tape, {**rows, **parameters}, len(X))
    outputs = model(X.clone())
    losses = nn.functional.cross_entropy(outputs, Y, reduction="none")
    expected = [losses, *torch.autograd.grad(losses.sum(), list(model.parameters()))]
    for number, each in zip(tape.outputs, expected, strict=True):
        torch.testing.assert_close(made[number], each.detach())
    hold(proof, rows, parameters)


def test_a_tape_serves_any_number_of_rows() -> None:
    model = Model(lambda _, x: x.reshape(-1, 2).tanh().reshape(x.shape[0], 6) + torch.zeros(len(x), 1))
    tape = record_model(model)
    assert [Sized(1), 6] in [op.args[1] for op in tape.ops if op.name == "reshape"]
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    for rows in (1, 4):
        made = run(tape, {"x": X[:rows], "y": Y[:rows], **parameters}, rows)
        expected = nn.functional.cross_entropy(model(X[:rows]), Y[:rows], reduction="none")
        torch.testing.assert_close(made[tape.outputs[0]], expected.detach())


def test_one_row_is_not_squeezed_away() -> None:
    rows = {"x": X[:, :1]}
    for squeezed in (lambda x: x.squeeze(), lambda x: x.squeeze(0), lambda x: x.squeeze((0, 1))):
        tape = record_of(squeezed, rows)
        for count in (1, 4):
            made = run(tape, {"x": X[:count, :1]}, count)[tape.outputs[0]]
            assert made.shape[0] == count
    hold(prove(tape, rows), rows, {})


def test_a_kept_tensor_is_used_by_what_it_is_now() -> None:
    model = Model(lambda self, x: x + self.kept.exp())
    tape = record_model(model)
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    model.kept.fill_(2.0)
    made = run(tape, {"x": X, "y": Y, **parameters}, len(X))
    expected = nn.functional.cross_entropy(model(X), Y, reduction="none")
    torch.testing.assert_close(made[tape.outputs[0]], expected.detach())


def test_what_depends_on_nothing_is_computed_once_and_what_nothing_depends_on_never() -> None:
    def does(_: Model, x: Tensor) -> Tensor:
        x.mean(0)
        return x + torch.arange(6).flip(0).float().cos()

    tape = record_model(Model(does))
    assert {"arange", "flip", "cos", "mean"}.isdisjoint(op.name for op in tape.ops)
    assert any(torch.equal(each, torch.arange(6).flip(0).float().cos()) for each in tape.constants.values())


def test_inputs_may_be_several_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(9, 3), nn.Linear(6, 3)

        def forward(self, given: Leaves) -> Tensor:
            return self.out(given["a"]) + self.table(given["b"]).mean(1)

    rows = {"a": X, "b": torch.randint(0, 9, (7, 4), generator=DRAWS)}
    model = Two()
    tape = record_model(model, rows)
    proof = prove(tape, {**rows, "y": Y})
    assert [proof.where[each] for each in tape.outputs if each is not None] == [Place(0), *[Kind.SUMMED] * 3]
    hold(proof, {**rows, "y": Y}, {name: each.detach() for name, each in model.named_parameters()})
    with pytest.raises(NotTraceable, match="rows where none are expected"):
        Proof.of(tape, ("a", "y"))


def test_ends_are_found_by_operation_and_not_by_layer() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3, bias=False))
    proof = prove(record_model(model), {"x": X, "y": Y})
    assert [(end.rule, end.outs) for end in proof.ends] == [
        ("product", (0,)), ("layer norm", (1, 2)), ("product", (0,)), ("sum", (0,)),
    ]  # fmt: skip


def test_a_group_norm_of_inputs_needs_no_gradient_of_them() -> None:
    model = nn.Sequential(nn.GroupNorm(2, 6), nn.Linear(6, 3))
    proof = prove(record_model(model), {"x": X, "y": Y})
    assert ("group norm", (1, 2)) in [(end.rule, end.outs) for end in proof.ends]
    hold(proof, {"x": X, "y": Y}, {name: each.detach() for name, each in model.named_parameters()})


def test_a_shadow_is_of_no_use_after_the_recording() -> None:
    model = Model(_keeps_a_value)
    with contextlib.suppress(NotTraceable):
        record_model(model)
    with pytest.raises(NotTraceable, match="after the model was recorded"):
        model.last + 1


def test_one_row_is_no_recording() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        record(1, lambda recorder: [])


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_parts_are_recorded_operation_by_operation() -> None:
    with pytest.raises(NotTraceable, match="in mean"):
        prove(record_of(torch.jit.script(_mixing_script), {"x": X}), {"x": X})


def _mixing_script(x: Tensor) -> Tensor:
    return x - x.mean(0)
