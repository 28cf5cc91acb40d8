"""In C where there is a program for a model, and by torch otherwise: never an error, never another function."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from compilers import require_compiler
from wholegrain.clipping import reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.compiled_encoder import CompiledEncoder
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.programs import find_program
from wholegrain.clipping.unit_passes import clipped_sums
from wholegrain.errors import ModelError
from wholegrain.models.ft_transformer import ft_transformer
from wholegrain.models.text import causal_transformer

require_compiler()

CLIP = Clip(ClipPer.ITEM, Pool.SUM, 0.3)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Bounded(nn.Identity):
    """Another function by the name of one that does nothing: the same for all small numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(-50, 50)


def flat(*after: nn.Module) -> nn.Module:
    """Only after the first linear layer it is known how long items are."""
    return nn.Sequential(nn.Embedding(11, 8), nn.Flatten(), nn.Linear(56, 6), *after, nn.Linear(6, 5))


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return flat(layer, nn.ReLU(), layer)


def causal(name: str, part: nn.Module) -> nn.Module:
    model = causal_transformer(7, 3, vocabulary=11, width=8, heads=2)
    setattr(model, name, part)
    return model


def of_columns(name: str, part: nn.Module) -> nn.Module:
    model = ft_transformer(5, 3, width=8, heads=2, layers=1)
    setattr(model, name, part)
    return model


def hooked(model: nn.Module, hook: str) -> nn.Module:
    getattr(next(m for m in model.modules() if isinstance(m, nn.Linear)), hook)(lambda module, *given: None)
    return model


class OtherLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(-50, 50)


@pytest.mark.parametrize(
    "make",
    [
        lambda: flat(nn.ELU()),
        lambda: nn.Sequential(nn.Embedding(11, 8), nn.Flatten(), nn.Linear(57, 5)),
        tied,
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(12, 3)),
        lambda: nn.Sequential(nn.Linear(3, 4), Bounded(), nn.ReLU(), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Embedding(3, 4), Bounded(), Mean(), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(),
        lambda: nn.Sequential(nn.Embedding(3, 4), Mean(), nn.Linear(4, 2)).double(),
        lambda: nn.Sequential(nn.Embedding(0, 3), Mean(), nn.Linear(3, 3)),
        lambda: causal("head", nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))),
        lambda: causal("head", OtherLinear(8, 3)),
        lambda: of_columns("norm", nn.RMSNorm(8)),
        lambda: of_columns("blocks", nn.Sequential(nn.Identity())),
        lambda: hooked(causal_transformer(7, 3, vocabulary=11, width=8, heads=2), "register_forward_hook"),
        lambda: hooked(nn.Sequential(nn.Linear(3, 2)), "register_full_backward_pre_hook"),
    ],
)
def test_there_is_no_program_for_what_none_was_written_for(make: Callable[[], nn.Module]) -> None:
    assert find_program(make(), cross_entropy) is None


def test_a_compiled_run_of_such_a_model_is_computed_by_torch() -> None:
    model = flat(nn.ELU())
    engine = clipped_sums(model, cross_entropy, Compute.of("cpu", compiled=True))
    assert isinstance(engine.engine, BookKeeping)
    batch = torch.randint(11, (9, 7)), torch.arange(9) % 5, torch.arange(9) // 2
    found = engine(flatten(model), *batch, CLIP).total
    wanted = reference.clipped_sum(model, cross_entropy, flatten(model), *batch, CLIP).total
    assert torch.allclose(found, wanted.to(found), atol=1e-5)


def test_rows_are_laid_out_as_the_model_says_also_in_one_function() -> None:
    """A reshape that is more than to lay out an item in a row was taken for one."""
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 2))
    batch = torch.randn(9, 6), torch.arange(18).view(9, 2) % 2, torch.arange(9) // 2
    found = BookKeeping(model, cross_entropy)(flatten(model), *batch, CLIP).total
    wanted = reference.clipped_sum(model, cross_entropy, flatten(model), *batch, CLIP).total
    assert torch.allclose(found, wanted.to(found), atol=1e-5)


def test_a_program_is_trusted_also_where_made_up_subjects_pull_against_each_other() -> None:
    """Items of one token and two classes: clipped to one length, they cancel, and rounding is all that is left."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Embedding(3, 4), Mean(), nn.Linear(4, 2))
        assert isinstance(find_program(model, cross_entropy), CompiledEncoder)


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


@pytest.mark.parametrize("pool", [Mean, Last])
def test_items_without_tokens_are_refused(pool: type[nn.Module]) -> None:
    """The last of none was read before the beginning."""
    model = nn.Sequential(nn.Embedding(3, 4), pool(), nn.Linear(4, 2))
    empty = torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), torch.arange(2)
    with pytest.raises(ModelError, match="items of 0 values"):
        CompiledEncoder(model, cross_entropy)(flatten(model), *empty, CLIP)
