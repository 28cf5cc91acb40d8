"""Checks of kernels: what gives a row other bits by its place or its company fails, in every size and for units."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping import kernels
from wholegrain.clipping.backend_selection import Backend
from wholegrain.clipping.batch_invariance import LARGER, WIDE, FixedPlaces
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.kernels import BASE, MOST_TRIED, KernelChecks
from wholegrain.clipping.parameters import flatten

CLIP = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
LAST_BIT = 1 + 2.0**-22


def engine_of(model: nn.Module, width: int = 4) -> BookKeeping:
    engine, items = BookKeeping(model, cross_entropy), torch.arange(9)
    engine(flatten(model), torch.rand(9, width), items % 3, items // 2, CLIP)
    return engine


def chosen(model: nn.Module) -> Backend:
    backend = engine_of(model)._chosen
    assert backend is not None
    return backend


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Sigmoid(), nn.Linear(16, 3))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check is made."""
    monkeypatch.setattr(kernels.verdicts, "remembered", lambda question, ask: ask())


def spoil(backend: Backend, name: str, wrong) -> KernelChecks:
    """Checks of the same program with another kernel for one operation."""
    program = backend.program.program
    number = next(number for number, (op, _) in enumerate(program.kept) if op.name == name)
    usual, operations = program.operations[number], list(program.operations)
    operations[number] = lambda *given, **named: wrong(usual(*given, **named))
    program.operations = operations
    items = torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)
    return KernelChecks(backend.program, *items, most=1 << 12)


def rest_otherwise(made: Tensor) -> Tensor:
    """The last rows, as a remainder is computed by other instructions."""
    made[-3:] *= LAST_BIT
    return made


def all_otherwise_in_larger_passes(made: Tensor) -> Tensor:
    return made * LAST_BIT if len(made) > BASE else made


def one_size_otherwise(made: Tensor) -> Tensor:
    return rest_otherwise(made) if len(made) == 2 * BASE else made


@pytest.mark.parametrize("name", ["addmm", "sigmoid"])
def test_a_last_bit_by_place_fails_in_every_size(name: str, model: nn.Module) -> None:
    checks = spoil(chosen(model), name, rest_otherwise)
    assert not checks.trusts(BASE)
    if name == "addmm":
        assert checks.fit(40) is None


def test_another_result_in_larger_passes_fails_there_alone(model: nn.Module) -> None:
    checks = spoil(chosen(model), "addmm", all_otherwise_in_larger_passes)
    assert [checks.trusts(rows) for rows in (32, BASE, 96, 128)] == [True, True, False, False]


def test_a_size_that_fails_is_filled_up_to_the_next_that_passes(model: nn.Module) -> None:
    checks = spoil(chosen(model), "addmm", one_size_otherwise)
    assert checks.fit(127) == 160
    assert checks.fit(130) == 144
    tried = [(64, *(64 + k * WIDE for k in range(LARGER)))]
    checks.trusts = lambda rows: rows not in tried[0]  # type: ignore[method-assign]
    assert checks.fit(64) is None


def test_passes_that_memory_does_not_allow_are_not_tried(model: nn.Module) -> None:
    backend = chosen(model)
    checks = KernelChecks(backend.program, torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64), most=100)
    checks.trusts = lambda rows: pytest.fail(f"tried {rows}")  # type: ignore[method-assign]
    assert checks.fit(101) is None


def test_sizes_have_no_remainder_of_a_function(model: nn.Module) -> None:
    items = torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)
    assert KernelChecks(chosen(model).program, *items, most=1 << 12).multiple == 2
    odd = nn.Sequential(nn.Linear(4, 7), nn.Sigmoid(), nn.Linear(7, 3))
    assert KernelChecks(chosen(odd).program, *items, most=1 << 12).multiple == WIDE


@pytest.mark.parametrize("subjects", [False, True])
def test_units_are_steady_unless_a_length_goes_by_place(
    subjects: bool, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = chosen(model)
    assert backend.steady(1, subjects)
    real = kernels.group_lengths

    def by_place(group, units):
        found = real(group, units)
        found.squared[5:] *= LAST_BIT
        return found

    monkeypatch.setattr(kernels, "group_lengths", by_place)
    assert not backend.steady(1, subjects)


def test_large_units_are_not_tried(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = chosen(model)
    monkeypatch.setattr(KernelChecks, "_try_units", lambda *given: pytest.fail("tried"))
    assert not backend.steady(MOST_TRIED + 1, True)


def test_without_a_trusted_size_every_unit_has_its_place(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves: no unit is steady where rows are not, however steady its length would be."""
    monkeypatch.setattr(KernelChecks, "_run", lambda self, rows: False)
    backend = chosen(model)
    assert isinstance(backend.sizes, FixedPlaces)
    assert not any(backend.steady(size, subjects) for size in (1, 2) for subjects in (False, True))
