"""Products in C: what they should be, and the same to the last bit for everybody who stays."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from compilers import require_compiler
from wholegrain.clipping import products
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.pieces import Piece
from wholegrain.clipping.products import CompiledProducts, current, find_products, multiplied_by
from wholegrain.clipping.reference import clipped_sum
from wholegrain.clipping.rounding import LEAST, rounding_bound

require_compiler()
SIZES = [(1, 1, 1), (5, 17, 3), (33, 64, 129), (100, 70, 1100), (130, 300, 257)]
"""Rows, columns, and products that are added: around whatever is laid out, or kept in registers, at a time."""


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> CompiledProducts:
    """Products in C, however small."""
    monkeypatch.setattr(products, "WORTH", 0)
    monkeypatch.setattr(products, "NARROW", 0)
    found = find_products(compiled=True)
    assert isinstance(found, CompiledProducts)
    return found


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of very different size: two orders of adding them give different bits."""
    draws = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=draws) * 2.0 ** torch.randint(-12, 13, shape, generator=draws)


def misplaced(rows: Tensor, by: int) -> Tensor:
    """The same values at another place in memory, with other numbers between the rows."""
    held = torch.full((rows.shape[0], rows.shape[1] + 3), torch.nan).flatten()
    held = torch.cat([torch.full((by,), torch.nan), held])[by:].view(rows.shape[0], -1)[:, : rows.shape[1]]
    return held.copy_(rows)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_what_it_should_be_and_every_row_the_same_anywhere(
    in_c: CompiledProducts, m: int, n: int, k: int, turned: bool, biased: bool
) -> None:
    rows, bias = draw(m, k), draw(n, seed=3) if biased else None
    right = draw(n, k).t() if turned else draw(k, n)
    whole = in_c.multiply(rows, right, bias, torch.empty(m, n))
    exact = rows.double() @ right.double() + (0 if bias is None else bias)
    size = rows.double().abs() @ right.double().abs() + (0 if bias is None else bias.abs())
    assert ((whole - exact).abs() <= rounding_bound(k + 1, torch.float32) * size).all()
    for first in range(0, m, max(1, m // 7)):
        part = in_c.multiply(misplaced(rows[first:], first % 5), right, bias, torch.empty(m - first, n))
        assert torch.equal(part, whole[first:])


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("begun", [False, True])
def test_a_sum_goes_on_from_what_it_has(in_c: CompiledProducts, m: int, n: int, k: int, begun: bool) -> None:
    left, right, total = draw(k, m).t(), draw(k, n), torch.full((m, n), 7.0 if begun else torch.nan)
    in_c.add_product(total, left, right, begun)
    exact = left.double() @ right.double() + (7.0 if begun else 0.0)
    size = left.double().abs() @ right.double().abs() + 7.0
    assert ((total - exact).abs() <= rounding_bound(k + 1, torch.float32) * size).all()


@pytest.mark.parametrize("rows", [8, 17, 100])
def test_a_sum_of_no_products_is_zero_whatever_was_there(in_c: CompiledProducts, rows: int) -> None:
    total = torch.full((rows, 600), 7.0)
    in_c.add_product(total, torch.zeros(rows, 0), torch.zeros(0, 600), begun=False)
    assert not total.any()


def units_of(
    in_c: CompiledProducts, size: int, outward: Tensor, inward: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Formed gradients of a weight and a bias, squared norms of both, and those by products of positions."""
    units, runs = outward.shape[0] // size, [(size, slice(0, outward.shape[0]))]
    formed, bias = torch.empty(units, outward.shape[2], inward.shape[2]), torch.empty(units, outward.shape[2])
    squares = torch.zeros(units, dtype=torch.float64)
    in_c.form_units(runs, outward, inward, formed, squares, bias)
    paired, _, _ = in_c.pair_units(size, outward, [inward], 1)
    return formed, bias, squares, paired


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(("positions", "out", "inner"), [(1, 3, 2), (7, 33, 18), (130, 100, 65), (40, 10, 900)])
@pytest.mark.parametrize("positions_first", [False, True])
def test_units_have_their_own_gradients_and_norms_whoever_is_there(
    in_c: CompiledProducts, size: int, positions: int, out: int, inner: int, positions_first: bool
) -> None:
    def lay(rows: Tensor) -> Tensor:
        return rows.transpose(0, 1).contiguous().transpose(0, 1) if positions_first else rows

    outward, inward = torch.randn(4 * size, positions, out), torch.randn(4 * size, positions, inner)
    formed, bias, squares, paired = units_of(in_c, size, lay(outward), lay(inward))
    by_unit = (rows.double().view(4, size * positions, -1) for rows in (outward, inward))
    g, a = by_unit
    torch.testing.assert_close(formed.double(), g.transpose(1, 2) @ a, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bias.double(), g.sum(1), rtol=1e-4, atol=1e-4)
    true = formed.double().square().sum((1, 2)) + bias.double().square().sum(1)
    torch.testing.assert_close(squares, true, rtol=1e-5, atol=0)
    torch.testing.assert_close(paired, true, rtol=1e-3, atol=0)
    for gone in range(4):
        stay = torch.arange(4) != gone
        items = stay.repeat_interleave(size)
        rest = units_of(in_c, size, lay(outward[items]), lay(inward[items]))
        for each, whole in zip(rest, (formed, bias, squares, paired), strict=True):
            assert torch.equal(each, whole[stay])


def test_squares_that_overflow_are_infinite_and_those_that_underflow_are_made_up_for(in_c: CompiledProducts) -> None:
    for scale in (2.0**-80, 2.0**-60, 2.0**70):
        outward, inward = torch.full((1, 3, 4), scale), torch.ones(1, 3, 4)
        _, _, squares, _ = units_of(in_c, 1, outward, inward)
        true = 20 * (3 * scale) ** 2
        assert float(squares) + 20 * LEAST >= true * (1 - 1e-6)


def lstm(hidden: int) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 9), nn.Linear(2 * hidden, 3)
            self.lstm = nn.LSTM(9, hidden, 2, batch_first=True, bidirectional=True)

        def forward(self, tokens: Tensor) -> Tensor:
            scores: Tensor = self.head(self.lstm(self.embed(tokens))[0].mean(1))
            return scores

    return Net()


class Frozen(nn.Module):
    """A frozen layer between trained ones, and one before any."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mixed, self.inner = nn.Linear(6, 70), nn.Linear(70, 66), nn.Linear(66, 72)
        self.head = nn.Linear(72, 3)
        for layer in (self.first, self.inner):
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """[item, position, feature] to [item, class]."""
        scores: Tensor = self.head(self.inner(self.mixed(self.first(x).tanh()).tanh()).tanh().mean(1))
        return scores


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": lambda: (nn.Sequential(nn.Linear(6, 70), nn.Tanh(), nn.Linear(70, 3)), torch.randn(30, 6)),
    "positions": lambda: (
        nn.Sequential(nn.Linear(6, 70), nn.Tanh(), nn.Flatten(), nn.Linear(350, 3)),
        torch.randn(30, 5, 6),
    ),
    "lstm": lambda: (lstm(67), torch.randint(11, (30, 5))),
    "convolution": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 36, 3)
        ),
        torch.randn(30, 1, 8, 8),
    ),
    "frozen": lambda: (Frozen(), torch.randn(30, 4, 6)),
}
CLIPS = [Clip(ClipPer.ITEM, Pool.SUM, 0.3), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3)]


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_sums_are_those_of_the_reference(kind: str, clip: Clip) -> None:
    torch.manual_seed(1)
    model, inputs = MODELS[kind]()
    targets, groups = torch.arange(30) % 3, torch.arange(30) // 3 % 7
    expected = clipped_sum(model, cross_entropy, flatten(model), inputs, targets, groups, clip).total.double()
    found = BookKeeping(model, cross_entropy, compiled=True)(flatten(model), inputs, targets, groups, clip)
    assert float((found.total - expected).norm()) <= 1e-5 * float(expected.norm())
    assert isinstance(current(), products.Products)
    assert not isinstance(current(), CompiledProducts), "the choice ends with the call"


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_others_stay_the_same_to_the_last_bit_when_somebody_leaves(kind: str, clip: Clip) -> None:
    torch.manual_seed(2)
    model, inputs = MODELS[kind]()
    engine, vector = BookKeeping(model, cross_entropy, compiled=True), flatten(model) * 4
    targets, subjects = torch.arange(30) % 3, torch.arange(30) // 2

    everybody = torch.arange(30)
    whole = own_parts(engine, vector, inputs, targets, subjects, clip)
    for gone in (0, 7, 14):
        left = everybody[subjects != gone]
        rest = own_parts(engine, vector, inputs[left], targets[left], subjects[left], clip)
        assert rest.keys() == whole.keys() - {gone}
        for subject, parts in rest.items():
            assert all(torch.equal(one, other) for one, other in zip(parts, whole[subject], strict=True))


def own_parts(
    engine: BookKeeping, vector: Tensor, inputs: Tensor, targets: Tensor, subjects: Tensor, clip: Clip
) -> dict[int, list[Tensor]]:
    """Everybody's weight, and all that norms and sums are computed from, in a pass of the size that training has."""
    sizes = torch.unique_consecutive(subjects, return_counts=True)[1].numpy()
    by_subject = clip.per is ClipPer.SUBJECT
    piece = Piece(inputs, targets, Units.of_sizes(sizes) if by_subject else Units.of_items(len(inputs)))
    with multiplied_by(engine._products):
        program, size = engine._prepare(vector, inputs, targets), engine._find_size(vector, len(inputs))
        assert size is not None, "it is not steady"
        with program.mode():
            computed = engine._compute(vector, piece, clip, size)
            made = [computed.weights, *(each for share in computed.shares for each in share.rows())]
    who = torch.unique(subjects)
    return {
        int(subject): [
            each[: len(who)][who == subject].clone()
            if by_subject and each.shape[0] == computed.units.count
            else each[: len(subjects)][subjects == subject].clone()
            for each in made
        ]
        for subject in who
    }


def test_small_products_and_double_precision_stay_with_torch() -> None:
    in_c = find_products(compiled=True)
    small, large = torch.randn(5, 8), torch.randn(5, 100)
    assert not in_c.fixed(small, torch.randn(8, 8))
    assert in_c.fixed(large, torch.randn(100, 100))
    assert not in_c.fixed(large.double(), torch.randn(100, 100).double())
    assert not find_products(compiled=False).fixed(large, torch.randn(100, 100))


def test_a_narrow_head_does_not_make_subjects_of_wide_layers_unsteady_where_memory_is_small() -> None:
    """Norms that C computed are no rows that a product of several rows has: fewer places have to be tried."""
    layers = nn.Linear(32, 160), nn.Tanh(), nn.Linear(160, 32), nn.Tanh(), nn.Flatten(), nn.Linear(32 * 40, 2)
    model, inputs = nn.Sequential(*layers), torch.randn(8, 40, 32)
    engine = BookKeeping(model, cross_entropy, memory=1, compiled=True)
    engine(flatten(model), inputs, torch.arange(8) % 2, torch.arange(8) // 2, CLIPS[1])
    assert engine._chosen is not None
    assert engine._chosen.most_items == 16
    with multiplied_by(engine._products):
        assert engine._chosen.steady(2, True)
