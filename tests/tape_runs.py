"""A recorded tape, run operation by operation for any number of rows, and held against what was proved of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wholegrain.clipping.rows import Kind, Place, Proof
from wholegrain.clipping.trace import Recorder, Ref, Sized, Tape, record

ROWS = 7
HOSTILE = (0.0, -3.0, 1e30, float("nan"), float("inf"))


def record_of(
    compute: Callable[..., Any], rows: Mapping[str, Tensor], shared: Mapping[str, Tensor] | None = None
) -> Tape:
    """The tape of a function of values with rows and of shared ones, by name."""

    def program(recorder: Recorder) -> Sequence[Tensor | None]:
        given = {name: recorder.input(name, each, each.shape) for name, each in rows.items()}
        given |= {name: _leaf(recorder.input(name, each)) for name, each in (shared or {}).items()}
        made = compute(**given)
        return made if isinstance(made, (list, tuple)) else [made]

    return record(31, program)


def _leaf(value: Tensor) -> Tensor:
    return value.requires_grad_() if value.is_floating_point() else value


def prove(tape: Tape, rows: Mapping[str, Tensor]) -> Proof:
    return Proof.of(tape, tuple(rows))


def run(tape: Tape, given: Mapping[str, Tensor], rows: int) -> dict[int, Tensor]:
    """All values of a tape for these inputs."""
    values = dict(tape.constants) | {number: given[name] for name, number in tape.inputs.items()}

    def told(tree: Any) -> Any:
        if isinstance(tree, (list, tuple)):
            return type(tree)(told(each) for each in tree)
        if isinstance(tree, Sized):
            return tree.times * rows
        return values[tree.number] if isinstance(tree, Ref) else tree

    with torch.no_grad():
        for op in tape.ops:
            made = op.target(*told(op.args), **{name: told(each) for name, each in op.kwargs.items()})
            several = [each for each in (made if op.several else [made]) if each is not None]
            values.update(zip(op.outs, several, strict=True))
    return values


def by_row(value: Tensor, place: Place, rows: int) -> Tensor:
    """[row, …]"""
    shape = value.shape
    split = value.reshape(*shape[: place.dim], place.outer, rows, place.inner, *shape[place.dim + 1 :])
    return split.movedim(place.dim + 1, 0).flatten(1)


def hold(proof: Proof, rows: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> None:
    """Every value of the tape is what was proved of it, for hostile values of one row, and in another order."""
    count = len(next(iter(rows.values())))
    whole = run(proof.tape, {**rows, **shared}, count)
    for value in HOSTILE:
        changed = {name: _with(each, count // 2, value) for name, each in rows.items()}
        other = run(proof.tape, {**changed, **shared}, count)
        _require_apart(proof, whole, other, [k for k in range(count) if k != count // 2], count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    turned = run(proof.tape, {**{name: each[order] for name, each in rows.items()}, **shared}, count)
    alone = [
        run(proof.tape, {**{name: each[k : k + 1] for name, each in rows.items()}, **shared}, 1) for k in range(count)
    ]
    for number, place in proof.where.items():
        if number not in whole:
            continue
        if whole[number].shape != (0,):  # a batch norm that uses given statistics keeps none on the host
            assert list(whole[number].shape) == _shape(proof.tape, number, count)
        if isinstance(place, Place):
            ours = by_row(whole[number], place, count)
            _require_close(by_row(turned[number], place, count), ours[order])
            _require_close(torch.cat([by_row(each[number], place, 1) for each in alone]), ours)
        elif place is Kind.SUMMED:
            _require_close(
                torch.stack([each[number] for each in alone]).sum(0, dtype=whole[number].dtype), whole[number]
            )
        elif place is Kind.SHARED:
            for each in (turned, *alone):
                _require_close(each[number], whole[number])


def _shape(tape: Tape, number: int, rows: int) -> list[int]:
    """What was recorded, for another number of rows."""
    shape = list(tape.shape(number))
    if number in tape.counts:
        shape[tape.counts[number]] = shape[tape.counts[number]] // tape.rows * rows
    return shape


def agree(tape: Tape, compute: Callable[..., Any], rows: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> None:
    """A tape gives what the function itself does."""
    given = {name: each.clone() for name, each in {**rows, **shared}.items()}
    made = compute(**given)
    values = run(tape, {**rows, **shared}, len(next(iter(rows.values()))))
    for number, each in zip(tape.outputs, made if isinstance(made, (list, tuple)) else [made], strict=True):
        if number is None:
            assert each is None
        elif each is not None:
            _require_close(values[number], each.detach())


def _require_apart(proof: Proof, one: Any, other: Any, kept: list[int], count: int) -> None:
    for number, place in proof.where.items():
        if number in one and isinstance(place, Place):
            ours, theirs = by_row(one[number], place, count)[kept], by_row(other[number], place, count)[kept]
            assert bool(((ours == theirs) | ((ours != ours) & (theirs != theirs))).all()), proof.tape.shape(number)


def _require_close(one: Tensor, other: Tensor) -> None:
    assert one.shape == other.shape
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    scale = other.double().abs().nan_to_num(0, 0, 0).max().item() if other.numel() else 0.0
    close = torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5 * (1 + scale), equal_nan=True)
    assert close, f"differs by {(one.double() - other.double()).abs().max()} of {scale}"


def _with(values: Tensor, row: int, value: float) -> Tensor:
    changed = values.clone()
    if values.is_floating_point():
        changed[row] = value
    else:
        changed[row] = (values[row] * 0) if value == 0 else values[row - 1]
    return changed


def is_by_row(compute: Callable[..., Tensor], rows: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> bool:
    """Whether a function gives each row alone what it gives it among others, in their order and in another."""
    try:
        whole = compute(**{name: each.clone() for name, each in rows.items()}, **shared)
        count = len(next(iter(rows.values())))
        alone = [compute(**{n: each[k : k + 1].clone() for n, each in rows.items()}, **shared) for k in range(count)]
        return whole.shape[0] == count and torch.allclose(whole, torch.cat(alone), rtol=1e-3, atol=1e-4, equal_nan=True)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False
