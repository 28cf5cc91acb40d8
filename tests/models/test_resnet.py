"""ResNet-18 with group norms: its shape, and that it is on the fast way."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from agreement import Batch, assert_agrees, program_of, slow
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.traced import TracedGradients
from wholegrain.errors import SpecError
from wholegrain.models.model_catalog import build


def test_it_has_the_layers_of_the_original() -> None:
    """Eighteen layers with weights, but for the shortcuts; three of the shortcuts have one as well."""
    model = build("resnet18", 3 * 32 * 32, 10, 0, {"channels": 3, "width": 64})
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == 17 + 3
    assert Layout.of(model).size == 11_173_962  # as that with batch norms, for images of 32 × 32
    assert model(torch.zeros(2, 3 * 32 * 32)).shape == (2, 10)


@pytest.mark.slow
def test_it_is_on_the_fast_way() -> None:
    """In double precision: deep as it is, single precision is 1e-5 off by itself."""
    model, draws = build("resnet18", 64, 3, 0, {"width": 4}).double(), torch.Generator().manual_seed(1)
    batch = Batch(torch.rand(6, 64, generator=draws).double(), torch.arange(6) % 3, torch.arange(6) // 2)
    engine = BookKeeping(model, cross_entropy)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


@pytest.mark.parametrize(
    ("features", "options", "why"),
    [(64, {"width": 6}, "multiple of 4"), (64, {"channels": 3}, "no 3 channels"), (63, {}, "square images")],
)
def test_what_it_cannot_be_is_refused(features: int, options: dict[str, int], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        build("resnet18", features, 3, 0, options)
