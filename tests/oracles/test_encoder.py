"""Encoder layers of the library in a plain sequence, which run without autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from agreement import Batch, assert_agrees, program_of, slow
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.traced import TracedGradients

ITEMS, LENGTH, WORDS, WIDTH, CLASSES = 9, 6, 20, 16, 3


def encoder(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 2, 24, 0.0, batch_first=True, **options)


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Flatten(), nn.Linear(LENGTH * WIDTH, CLASSES))


def agree(model: nn.Module, kind: torch.dtype = torch.float32) -> object:
    """What the engine chose, after a comparison in every mode and without a notice of slow gradients."""
    draws = torch.Generator().manual_seed(3)
    tokens = torch.randint(WORDS, (ITEMS, LENGTH), generator=draws)
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 4])
    model = model.to(kind)
    batch, engine = Batch(tokens, torch.arange(ITEMS) % CLASSES, groups), BookKeeping(model, cross_entropy)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch)) == []
    return program_of(engine)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "two layers": lambda: sequence(encoder(), encoder()),
    "norm first": lambda: sequence(encoder(norm_first=True)),
    "gelu": lambda: sequence(encoder(activation="gelu"), encoder(activation=nn.ReLU())),
    "without biases": lambda: sequence(encoder(bias=False)),
    "at the beginning": lambda: nn.Sequential(
        nn.Embedding.from_pretrained(torch.randn(WORDS, WIDTH)), encoder(), nn.Flatten(), nn.Linear(LENGTH * WIDTH, 3)
    ),
}


@pytest.mark.parametrize(("name", "kind"), [*((name, torch.float32) for name in KINDS), ("two layers", torch.float64)])
def test_encoder_layers_in_a_sequence_need_no_autograd(name: str, kind: torch.dtype) -> None:
    torch.manual_seed(1)
    assert isinstance(agree(KINDS[name](), kind), TracedGradients)


@pytest.mark.parametrize("frozen", ["self_attn.in_proj_weight", "linear1.weight", "linear2.bias", "norm1.weight"])
def test_frozen_parts_of_an_encoder_layer(frozen: str) -> None:
    torch.manual_seed(1)
    layer = encoder()
    layer.get_parameter(frozen).requires_grad_(False)
    assert isinstance(agree(sequence(layer)), TracedGradients)


class Scaled(nn.Linear):
    """Another layer in the place of a linear one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def replaced() -> nn.Module:
    layer = encoder()
    layer.linear1 = Scaled(WIDTH, 24)
    return layer


@pytest.mark.parametrize("make", [replaced, lambda: encoder(activation=functional.silu)])
def test_an_encoder_layer_that_computes_something_else_is_left_to_autograd(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    assert isinstance(agree(sequence(make())), TracedGradients)
