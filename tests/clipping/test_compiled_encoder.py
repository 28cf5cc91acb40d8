"""Encoders in C: as the reference says, everybody by themselves to the last bit."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, multi_margin_loss

from compilers import CLIPS, each_clip, require_compiler
from wholegrain.clipping import reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.compiled_batch import LOSSES
from wholegrain.clipping.compiled_encoder import CompiledEncoder
from wholegrain.clipping.losses import squared_error
from wholegrain.clipping.parameters import flatten
from wholegrain.errors import ModelError
from wholegrain.models.ft_transformer import ft_transformer
from wholegrain.models.text import causal_transformer

require_compiler()

WORDS, CLASSES, LENGTH = 11, 5, 7
by_unit = pytest.mark.parametrize("clip", CLIPS[:4], ids=lambda clip: f"{clip.per}-{clip.pool}")


class Mean(nn.Module):
    """As a user writes it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Last(nn.Module):
    """The last position."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class First(nn.Module):
    """The first position."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def encoder(width: int, heads: int, pool: nn.Module | None = None, layers: int = 1, **options: object) -> nn.Module:
    """Table, encoder layers, one pooling and a linear layer."""
    parts = [
        nn.TransformerEncoderLayer(width, heads, 2 * width + 3, 0.0, batch_first=True, **options)  # type: ignore[arg-type]
        for _ in range(layers)
    ]
    return nn.Sequential(nn.Embedding(WORDS, width), *parts, pool or Mean(), nn.Linear(width, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: encoder(16, 4, layers=2),
    "odd sizes": lambda: encoder(6, 2),
    "norm first": lambda: encoder(12, 3, norm_first=True, layers=2),
    "gelu, the last": lambda: encoder(8, 2, Last(), activation="gelu"),
    "norm first, gelu, the first": lambda: encoder(8, 1, First(), activation="gelu", norm_first=True),
    "no biases": lambda: encoder(8, 2, bias=False),
    "flat, tanh, norms": lambda: nn.Sequential(
        nn.Embedding(WORDS, 3), nn.Flatten(), nn.Linear(3 * LENGTH, 9), nn.Tanh(), nn.LayerNorm(9), nn.GELU(),
        nn.RMSNorm(9), nn.Linear(9, 6), nn.Sigmoid(), nn.ReLU(), nn.Linear(6, CLASSES),
    ),
    "causal": lambda: causal_transformer(LENGTH, CLASSES, vocabulary=WORDS, width=8, heads=2),
    "of columns": lambda: ft_transformer(LENGTH, CLASSES, width=8, heads=2, layers=2),
}  # fmt: skip
each_model = pytest.mark.parametrize("name", MODELS)


def make(name: str) -> tuple[nn.Module, Tensor]:
    """A model, and parameters with nothing left at zero."""
    torch.manual_seed(3)
    model = MODELS[name]()
    vector = flatten(model)
    return model, vector + 0.1 * torch.randn(vector.shape)


def make_batch(name: str, loss: object, items: int = 23) -> tuple[Tensor, Tensor, Tensor]:
    """Subjects of 1 to 8 items, whose items do not lie side by side."""
    draws = torch.Generator().manual_seed(5)
    inputs = torch.randint(WORDS, (items, LENGTH), generator=draws)
    if name == "of columns":
        inputs = torch.randn(items, LENGTH, generator=draws)
    targets = torch.rand(items, CLASSES, generator=draws)
    if loss in (cross_entropy, multi_margin_loss):
        targets = torch.randint(CLASSES, (items,), generator=draws)
    groups = torch.tensor([0] * 8 + [1, 1, 2, 3, 3, 3] + [4 + k // 2 for k in range(items)])[:items]
    return inputs, targets, groups[torch.randperm(items, generator=draws)]


@each_clip
@each_model
def test_sums_are_those_of_the_reference(name: str, clip: Clip) -> None:
    model, vector = make(name)
    batch = make_batch(name, cross_entropy)
    found = CompiledEncoder(model, cross_entropy)(vector, *batch, clip)
    wanted = reference.clipped_sum(model, cross_entropy, vector, *batch, clip)
    assert found.total.dtype is torch.float64
    assert found.zeroed == wanted.zeroed == 0
    assert torch.linalg.vector_norm(found.total - wanted.total) <= 1e-5 * torch.linalg.vector_norm(wanted.total)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_every_loss_is_that_of_the_reference(loss: reference.Loss) -> None:
    model, vector = make("norm first")
    batch = make_batch("norm first", loss)
    for clip in CLIPS[1:3]:
        found = CompiledEncoder(model, loss)(vector, *batch, clip)
        wanted = reference.clipped_sum(model, loss, vector, *batch, clip)
        assert torch.linalg.vector_norm(found.total - wanted.total) <= 1e-5 * torch.linalg.vector_norm(wanted.total)


def test_items_of_any_length_have_a_program() -> None:
    model, vector = make("relu")
    engine = CompiledEncoder(model, cross_entropy)
    _, targets, groups = make_batch("relu", cross_entropy)
    for length in (1, 2, 17, 40):
        inputs = torch.randint(WORDS, (23, length), generator=torch.Generator().manual_seed(length))
        found = engine(vector, inputs, targets, groups, CLIPS[2]).total
        wanted = reference.clipped_sum(model, cross_entropy, vector, inputs, targets, groups, CLIPS[2]).total
        assert torch.linalg.vector_norm(found - wanted) <= 1e-5 * torch.linalg.vector_norm(wanted)


@pytest.mark.parametrize("function", [nn.GELU, nn.ReLU, nn.Tanh, nn.Sigmoid])
def test_functions_are_right_for_numbers_of_every_size(function: type[nn.Module]) -> None:
    """One token, one number: the gradient of the last weight is the function's value, that of the table its slope."""
    model = nn.Sequential(nn.Embedding(1, 1), nn.Flatten(), function(), nn.Linear(1, 1))
    engine, none = CompiledEncoder(model, squared_error), Clip(ClipPer.NONE, Pool.SUM, 1.0)
    batch = torch.tensor([[0]]), torch.tensor([[-1.0]]), torch.tensor([0])
    for z in (*(sign * 2.0**k for sign in (-1, 1) for k in range(-60, 7)), 0.0, 0.3, -0.7, 1.7, -2.9, 4.4, -5.5):
        exact = torch.tensor(z).double().requires_grad_()
        value = function()(exact)
        (slope,) = torch.autograd.grad(value, exact)
        value = value.detach()
        at = engine(torch.tensor([z, 0.0, 0.0]), *batch, none).total
        assert abs(at[1] - value) <= 6e-7 * max(1, abs(z))
        tilted = engine(torch.tensor([z, 2.0**-20, -(2.0**-20) * float(value)]), *batch, none).total
        assert abs(tilted[0] * 2**20 - slope) <= 2e-6


def in_chaos(vector: Tensor) -> Tensor:
    """Parameters under which sums of many large numbers cancel, so that a rounding error decides a sign."""
    draws = torch.Generator().manual_seed(11)
    return vector + torch.randn(vector.shape, generator=draws) * 2.0 ** torch.randint(
        0, 8, vector.shape, generator=draws
    )


@pytest.mark.parametrize("chaos", [False, True])
@by_unit
@each_model
def test_a_sum_is_that_of_what_everybody_gives_alone_to_the_last_bit(name: str, clip: Clip, chaos: bool) -> None:
    """So nobody changes what another gives: not by where they lie, not by what they leave behind."""
    model, vector = make(name)
    engine = CompiledEncoder(model, cross_entropy)
    vector = in_chaos(vector) if chaos else vector
    inputs, targets, groups = make_batch(name, cross_entropy)
    inputs, targets, groups = (each[torch.argsort(groups, stable=True)] for each in (inputs, targets, groups))
    units = torch.arange(len(groups)) if clip.per is ClipPer.ITEM else groups
    shares = torch.ones(len(groups), dtype=torch.float64)
    if clip == CLIPS[1]:
        shares = 1 / torch.bincount(groups)[groups].double()
    whole = engine(vector, inputs, targets, groups, clip)
    alone, zeroed = torch.zeros_like(whole.total), 0
    for unit in torch.unique(units).tolist():
        own = units == unit
        spoil(engine)
        given = engine(vector, inputs[own], targets[own], torch.zeros_like(units[own]), clip)
        alone, zeroed = alone + given.total * (shares[own][0] if clip.per is ClipPer.ITEM else 1), zeroed + given.zeroed
    assert whole.total.any()
    assert whole.zeroed == zeroed
    if clip == CLIPS[1]:  # a factor more, in another order
        assert torch.allclose(whole.total, alone, rtol=1e-12, atol=1e-15)
    else:
        assert torch.equal(whole.total, alone)


def spoil(engine: CompiledEncoder) -> None:
    """Fill the program's memory with what is not a number, as an item before may have left it."""
    for program in engine._programs.values():
        program.scratch.fill_(0xFF)


@by_unit
def test_who_leaves_takes_away_what_they_gave_and_no_more(clip: Clip) -> None:
    model, vector = make("norm first")
    engine, vector = CompiledEncoder(model, cross_entropy), in_chaos(vector)
    batch = make_batch("norm first", cross_entropy)
    whole = engine(vector, *batch, clip).total
    for leaver in torch.unique(batch[2]).tolist():
        others = batch[2] != leaver
        rest = engine(vector, *(each[others] for each in batch), clip).total
        own = engine(vector, *(each[~others] for each in batch), clip).total
        assert torch.allclose(whole, rest + own, rtol=0, atol=23**2 * 2.0**-53 * clip.norm)
        items = int((~others).sum()) if clip == CLIPS[0] else 1
        assert torch.linalg.vector_norm(whole - rest) <= items * clip.norm * (1 + 2**-30)


@by_unit
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_what_is_not_finite_counts_as_zero_and_leaves_others_as_they_are(clip: Clip, bad: float) -> None:
    model, vector = make("of columns")
    engine = CompiledEncoder(model, cross_entropy)
    inputs, targets, groups = make_batch("of columns", cross_entropy)
    others = groups != 1
    inputs[~others] = bad
    found = engine(vector, inputs, targets, groups, clip)
    rest = engine(vector, inputs[others], targets[others], groups[others], clip)
    assert found.zeroed == (2 if clip.per is ClipPer.ITEM else 1)
    assert rest.zeroed == 0
    assert torch.isfinite(found.total).all()
    assert torch.equal(found.total, rest.total)


@pytest.mark.parametrize("name", ["relu", "norm first", "gelu, the last", "causal", "of columns"])
def test_nobody_moves_the_sum_by_more_than_the_norm_whatever_the_exponents(name: str) -> None:
    """Parameters, inputs and norms of every size, and of very different sizes at once."""
    model, start = make(name)
    engine, draws = CompiledEncoder(model, cross_entropy), torch.Generator().manual_seed(1)
    inputs, targets, groups = make_batch(name, cross_entropy, 6)
    groups, moved = groups % 3, 0
    for _ in range(60):
        low, high = sorted(torch.randint(-149, 128, (2,), generator=draws).tolist())
        exponents = torch.randint(low, high + 1, start.shape, generator=draws)
        vector = torch.ldexp(start.double(), exponents).float().clamp(-3.4e38, 3.4e38)
        given = inputs
        if inputs.is_floating_point():
            own = torch.randint(low, high + 1, inputs.shape, generator=draws)
            given = torch.ldexp(inputs.double(), own).float().clamp(-3.4e38, 3.4e38)
        norm = 10.0 ** float(torch.randint(-15, 16, (), generator=draws))
        for clip in (Clip(ClipPer.SUBJECT, Pool.MEAN, norm), Clip(ClipPer.SUBJECT, Pool.SUM, norm)):
            whole = engine(vector, given, targets, groups, clip).total
            assert torch.isfinite(whole).all()
            for leaver in range(3):
                stays = groups != leaver
                rest = engine(vector, given[stays], targets[stays], groups[stays], clip).total
                length = float(torch.linalg.vector_norm(whole - rest))
                assert length <= norm * (1 + 2**-6)
                moved += length > 0.99 * norm
    assert moved


def test_parameters_that_are_not_finite_give_zeros() -> None:
    model, vector = make("relu")
    batch = make_batch("relu", cross_entropy)
    vector[3] = torch.inf
    found = CompiledEncoder(model, cross_entropy)(vector, *batch, CLIPS[2])
    assert found.zeroed == len(torch.unique(batch[2]))
    assert not found.total.any()


def test_an_empty_batch_gives_zeros() -> None:
    model, vector = make("relu")
    empty = tuple(each[:0] for each in make_batch("relu", cross_entropy))
    found = CompiledEncoder(model, cross_entropy)(vector, *empty, CLIPS[2])
    assert found.zeroed == 0
    assert found.total.shape == vector.shape
    assert not found.total.any()


def test_what_the_calling_program_has_set_makes_no_difference() -> None:
    model, vector = make("of columns")
    batch, vector = make_batch("of columns", cross_entropy), vector * 2.0**-70
    engine = CompiledEncoder(model, cross_entropy)
    plain = engine(vector, *batch, CLIPS[2]).total
    torch.set_flush_denormal(True)
    try:
        flushed = engine(vector, *batch, CLIPS[2]).total
    finally:
        torch.set_flush_denormal(False)
    assert plain.any()
    assert torch.equal(plain, flushed)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, y, g: (x.int(), y, g), "torch.int32"),
        (lambda x, y, g: (x.float(), y, g), "torch.float32"),
        (lambda x, y, g: (x[:, None], y, g), "takes items"),
        (lambda x, y, g: (x, y.float(), g), "targets"),
        (lambda x, y, g: (x, y[:, None], g), "targets"),
        (lambda x, y, g: (x, y[:-1], g), "targets"),
        (lambda x, y, g: (x, y + 1, g), "no class from 0 to 4"),
        (lambda x, y, g: (x, y - 1, g), "no class from 0 to 4"),
        (lambda x, y, g: (x + 1, y, g), "token is none from 0 to 10"),
        (lambda x, y, g: (x - 1, y, g), "token is none from 0 to 10"),
        (lambda x, y, g: (x + 2**62, y, g), "token is none from 0 to 10"),
        (lambda x, y, g: (x, y, g[:-1]), "23 items"),
    ],
)
def test_what_would_be_read_beyond_its_end_is_refused(change: Callable[..., tuple[Tensor, ...]], sentence: str) -> None:
    model, vector = make("relu")
    with pytest.raises(ModelError, match=sentence):
        CompiledEncoder(model, cross_entropy)(vector, *change(*make_batch("relu", cross_entropy)), CLIPS[2])


@pytest.mark.parametrize("name", ["flat, tanh, norms", "causal", "of columns"])
def test_items_longer_than_the_model_is_for_are_refused(name: str) -> None:
    model, vector = make(name)
    inputs, targets, groups = make_batch(name, cross_entropy)
    longer = torch.cat([inputs, inputs[:, :1]], 1)
    with pytest.raises(ModelError, match=f"items of {LENGTH + 1} values, and it is for items of length {LENGTH}"):
        CompiledEncoder(model, cross_entropy)(vector, longer, targets, groups, CLIPS[2])


def test_a_text_may_be_shorter_than_the_table_of_places() -> None:
    model, vector = make("causal")
    inputs, targets, groups = make_batch("causal", cross_entropy)
    batch = inputs[:, : LENGTH - 2], targets, groups
    found = CompiledEncoder(model, cross_entropy)(vector, *batch, CLIPS[2]).total
    wanted = reference.clipped_sum(model, cross_entropy, vector, *batch, CLIPS[2]).total
    assert torch.linalg.vector_norm(found - wanted) <= 1e-5 * torch.linalg.vector_norm(wanted)


class MeanOfLarge(nn.Module):
    """More than a mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0).mean(1)


class Choosing(nn.Module):
    """Cannot be followed."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1) if x.sum() > 0 else x[:, 0]


def frozen() -> nn.Module:
    model = encoder(8, 2)
    model[1].linear1.bias.requires_grad_(False)
    return model


def tied() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(WORDS, 8), layer, layer, Mean(), nn.Linear(8, 2))


def hooked(model: nn.Module) -> nn.Module:
    list(model.modules())[2].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


class Doubled(nn.Linear):
    """Another function of the same parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def replaced() -> nn.Module:
    model = causal_transformer(7, 3)
    model.blocks[0].out = Doubled(32, 32)  # type: ignore[index,union-attr]
    return model


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 2)),
        nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2)),
        nn.Sequential(nn.Embedding(4, 2, padding_idx=0), Mean(), nn.Linear(2, 2)),
        nn.Sequential(nn.Embedding(4, 2), MeanOfLarge(), nn.Linear(2, 2)),
        nn.Sequential(nn.Embedding(4, 2), Choosing(), nn.Linear(2, 2)),
        nn.Sequential(nn.Embedding(4, 2), nn.LSTM(2, 2), nn.Linear(2, 2)),
        nn.Sequential(nn.Embedding(4, 2), Mean(), nn.GELU("tanh"), nn.Linear(2, 2)),
        nn.Sequential(nn.Embedding(4, 8), nn.TransformerEncoderLayer(8, 2, 8, 0.1, batch_first=True), Mean()),
        nn.Sequential(nn.Embedding(4, 8), nn.TransformerEncoderLayer(8, 2, 8, 0.0), Mean()),
        encoder(512, 2),
        causal_transformer(7, 3, dropout=0.1),
        causal_transformer(7, 3, padding=0),
        causal_transformer(7, 21, every_position=True),
        nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(10, 2), nn.Softmax(1)),
        frozen(),
        tied(),
        hooked(encoder(8, 2)),
        hooked(causal_transformer(7, 3)),
        replaced(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_without_a_program_have_none(model: nn.Module) -> None:
    assert not CompiledEncoder.knows(model, cross_entropy)
    with pytest.raises(ModelError, match="does not know this model"):
        CompiledEncoder(model, cross_entropy)


def test_other_losses_have_no_program() -> None:
    assert not CompiledEncoder.knows(encoder(8, 2), multi_margin_loss)
    assert CompiledEncoder.knows(encoder(8, 2), binary_cross_entropy_with_logits)


def test_a_program_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.clipping.compiled_batch.AGREES", 1e-12)
    with pytest.raises(ModelError, match="computes other gradients"):
        CompiledEncoder(encoder(8, 2), cross_entropy)
