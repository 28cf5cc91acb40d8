"""The models of text: what they see, and that they are on the fast way."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from agreement import Batch, assert_agrees, program_of, slow
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.traced import TracedGradients
from wholegrain.data.every_token import EveryToken
from wholegrain.errors import SpecError
from wholegrain.models.dropout import with_item_coins
from wholegrain.models.model_catalog import build
from wholegrain.models.text import score_positions

OPTIONS = {"width": 8, "heads": 2, "layers": 1}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_causal_transformer_is_on_the_fast_way(dropout: float) -> None:
    model = with_item_coins(build("causal_transformer", 7, 11, 0, {**OPTIONS, "dropout": dropout}))
    engine = BookKeeping(model, cross_entropy)
    tokens = torch.randint(11, (9, 7), generator=torch.Generator().manual_seed(1))
    batch = Batch(tokens, torch.arange(9), torch.arange(9) // 3)
    vector = flatten(model) + torch.randn(flatten(model).shape, generator=torch.Generator().manual_seed(2)) * 0.1
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, vector, batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


@pytest.mark.parametrize("name", ["causal_transformer", "stacked_lstm", "bigram", "bag_of_tokens"])
def test_models_of_padded_texts_are_on_the_fast_way(name: str) -> None:
    options = {"causal_transformer": OPTIONS, "stacked_lstm": {"hidden": 6}}.get(name, {})
    model = build(name, 7, 3, 0, {**options, "vocabulary": 11, "padding": 0}).double()
    engine = BookKeeping(model, cross_entropy)
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 11, (9, 7), generator=draws)
    tokens[torch.arange(7) >= torch.randint(8, (9, 1), generator=draws)] = 0
    vector = flatten(model) + torch.randn(flatten(model).shape, generator=draws, dtype=torch.float64) * 0.1
    batch = Batch(tokens, torch.arange(9) % 3, torch.arange(9) // 3)
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, vector, batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


def test_a_position_sees_what_came_before_it_alone() -> None:
    model = build("causal_transformer", 7, 11, 0, OPTIONS)
    tokens = torch.randint(11, (1, 7), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 11
    inner = model.blocks[0]
    one, other = (inner(model.tokens(each) + model.places) for each in (tokens, changed))
    torch.testing.assert_close(one[:, :5], other[:, :5])
    assert not torch.allclose(one[:, 5:], other[:, 5:])


def test_heads_divide_the_width() -> None:
    with pytest.raises(SpecError, match=r"its width \(8\) must be a multiple of its heads \(3\)"):
        build("causal_transformer", 7, 11, 0, {"width": 8, "heads": 3})


@pytest.mark.parametrize("heads", [0, -4])
def test_there_is_a_head(heads: int) -> None:
    with pytest.raises(SpecError, match=rf"heads, it should be greater than 0 \(it is {heads}\)"):
        build("causal_transformer", 7, 11, 0, {"width": 8, "heads": heads})


@pytest.mark.parametrize("options", [{}, {"code": 3}])
def test_an_lstm_scores_every_position_as_it_scores_the_last_of_a_window(options: dict[str, int]) -> None:
    model = build("whitened_lstm", 7, 11, 0, {"hidden": 6, "embedding": 4, **options})
    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(1))
    every = score_positions(model, tokens)
    assert every is not None
    for position in range(7):
        torch.testing.assert_close(every[:, position], model(tokens[:, : position + 1]))


def test_a_transformer_scores_every_position_as_it_scores_the_last_of_a_window() -> None:
    model, whole = (
        build("causal_transformer", 7, classes, 0, {**OPTIONS, **every}).double()
        for classes, every in ((11, {}), (77, {"every_position": True}))
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(2))
    whole.load_state_dict(model.state_dict())
    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(1))
    every = score_positions(model, tokens)
    assert every is not None
    torch.testing.assert_close(whole(tokens), every.flatten(1))
    for position in range(7):
        torch.testing.assert_close(every[:, position], model(tokens[:, : position + 1]))


def test_a_transformer_of_every_position_is_on_the_fast_way() -> None:
    model = build("causal_transformer", 7, 77, 0, {**OPTIONS, "every_position": True})
    tokens = torch.randint(11, (9, 7), generator=torch.Generator().manual_seed(1))
    loss = find_loss(None, EveryToken(tuple("abcdefghijk"), 7))
    engine = BookKeeping(model, loss)
    batch = Batch(tokens, tokens.roll(-1, 1), torch.arange(9) // 3)
    vector = flatten(model) + torch.randn(flatten(model).shape, generator=torch.Generator().manual_seed(2)) * 0.1
    assert slow(lambda: assert_agrees(engine, model, loss, vector, batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


def test_every_position_needs_windows_of_one_length() -> None:
    with pytest.raises(SpecError, match="windows of one length"):
        build("causal_transformer", 7, 77, 0, {**OPTIONS, "every_position": True, "padding": 0})


def test_a_code_makes_the_last_layer_of_an_lstm_smaller() -> None:
    whole, short = (build("whitened_lstm", 7, 11, 0, {"hidden": 6, **code}) for code in ({}, {"code": 3}))
    assert [tuple(model[-1].weight.shape) for model in (whole, short)] == [(11, 6), (11, 3)]  # type: ignore[index, union-attr, operator]


@pytest.mark.parametrize("name", ["stacked_lstm", "bigram"])
def test_other_models_read_whole_windows(name: str) -> None:
    assert score_positions(build(name, 7, 11, 0), torch.zeros(1, 7, dtype=torch.int64)) is None
