"""The patterns of today's models, written out small: each has rules and agrees with the reference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from agreement import Batch, assert_agrees, program_of, slow
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.trace import SIZES
from wholegrain.clipping.traced import TracedGradients
from wholegrain.models.model_catalog import build
from wholegrain.models.trainable_part import train_part

WORDS, WIDTH, HEADS, CLASSES = 11, 8, 2, 3


class FlippedLinear(nn.Module):
    """A linear map whose weight is [in, out], applied to rows, as GPT-2 has it."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inner, outer) * 0.3), nn.Parameter(torch.zeros(outer))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


class WrittenNorm(nn.Module):
    """A root mean square norm, as Llama has it; with `shifted`, 1 + weight as Gemma has it."""

    def __init__(self, shifted: bool = False) -> None:
        super().__init__()
        self.weight, self.shifted = nn.Parameter(torch.rand(WIDTH)), shifted

    def forward(self, x: Tensor) -> Tensor:
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normal * (1.0 + self.weight) if self.shifted else self.weight * normal.to(x.dtype)


class FunctionalNorm(nn.Module):
    """A layer norm by its function, with or without a bias."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))
        self.bias = nn.Parameter(torch.rand(WIDTH)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions of heads [item, head, position, width]."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10.0 ** -torch.arange(half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


class Block(nn.Module):
    """Causal attention from fused projections, with or without padding and rotary positions."""

    def __init__(self, fused: nn.Module, norm: nn.Module, rotary: bool) -> None:
        super().__init__()
        self.fused, self.norm, self.rotary, self.out = fused, norm, rotary, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        parts = self.fused(self.norm(x)).split(WIDTH, 2)
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        q, k = (rotate(q), rotate(k)) if self.rotary else (q, k)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mask = causal if present is None else causal & present[:, None, None] | torch.eye(x.shape[1], dtype=torch.bool)
        seen = scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return x + self.out(seen)


class Language(nn.Module):
    """Tables of tokens and places, a block, and scores of the next token, by the table of tokens again where tied."""

    def __init__(self, tied: str = "", places: str = "parameter", padded: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH, padding_idx=0 if padded else None)
        self.table = nn.Parameter(torch.randn(1, 9, WIDTH)) if places == "parameter" else nn.Embedding(9, WIDTH)
        self.block = Block(FlippedLinear(WIDTH, 3 * WIDTH), WrittenNorm(), rotary=places == "rotary")
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.tied, self.places, self.padded = tied, places, padded
        if tied == "parameter":
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x, length = self.tokens(tokens), tokens.shape[1]
        if self.places == "parameter":
            x = x + self.table[:, :length]
        elif self.places == "row":
            x = x + self.table(torch.arange(length))
        elif self.places == "batch of one":
            x += self.table(torch.arange(length)[None])
        elif self.places == "one place for all":
            x = x + self.table(torch.zeros(1, length, dtype=torch.int64))
        elif self.places == "tokens' own table":
            x = x + self.tokens(torch.arange(2, length + 2))
        elif self.places == "every other row":
            x = x + self.tokens(torch.arange(0, WORDS, 2)[:length]) + self.table(torch.tensor([3, 3, 0, 8, 1, 0]))
        x = self.block(x, tokens != 0 if self.padded else None)[:, -1]
        return functional.linear(x, self.tokens.weight) if self.tied == "read" else self.head(x)


class Patches(nn.Module):
    """Patches of an image behind a token for the class, with a table of places and a scale for each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, WIDTH, 2, 2), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.block = Block(nn.Linear(WIDTH, 3 * WIDTH), FunctionalNorm(bias=True), rotary=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        return self.head((self.scale * self.block(x))[:, 0])


class Residual(nn.Module):
    """Two convolutions with group norms beside a shortcut, as a ResNet-18 has it."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.Conv2d(outer, outer, 3, 1, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, outer) for _ in range(3)])
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[1](self.two(self.norms[0](self.one(x)).relu()))
        return (h + self.norms[2](self.short(x))).relu_()


class TimesFirst(nn.Module):
    """A table of places beside sequences whose first dimension is time."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.last = nn.Parameter(torch.randn(5, 1, WIDTH)), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x.transpose(0, 1) + self.places).tanh().mean(0))


def on_vectors(inner: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A module of sequences between linear layers."""
    return lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), inner(), nn.Flatten(), nn.Linear(5 * WIDTH, CLASSES))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 1, 1), Residual(4, 4, 1), Residual(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


TOKENS, VECTORS, IMAGES = (6,), (5, WIDTH), (1, 4, 4)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "position table": (Language, TOKENS),
    "looked-up positions": (lambda: Language(places="row"), TOKENS),
    "positions of a batch of one": (lambda: Language(places="batch of one"), TOKENS),
    "one row for all positions": (lambda: Language(places="one place for all"), TOKENS),
    "one table for tokens and positions": (lambda: Language(places="tokens' own table"), TOKENS),
    "scattered positions": (lambda: Language(places="every other row", padded=True), TOKENS),
    "rotary positions": (lambda: Language(places="rotary"), TOKENS),
    "padding": (lambda: Language(padded=True), TOKENS),
    "tied parameter": (lambda: Language(tied="parameter"), TOKENS),
    "table read at the end": (lambda: Language(tied="read", places="row"), TOKENS),
    "patches": (Patches, IMAGES),
    "residual": (resnet, IMAGES),
    "times first": (TimesFirst, VECTORS),
    "written norm": (on_vectors(WrittenNorm), VECTORS),
    "shifted norm": (on_vectors(lambda: WrittenNorm(shifted=True)), VECTORS),
    "functional norm": (on_vectors(lambda: FunctionalNorm(bias=False)), VECTORS),
    "rms norm": (on_vectors(lambda: nn.RMSNorm(WIDTH, eps=1e-6)), VECTORS),
    "flipped linear": (on_vectors(lambda: FlippedLinear(WIDTH, WIDTH)), VECTORS),
}


def batch_of(shape: tuple[int, ...], items: int, classes: int = CLASSES) -> Batch:
    draws = torch.Generator().manual_seed(3)
    tokens = torch.randint(WORDS, (items, *shape), generator=draws)
    inputs = tokens if shape == TOKENS else torch.randn(items, *shape, generator=draws)
    groups = torch.randint(4, (items,), generator=draws).unique(return_inverse=True)[1]
    return Batch(inputs, torch.arange(items) % classes, groups)


@pytest.mark.parametrize("name", MODELS)
def test_the_patterns_of_todays_models_are_proved(name: str) -> None:
    torch.manual_seed(1)
    make, shape = MODELS[name]
    model, batch = make(), batch_of(shape, 9)
    engine = BookKeeping(model, cross_entropy)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


PARTS: dict[str, str | tuple[str, ...]] = {
    "one block and the head": ("blocks.1.*", "head.*"),
    "a table that all items share": ("places",),
    "norms": ("*.first.weight", "norm.*"),
    "biases": "biases",
    "low rank": "low_rank",
    "prefix": "prefix",
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_trained_of_a_transformer_is_proved(name: str) -> None:
    torch.manual_seed(1)
    made = build("causal_transformer", TOKENS[0], CLASSES, 0, {"vocabulary": WORDS, "width": WIDTH, "heads": HEADS})
    nn.init.normal_(made.head.weight)  # it begins at zero, which would hide everything before it
    model, batch = train_part(made, PARTS[name], rank=2, prefix=3, seed=0), batch_of(TOKENS, 9)
    vector = flatten(model) + torch.randn(Layout.of(model).size) * 0.1
    assert vector.numel() < sum(parameter.numel() for parameter in model.parameters())
    engine = BookKeeping(model, cross_entropy)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, vector, batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


@pytest.mark.slow
@pytest.mark.parametrize("items", [1, 5, 6, 9])
def test_a_batch_may_be_as_long_as_a_table(items: int) -> None:
    """What counts items, and what only has as many rows, was found out with other numbers of items."""
    torch.manual_seed(1)
    model = Language(places="row")
    engine = BookKeeping(model, cross_entropy)
    assert_agrees(engine, model, cross_entropy, flatten(model), batch_of(TOKENS, 7))
    assert_agrees(engine, model, cross_entropy, flatten(model), batch_of(TOKENS, items))


@pytest.mark.parametrize("length", [*SIZES, 2 * SIZES[0]])
def test_a_table_may_be_as_long_as_the_batches_that_are_recorded(length: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 4), Table(length), nn.Flatten(), nn.Linear(4 * length, CLASSES))
    engine = BookKeeping(model, cross_entropy)
    batch = batch_of((length, 2), 5)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch)) == []


class Table(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.tanh()


class Shortcut(nn.Module):
    """Leaves a mask out where every item is present: what it computes of one depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        present = x > 0
        return self.last(x if present.all() else x * present)


class Masked(nn.Module):
    """The same without parameters, so that it can be part of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x if (x > 0).all() else x * (x > 0)


@pytest.mark.parametrize("make", [Shortcut, lambda: nn.Sequential(Masked(), nn.Linear(4, CLASSES))])
def test_a_model_that_decides_by_values_is_not_run_in_batches(make: Callable[[], nn.Module]) -> None:
    model, batch = make(), batch_of((4,), 7)
    engine = BookKeeping(model, cross_entropy)
    (notice,) = slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch))
    assert engine.reason is not None
    assert "it decides by values how to compute" in notice


class ByShape(nn.Module):
    """Decides by shapes and by numbers of its own, which tell nothing of items."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, CLASSES)
        self.limit = 3

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x if x.shape[1] > self.limit else -x)


def test_a_model_may_decide_by_shapes_and_its_own_numbers() -> None:
    model, batch = ByShape(), batch_of((4,), 7)
    engine = BookKeeping(model, cross_entropy)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, flatten(model), batch)) == []
    assert isinstance(program_of(engine), TracedGradients)
