"""Products by the library that is faster here: the same values, and rows that do not depend on each other."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping import products
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.kernels import KernelChecks
from wholegrain.clipping.parameters import flatten

ADDMM, MM = torch.ops.aten.addmm.default, torch.ops.aten.mm.default
needs_onednn = pytest.mark.skipif(
    not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch has no oneDNN"
)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@needs_onednn
@pytest.mark.parametrize("prefers", [False, True])
@pytest.mark.parametrize("shape", [(10, 2), (64, 64), (3, 4096), (300, 100)])
def test_both_libraries_compute_the_product(
    prefers: bool, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda: prefers)
    rows, right, bias = draw(37, shape[0]), draw(*shape[::-1]).t(), draw(shape[1])
    expected = rows.double() @ right.double()
    torch.testing.assert_close(products.product_for(MM, right)(rows, right).double(), expected, rtol=1e-4, atol=1e-4)
    found = products.product_for(ADDMM, right)(bias, rows, right)
    torch.testing.assert_close(found.double(), expected + bias.double(), rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("prefers", [False, True])
def test_a_total_is_begun_or_added_to(prefers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda: prefers)
    total, left, right = torch.full((80, 90), torch.nan), draw(80, 7), draw(7, 90)
    for times in (1, 2):
        products.add_product(total, left, right, begun=times > 1)
        torch.testing.assert_close(total, times * (left @ right), rtol=1e-4, atol=1e-4)


def test_which_library_is_used_follows_from_the_shared_factor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    assert products.product_for(MM, draw(64, 64)) is products.multiply
    assert products.product_for(ADDMM, draw(64, 64)) is products.add_multiplied
    for other in (draw(4, 4096), draw(8, 8), draw(64, 64).double()):
        assert products.product_for(MM, other) is not products.multiply


@pytest.mark.parametrize("shape", [(10, 2), (10, 3), (5, 7), (63, 8)])
def test_small_models_are_trusted_in_whole_batches(shape: tuple[int, int]) -> None:
    """A small weight lies by columns, in which MKL adds up the last rows of a product in another order."""
    model, clip = nn.Linear(*shape), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
    engine = BookKeeping(model, cross_entropy)
    engine(flatten(model), draw(40, shape[0]), torch.zeros(40, dtype=torch.int64), torch.arange(40) // 2, clip)
    assert engine._chosen is not None
    assert isinstance(engine._chosen.sizes, KernelChecks)
