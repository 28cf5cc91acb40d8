"""A zoo of models in which rows do not meet: all rows are taken at once, and sums are those of single items."""

import zlib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map

from clipping.fine_cases import CASES, NAMED, Fine, make_inputs
from clipping.fine_transformers import ADAPTERS, TRANSFORMERS
from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.clipping import Clip, ClipPer, Pool, pool_gradients
from wholegrain.clipping.devices import USUAL
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.reference import ClippedSum

pytestmark = pytest.mark.filterwarnings("ignore")  # notices of what is slow, and of what torch wants to drop
GROUPS = torch.tensor([2, 0, 1, 0, 3, 1, 0])
TARGETS = torch.tensor([0, 1, 2, 1, 0, 2, 2])
CLOSE = 1e-5
"""Of the clip norm: what rounding in single precision may do."""


def make(case: Fine, name: str) -> tuple[nn.Module, Any]:
    """The model, some way from where it begins: what is zero there would hide what hangs on it."""
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(name.encode()))
        model = case.make()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.05)
        return model, make_inputs(case.kind, len(GROUPS))


def gradients_one_by_one(model: nn.Module, inputs: Any) -> Tensor:
    """Each item's gradient [item, parameter], in double precision."""
    exact = deepcopy(model).double()
    names, parameters = Layout.of(model).names, dict(exact.named_parameters())
    rows = []
    for k in range(len(GROUPS)):
        item = tree_map(lambda x, k=k: x[k : k + 1].double() if x.is_floating_point() else x[k : k + 1], inputs)
        loss = cross_entropy(exact(item), TARGETS[k : k + 1])
        own = torch.autograd.grad(loss, [parameters[name] for name in names], materialize_grads=True)
        rows.append(torch.cat([each.flatten() for each in own]))
    return torch.stack(rows)


def check(cases: Mapping[str, Fine], name: str) -> ClippedSum:
    """Sums per item and per subject; half of the items are clipped."""
    model, inputs = make(cases[name], name)
    exact = gradients_one_by_one(model, inputs)
    norm = float(exact.norm(dim=1).median())
    sums = clipped_sums(model, cross_entropy, USUAL)
    for per in (ClipPer.ITEM, ClipPer.SUBJECT):
        clip = Clip(per, Pool.MEAN, norm)
        found = sums(flatten(model), inputs, TARGETS, GROUPS, clip).total.double()
        off = float((found - pool_gradients(exact, GROUPS, clip).total).norm())
        assert off <= CLOSE * norm, f"{per}: {off / norm:.2g} C"
    return sums


@pytest.mark.parametrize("name", CASES)
def test_rows_are_taken_at_once_and_summed_rightly(name: str) -> None:
    assert getattr(check(CASES, name), "reason", None) is None


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_so_are_those_of_hugging_face(name: str) -> None:
    pytest.importorskip("transformers")
    assert getattr(check(TRANSFORMERS, name), "reason", None) is None


@pytest.mark.parametrize("name", ADAPTERS)
def test_so_are_those_with_adapters(name: str) -> None:
    pytest.importorskip("peft")
    assert getattr(check(ADAPTERS, name), "reason", None) is None


@pytest.mark.parametrize("name", NAMED)
def test_items_of_several_tensors(name: str) -> None:
    """Where an engine takes them at all."""
    try:
        sums = check(NAMED, name)
    except AttributeError as error:
        if "'dict' object" not in str(error):
            raise
        pytest.skip("items are single tensors")
    assert getattr(sums, "reason", None) is None
