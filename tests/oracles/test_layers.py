"""Rules of layers that come in a chain: equal to the reference, alone, between others, and in any module."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from agreement import Around, World, worlds
from effort import examples
from wholegrain.clipping import convolution, ends
from wholegrain.clipping.traced import TracedGradients

FEW = examples(10)


@given(worlds(), st.lists(st.integers(1, 4), max_size=2), st.booleans(), st.integers(1, 9), st.booleans())
@examples(18)
def test_linear(world: World, between: list[int], bias: bool, width: int, alone: bool) -> None:
    def make() -> nn.Module:
        last = nn.Linear(5, width, bias)
        return last if alone else nn.Sequential(nn.Linear(5, 5), nn.Tanh(), last)

    assert isinstance(program(world, make, (*between, 5)), TracedGradients)


@given(worlds(), st.integers(2, 30))
@FEW
def test_wide_linear_with_few_positions(world: World, width: int) -> None:
    # Here products of positions with positions are cheaper than gradients.
    world.compare(lambda: nn.Sequential(nn.Linear(40, width), nn.Sigmoid(), nn.Linear(width, 40)), (2, 40))


def program(world: World, make, shape: tuple[int, ...]) -> object:
    return world.compare(make, shape)._chosen.program


@st.composite
def convolutions(draw: st.DrawFn, dimensions: int) -> tuple[type, dict[str, object], tuple[int, ...]]:
    """A convolution with all its options, and a shape that it takes."""

    def per_dimension(most: int, least: int = 1) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(dimensions))

    groups = draw(st.sampled_from((1, 1, 2, 3)))
    kernel, dilation = per_dimension(3), per_dimension(2)
    stride = draw(st.sampled_from((1, 2, 3)))
    padding: object = per_dimension(2, 0)
    if stride == 1 and all(d * (k - 1) % 2 == 0 for d, k in zip(dilation, kernel, strict=True)):
        padding = draw(st.sampled_from((padding, "same", "valid")))
    options = {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    size = tuple(draw(st.integers(5, 8)) for _ in range(dimensions))
    return (nn.Conv1d, nn.Conv2d)[dimensions - 1], options, (options["in_channels"], *size)


@pytest.mark.parametrize("dimensions", [1, 2])
@given(data=st.data(), world=worlds(), large=st.sampled_from((0, 4)))
@examples(18)
@pytest.mark.slow
def test_convolution(dimensions: int, data: st.DataObject, world: World, large: int) -> None:
    kind, options, shape = data.draw(convolutions(dimensions))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "LARGE", large)
        world.compare(lambda: nn.Sequential(nn.GroupNorm(1, shape[0]), kind(**options)), shape)


@given(worlds(), st.sampled_from((nn.ReLU(), nn.ReLU(inplace=True), nn.GELU(), nn.Tanh())), st.integers(0, 1))
@FEW
@pytest.mark.slow
def test_convolutions_with_pools_between(world: World, activation: nn.Module, padding: int) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding="same"),
            activation,
            nn.MaxPool2d(2, stride=1, padding=padding),
            nn.Sequential(nn.Conv2d(3, 2, 2), nn.Identity(), nn.AvgPool2d(2)),
            nn.Flatten(),
            nn.LazyLinear(4),
        )

    world.compare(lambda: settled(make(), (1, 1, 6, 6)), (1, 6, 6))


def settled(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """A model whose lazy layers know their sizes."""
    model(torch.zeros(shape))
    return model


@given(worlds(), st.sampled_from(((), (4,), (2, 3))), st.sampled_from((None, 0, 3)), st.sampled_from((0, 1 << 22)))
@examples(18)
def test_embedding(world: World, shape: tuple[int, ...], padding: int | None, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ends, "SMALL_TABLE", most)
        world.compare(lambda: nn.Sequential(nn.Embedding(5, 4, padding_idx=padding), nn.Linear(4, 3)), shape, tokens=5)


def norms() -> st.SearchStrategy[tuple[object, tuple[int, ...]]]:
    """A layer that normalises within items, and a shape of at least 8 values for each mean."""
    return st.sampled_from(
        (
            (lambda: nn.LayerNorm(8), (8,)),
            (lambda: nn.LayerNorm(8), (3, 8)),
            (lambda: nn.LayerNorm((2, 8)), (2, 8)),
            (lambda: nn.LayerNorm((3, 4)), (2, 3, 4)),
            (lambda: nn.LayerNorm(8, bias=False), (2, 2, 8)),
            (lambda: nn.LayerNorm(8, elementwise_affine=False), (3, 8)),
            (lambda: nn.GroupNorm(2, 16), (16,)),
            (lambda: nn.GroupNorm(2, 4), (4, 8)),
            (lambda: nn.GroupNorm(1, 4), (4, 3, 4)),
            (lambda: nn.GroupNorm(4, 4, affine=False), (4, 3, 4)),
            (lambda: nn.InstanceNorm1d(3, affine=True), (3, 8)),
            (lambda: nn.InstanceNorm2d(3, affine=True), (3, 3, 4)),
        )
    )


@given(worlds(), norms(), st.booleans())
@examples(24)
@pytest.mark.slow
def test_norms(world: World, norm: tuple[object, tuple[int, ...]], chained: bool) -> None:
    make_norm, shape = norm

    def make() -> nn.Module:
        layer = make_norm()
        jitter(layer)
        sequence = nn.Sequential(nn.Linear(shape[-1], shape[-1]), layer, nn.Tanh(), nn.Linear(shape[-1], 2))
        return sequence if chained else Around(sequence)

    assert isinstance(program(world, make, shape), TracedGradients)


@pytest.mark.parametrize("shape", [(8,), (3, 8)])
@given(world=worlds())
@examples(10)
def test_two_norms_have_buffers_of_their_own(world: World, shape: tuple[int, ...]) -> None:
    def make() -> nn.Module:
        layers = nn.LayerNorm(8), nn.LayerNorm(8)
        for layer in layers:
            jitter(layer)
        return nn.Sequential(nn.Linear(8, 8), layers[0], nn.Tanh(), nn.Linear(8, 8), layers[1], nn.Linear(8, 2))

    assert isinstance(program(world, make, shape), TracedGradients)


def jitter(module: nn.Module) -> None:
    """Away from weights of 1 and biases of 0, with which much agrees by chance."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
