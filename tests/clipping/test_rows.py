"""Each rule of the proof, held against what the operation does to numbers, and what mixes rows against its refusal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from row_cases import AFTER, APART, BACKWARD, BEFORE, HOLDS, LOSSES, MIXING, WEIGHT, X
from tape_runs import agree, hold, is_by_row, prove, record_of
from wholegrain.clipping.row_places import RULES, Call, Found, rule
from wholegrain.clipping.rows import Kind, Place, Proof
from wholegrain.clipping.trace import NotTraceable, aten


def _back(compute: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function with its gradients: of each row's own sum of squares, so that they hang on all values."""

    def both(**given: Tensor) -> Any:
        leaves = {
            name: each.detach().requires_grad_() if each.is_floating_point() else each for name, each in given.items()
        }
        with torch.enable_grad():
            made = compute(**leaves)
            wanted = [each for each in leaves.values() if each.is_floating_point()]
            return [made, *torch.autograd.grad((made * made).sum(), wanted, allow_unused=True)]

    return both


@pytest.mark.parametrize("name", APART)
def test_what_is_proved_of_every_value_holds_for_hostile_rows(name: str) -> None:
    compute, rows, *more = APART[name]
    shared = more[0] if more else {}
    assert is_by_row(compute, rows, shared)
    tape = record_of(compute, rows, shared)
    proof = prove(tape, rows)
    assert proof.where[tape.outputs[0]] == Place(0)
    hold(proof, rows, shared)
    agree(tape, compute, rows, shared)


@pytest.mark.parametrize("name", BACKWARD)
def test_the_same_of_gradients_whose_sums_over_rows_are_ends(name: str) -> None:
    compute, rows, *more = APART[name]
    shared = more[0] if more else {}
    if not any(each.is_floating_point() for each in (*rows.values(), *shared.values())):
        pytest.skip("nothing to differentiate")
    tape = record_of(_back(compute), rows, shared)
    proof = prove(tape, rows)
    floats = [proof.where[each] for each in tape.outputs[1:] if each is not None]
    assert all(where in (Place(0), Kind.SUMMED) for where in floats), floats
    assert bool(proof.ends) == (Kind.SUMMED in floats)
    hold(proof, rows, shared)
    agree(tape, _back(compute), rows, shared)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_taken_row_by_row(name: str) -> None:
    """Also those that torch itself cannot map over rows."""
    loss, rows = LOSSES[name], {"x": X["x"], "k": torch.randint(0, 6, (len(X["x"]),))}
    tape = record_of(_back(lambda x, k: torch.vmap(lambda o, t: loss(o[None], t[None]))(x, k)), rows)
    proof = prove(tape, rows)
    assert [proof.where[each] for each in tape.outputs if each is not None] == [Place(0)] * 2
    hold(proof, rows, {})
    agree(tape, _back(lambda x, k: torch.stack([loss(x[i : i + 1], k[i : i + 1]) for i in range(len(x))])), rows, {})


@pytest.mark.parametrize("name", MIXING)
def test_what_lets_rows_meet_is_refused_and_really_does(name: str) -> None:
    compute, rows, *more = MIXING[name]
    shared = more[0] if more else {}
    assert not is_by_row(compute, rows, shared)
    assert _accepted(compute, rows, shared) is None


def _accepted(compute: Callable[..., Any], rows: dict[str, Tensor], shared: dict[str, Tensor]) -> Any:
    """What is proved of an output where rows are expected along its first dimension; None where it is refused."""
    try:
        tape = record_of(compute, rows, shared)
        found = prove(tape, rows).where[tape.outputs[0]]
    except NotTraceable:
        return None
    return None if found is Kind.SUMMED or found != Place(0) else found


@pytest.mark.parametrize("name", HOLDS)
def test_a_hook_that_mixes_gradients_is_refused_where_it_stands(name: str) -> None:
    def hooked(x: Tensor, w: Tensor) -> Tensor:
        hidden = x @ w
        hidden.register_hook(HOLDS[name])
        return hidden.tanh()

    with pytest.raises(NotTraceable, match="test_rows"):
        prove(record_of(_back(hooked), X, WEIGHT), X)


@pytest.mark.parametrize("name", AFTER)
def test_what_is_not_linear_in_a_sum_over_rows_is_refused(name: str) -> None:
    with pytest.raises(NotTraceable, match="linear"):
        prove(record_of(lambda x: AFTER[name](x.t() @ x[:, :3]), X), X)


@pytest.mark.parametrize("added", [True, False])
def test_rows_are_put_into_a_table_only_by_adding_them_to_zeros(added: bool) -> None:
    rows = {"k": torch.tensor([0, 1, 1, 2, 2, 2, 5]), "g": torch.ones(7, 3)}
    with pytest.raises(NotTraceable, match="written over each other"):
        prove(
            record_of(lambda k, g, w: (w if added else torch.zeros(6, 3)).index_put((k,), g, added), rows, WEIGHT), rows
        )
    tape = record_of(lambda k, g: torch.zeros(6, 3).index_put((k,), g, True), rows)
    assert [end.rule for end in prove(tape, rows).ends] == ["put"]
    hold(prove(tape, rows), rows, {})


@pytest.mark.parametrize("name", BEFORE)
def test_gradients_go_back_through_what_was_done_to_a_parameter(name: str) -> None:
    tape = record_of(_back(lambda x, w: x @ BEFORE[name](w)), X, WEIGHT)
    proof = prove(tape, X)
    assert [proof.where[each] for each in tape.outputs if each is not None] == [Place(0), Place(0), Kind.SUMMED]
    hold(proof, X, WEIGHT)


def test_what_is_linear_in_a_sum_over_rows_is_one() -> None:
    def linear(x: Tensor, w: Tensor) -> Tensor:
        total = x.t() @ x[:, :3]
        total = (2 * total - w * total).masked_fill(torch.eye(6, 3).bool(), 0.0) + total.flip(0) / w
        return torch.cat([total, total.t() @ w]).transpose(0, 1).sum(1)

    tape = record_of(linear, X, WEIGHT)
    proof = prove(tape, X)
    assert proof.where[tape.outputs[0]] is Kind.SUMMED
    hold(proof, X, WEIGHT)


def test_pointwise_operations_of_torch_are_pointwise() -> None:
    """All that torch marks as such, of one or two values: the mark is trusted for torch's own operations alone."""
    tried = 0
    for name in dir(aten):
        for target in (getattr(getattr(aten, name), each) for each in _overloads(name)):
            if torch.Tag.pointwise in target.tags and not target._schema.is_mutable:
                tried += _is_pointwise(target)
    assert tried > 150


def _overloads(name: str) -> list[str]:
    packet = getattr(aten, name)
    return list(packet.overloads()) if hasattr(packet, "overloads") else []


def _is_pointwise(target: Any) -> bool:
    kinds = [str(each.type) for each in target._schema.arguments if not each.has_default_value()]
    gives = {str(each.type) for each in target._schema.returns}
    if set(kinds) - {"Tensor", "number"} or "Tensor" not in kinds or gives != {"Tensor"}:
        return False
    for draw in (lambda: torch.rand(4, 3) + 0.5, lambda: torch.randint(1, 4, (4, 3))):
        given = [draw() if kind == "Tensor" else 2 for kind in kinds]
        changed = [each.clone() if isinstance(each, Tensor) else each for each in given]
        for each in changed:
            if isinstance(each, Tensor):
                each[1] = 3
        try:
            one, other = target(*given), target(*changed)
        except (RuntimeError, NotImplementedError):  # not for such numbers
            continue
        for a, b in zip(*((each if isinstance(each, tuple) else (each,)) for each in (one, other)), strict=True):
            assert a.shape == (4, 3), target
            assert torch.equal(a[[0, 2, 3]].nan_to_num(), b[[0, 2, 3]].nan_to_num()), target
        return True
    return False


# A rule for a new operation is one function; here somebody's own, which torch knows by its library's name.
LIBRARY = torch.library.Library("rows_test", "DEF")
LIBRARY.define("relu(Tensor x) -> Tensor", tags=[torch.Tag.pointwise])
LIBRARY.define("scale(Tensor x, Tensor by) -> Tensor")
for _name, _kernel in {"relu": lambda x: x - x.mean(), "scale": lambda x, by: x * by}.items():
    LIBRARY.impl(_name, _kernel, "CPU")
    LIBRARY.impl(_name, lambda x, *_: torch.empty_like(x), "Meta")


def test_another_librarys_operation_is_refused_by_name_whatever_it_is_called_or_marked() -> None:
    with pytest.raises(NotTraceable, match="rows_test::relu nobody has shown"):
        prove(record_of(lambda x: torch.ops.rows_test.relu(x), X), X)
    with pytest.raises(NotTraceable, match="rows_test::relu nobody has shown"):
        prove(record_of(lambda x, w: x @ torch.ops.rows_test.relu(w), X, WEIGHT), X)


def test_a_rule_for_it_is_one_function() -> None:
    @rule("rows_test::scale")
    def scaled(call: Call) -> Found:
        return call.together("x")

    try:
        compute, rows = (lambda x, w: torch.ops.rows_test.scale(x, w[:, 0])), X
        proof: Proof = prove(record_of(compute, rows, WEIGHT), rows)
        hold(proof, rows, WEIGHT)
        with pytest.raises(NotTraceable, match="depends on the batch"):
            prove(record_of(lambda x: torch.ops.rows_test.scale(x, x), rows), rows)
    finally:
        del RULES["rows_test::scale"]
