"""Parameters that are frozen, shared, or used more than once."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from agreement import Around, World, worlds
from effort import examples

FEW = examples(6)


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 3, 2),
        nn.Tanh(),
        nn.GroupNorm(1, 3),
        nn.Linear(4, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def frozen(keep: Callable[[str], bool]) -> nn.Module:
    model = layers()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(keep(name))
    return model


@pytest.mark.parametrize("part", ["weight", "bias", "0.", "2.", "3.", "6.", "6.bias"])
@given(world=worlds(), chained=st.booleans())
@examples(4)
def test_training_a_part(part: str, world: World, chained: bool) -> None:
    model = lambda: frozen(lambda name: part in name)  # noqa: E731
    world.compare(model if chained else lambda: Around(model()), (2, 5))


@given(worlds(), st.sampled_from((nn.LSTM, nn.GRU)), st.sampled_from(("weight_ih", "weight_hh", "bias", "_l1")))
@examples(10)
def test_training_a_part_of_a_recurrent_module(world: World, kind: type[nn.RNNBase], part: str) -> None:
    def make() -> nn.Module:
        inner = kind(3, 4, 2, batch_first=True)
        for name, parameter in inner.named_parameters():
            parameter.requires_grad_(part in name)
        return Around(inner, lambda outs: outs[0])

    world.compare(make, (3, 3))


@given(worlds(), st.sampled_from(("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")))
@FEW
def test_training_a_part_of_attention(world: World, part: str) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 2, batch_first=True)
            for name, parameter in self.inner.named_parameters():
                parameter.requires_grad_(name == part)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x.sin(), x)[0]

    world.compare(Attends, (3, 4))


def one_module_twice() -> nn.Module:
    again = nn.Linear(4, 4)
    return nn.Sequential(again, nn.Tanh(), again, nn.Tanh(), nn.Linear(4, 3))


def one_convolution_twice() -> nn.Module:
    again = nn.Conv1d(4, 4, 3, padding=1)
    return nn.Sequential(again, nn.Tanh(), again)


def one_norm_twice() -> nn.Module:
    again = nn.LayerNorm(4)
    return nn.Sequential(again, nn.Linear(4, 4), again)


def two_tied_maps() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def two_tied_maps_without_biases() -> nn.Module:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    return Around(nn.Sequential(first, nn.Tanh(), second))


@pytest.mark.parametrize(
    "make",
    [one_module_twice, one_convolution_twice, one_norm_twice, two_tied_maps, two_tied_maps_without_biases],
    ids=lambda make: make.__name__,
)
@given(world=worlds())
@FEW
def test_shared(make: Callable[[], nn.Module], world: World) -> None:
    world.compare(make, (4, 4))


@given(worlds())
@FEW
def test_one_module_for_items_with_and_without_positions(world: World) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x).tanh().mean(1))

    world.compare(Mixed, (3, 4))


@pytest.mark.parametrize("most", [0, 1 << 22])
@given(world=worlds(), bias=st.booleans())
@FEW
def test_table_tied_to_the_last_map(most: int, world: World, bias: bool) -> None:
    def make() -> nn.Module:
        table, last = nn.Embedding(6, 4), nn.Linear(4, 6, bias)
        last.weight = table.weight
        return nn.Sequential(table, nn.Linear(4, 4), nn.Tanh(), last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wholegrain.clipping.ends.SMALL_TABLE", most)
        world.compare(make, (3,), tokens=6)


@given(worlds())
@FEW
def test_loops_over_a_list_with_residuals_and_one_module_under_two_parents(world: World) -> None:
    class Block(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(8), inner

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(self.norm(x)).relu()

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Linear(8, 8)
            self.blocks = nn.ModuleList(Block(shared) for _ in range(3))
            self.scales = nn.ModuleDict({"one": nn.Linear(8, 1), "two": nn.Linear(8, 1)})

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return self.scales["one"](x) * self.scales["two"](x).exp()

    world.compare(Blocks, (2, 8))
