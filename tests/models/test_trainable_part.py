"""What is frozen stays as it was, and what is trained begins where the public model ended."""

import pytest
import torch
from torch import nn

from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.errors import ModelError
from wholegrain.models.model_catalog import build
from wholegrain.models.trainable_part import (
    split_model,
    train_biases,
    train_head,
    train_low_rank,
    train_matching,
    train_prefix,
)

SHAPES = [("upright_cnn", 64), ("mlp", 64)]


def images(features: int) -> torch.Tensor:
    return torch.rand(3, features, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "features"), SHAPES)
def test_the_head_is_the_last_layer(name: str, features: int) -> None:
    model = train_head(build(name, features=features, classes=5, seed=0))
    last = list(model)[-1]
    assert Layout.of(model).size == last.in_features * 5 + 5
    assert torch.equal(flatten(model), torch.cat([last.weight.reshape(-1), last.bias]))


@pytest.mark.parametrize(
    ("name", "features", "biases"),
    [("upright_cnn", 64, 24 + 24 + 48 + 48 + 64), ("mlp", 64, 64), ("stacked_lstm", 8, 2 * 2 * 1024 + 256)],
)
def test_biases_are_trained_with_the_last_layer(name: str, features: int, biases: int) -> None:
    model = train_biases(build(name, features=features, classes=5, seed=0))
    last = list(model.modules())[-1]
    assert Layout.of(model).size == biases + last.in_features * 5 + 5
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == sum(".bias" in name or name.startswith("bias") for name in trained) + 1


def test_a_model_without_biases_has_none_to_train() -> None:
    with pytest.raises(ModelError, match="no biases before its last layer"):
        train_biases(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2)))


@pytest.mark.parametrize(("name", "features"), SHAPES)
def test_low_rank_updates_begin_at_nothing_and_come_from_the_seed(name: str, features: int) -> None:
    plain = build(name, features=features, classes=5, seed=0)
    x = images(features)
    expected = plain(x)
    made = [train_low_rank(build(name, features=features, classes=5, seed=0), 2, seed) for seed in (1, 1, 2)]
    for model in made:
        assert torch.equal(model(x), expected)
    first, again, other = map(flatten, made)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_low_rank_updates_are_few_and_spare_the_layers_they_stand_beside() -> None:
    model = train_low_rank(build("upright_cnn", features=784, classes=10, seed=0), 2, 0)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert sum(sizes.values()) == 2 * (25 + 24) + 2 * (24 * 9 + 48) + 2 * (2352 + 64) + 650
    assert not any(".base." in name for name in sizes)


@pytest.mark.parametrize(("name", "features"), SHAPES)
def test_the_frozen_beginning_and_the_rest_are_the_model(name: str, features: int) -> None:
    model = train_head(build(name, features=features, classes=5, seed=0))
    frozen, rest = split_model(model)
    x = images(features)
    assert frozen is not None
    assert torch.equal(rest(frozen(x)), model(x))
    assert torch.equal(flatten(rest), flatten(model))


def test_where_nothing_is_frozen_nothing_is_divided() -> None:
    for model in (build("mlp", 4, 2, 0), build("logistic", 4, 2, 0), train_head(build("stacked_lstm", 8, 4, 0))):
        assert split_model(model) == (None, model)


def test_one_layer_cannot_be_divided() -> None:
    with pytest.raises(ModelError, match="nothing to freeze"):
        train_head(build("logistic", features=4, classes=2, seed=0))
    with pytest.raises(ModelError, match="low-rank"):
        train_low_rank(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), 2, 0)


def causal() -> nn.Module:
    return build("causal_transformer", 6, 5, 0, {"vocabulary": 9, "width": 8, "heads": 2})


def trained_names(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_patterns_say_which_parameters_are_trained() -> None:
    model = train_matching(causal(), ["blocks.1.out.*", "head.*"])
    assert trained_names(model) == ["blocks.1.out.weight", "blocks.1.out.bias", "head.weight", "head.bias"]
    assert Layout.of(model).size == 8 * 8 + 8 + 8 * 5 + 5


def test_a_shared_parameter_is_trained_by_either_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].weight = model[0].weight
    assert trained_names(train_matching(model, ["1.weight"])) == ["0.weight"]


def test_a_pattern_without_a_match_is_refused_with_a_near_name() -> None:
    with pytest.raises(
        ModelError, match=r"called 'block\.1\.\*' \(did you mean 'blocks\.1\.\*'\?\).* begin with places,"
    ):
        train_matching(causal(), ["head.*", "block.1.*"])


def test_a_prefix_is_few_parameters_from_the_seed_that_every_position_sees() -> None:
    made = [train_prefix(causal(), 3, seed) for seed in (1, 1, 2)]
    assert Layout.of(made[0]).size == 2 * (2 * 3 * 8) + 8 * 5 + 5
    first, again, other = map(flatten, made)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    tokens = torch.randint(9, (4, 6), generator=torch.Generator().manual_seed(0))
    model = made[0]
    with torch.no_grad():
        model.head.weight.normal_()
        before = model(tokens)
        model.blocks[0].prefix[1] += 1.0
        assert bool((model(tokens) != before).any(1).all())


def test_a_prefix_shows_no_position_what_comes_after_it() -> None:
    block = train_prefix(causal(), 3, 0).blocks[0]
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 4:] += 1.0
    assert torch.allclose(block(x)[:, :4], block(changed)[:, :4], atol=1e-6)


def test_a_model_without_attention_takes_no_prefix() -> None:
    with pytest.raises(ModelError, match="no attention layer that takes a prefix"):
        train_prefix(build("mlp", 4, 2, 0), 2, 0)
