"""Spare numbers of tokens: nothing changes until they are trained, scales are public, and clipping is as ever."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import clipped_sum
from wholegrain.data.every_token import EveryToken
from wholegrain.data.tasks import NextToken, Task
from wholegrain.errors import ModelError, SpecError
from wholegrain.models.backbone import Backbone
from wholegrain.models.gate_directions import fit_spare
from wholegrain.models.model_catalog import build
from wholegrain.models.text import LastState
from wholegrain.models.trainable_part import train_matching
from wholegrain.runs.spec_sections import ModelSpec
from wholegrain.runs.trained_model import build_trained_model

WINDOW, TOKENS = 6, 5
OPTIONS = {"hidden": 8, "embedding": 4, "code": 3, "spare": 3}
TASK = EveryToken(tuple("abcde"), WINDOW)


def windows(items: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(3)
    drawn = torch.randint(TOKENS, (items, WINDOW + 1), generator=draws)
    return drawn[:, :-1], drawn[:, -1]


def fitted() -> torch.nn.Sequential:
    model = build("whitened_lstm", WINDOW, TOKENS, 0, OPTIONS)
    assert isinstance(model, torch.nn.Sequential)
    fit_spare(model, *windows())
    return model


def every_position(model: torch.nn.Module) -> torch.nn.Module:
    """A model with the same parameters that scores every position, of which the spare numbers and the head train."""
    every = build("whitened_lstm", WINDOW, TASK.outputs, 0, {**OPTIONS, "every_position": True})
    every.load_state_dict(model.state_dict())
    return train_matching(every, ["0.spare.weight", "3.*"])


def test_a_model_computes_the_same_with_and_without_spare_numbers() -> None:
    tokens, _ = windows()
    model = fitted()
    plain = build("whitened_lstm", WINDOW, TOKENS, 0, {**OPTIONS, "spare": 0})
    own = model.state_dict()
    kept = {name: own[name] for name in plain.state_dict()}
    kept["0.lstm.weight_ih_l0"] = kept["0.lstm.weight_ih_l0"][:, :4]
    plain.load_state_dict(kept)
    torch.testing.assert_close(model(tokens), plain(tokens))


def test_directions_are_those_of_the_largest_moments_and_pull_alike() -> None:
    """Orthogonal, each shortened by what pulls at it; what is rare is stretched, but not without bound."""
    states = fitted()[0]
    assert isinstance(states, LastState)
    columns = states.lstm.weight_ih_l0[:, 4:].detach()
    products = columns.T @ columns
    torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-3, rtol=1e-3)
    assert products.diagonal().diff().min() > 0  # the first direction is the steepest, and moves least
    assert torch.isfinite(states.scale).all()
    assert states.scale.min() > 0


def test_every_position_is_scored_as_the_last_is() -> None:
    tokens, _ = windows()
    model = fitted()
    scores = every_position(model)(tokens).detach()
    torch.testing.assert_close(TASK.in_units(scores), model(tokens).detach())


@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e30])
def test_whoever_is_removed_moves_a_sum_by_no_more_than_the_clip_norm(factor: float) -> None:
    """Whatever the scales are: gradients are clipped after them."""
    tokens, last = windows(12)
    model = fitted()
    states = model[0]
    assert isinstance(states, LastState)
    states.scale.mul_(factor)
    net = every_position(model)
    targets = torch.from_numpy(np.concatenate([tokens[:, 1:], last[:, None]], 1).astype(np.float32))
    groups, clip = torch.arange(12) // 3, Clip(ClipPer.SUBJECT, Pool.MEAN, 0.1)
    loss = find_loss(None, TASK)
    engine = BookKeeping(net, loss)
    whole = engine(flatten(net), tokens, targets, groups, clip).total
    if factor == 1:
        reference = clipped_sum(net, loss, flatten(net), tokens, targets, groups, clip).total
        torch.testing.assert_close(whole.double(), reference.double(), atol=1e-5, rtol=1e-4)
    assert torch.isfinite(whole).all()
    for gone in range(4):
        rest = groups != gone
        others = engine(flatten(net), tokens[rest], targets[rest], groups[rest], clip).total
        assert float((whole.double() - others.double()).norm()) <= 0.1 * (1 + 1e-5)


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_scales_that_are_not_positive_are_refused(wrong: float, tmp_path: Path) -> None:
    model = fitted()
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    tensors["0.scale"][2] = wrong
    Backbone(tensors, {"data": "documents", "public": "made for this test"}).write(tmp_path / "b.safetensors")
    asked = ModelSpec(
        name="whitened_lstm", options=OPTIONS, start=str(tmp_path / "b.safetensors"), train=("0.spare.weight",)
    )
    with pytest.raises(ModelError, match="must be positive and finite"):
        build_trained_model(asked, WINDOW, NextToken(TASK.classes), 0)


def test_a_start_of_text_needs_no_option_to_learn_from_every_position() -> None:
    model = build("whitened_lstm", WINDOW, TASK.outputs, 0, {**OPTIONS, "every_position": True})
    with pytest.raises(ModelError, match="leave out every_position"):
        fit_spare(model, *windows())


@pytest.mark.parametrize(
    ("name", "options", "task", "match"),
    [
        ("whitened_lstm", {}, TASK, "whitened_lstm or causal_transformer with model.options.every_position = true"),
        ("stacked_lstm", {}, TASK, "the model 'stacked_lstm' scores one position"),
        ("whitened_lstm", {"every_position": True}, NextToken(TASK.classes), "set data.options.every_position = true"),
        ("whitened_lstm", {"every_position": "no"}, TASK, "model.options.every_position must be true or false"),
    ],
)
def test_data_and_model_agree_on_every_position(name: str, options: dict[str, Any], task: Task, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        build_trained_model(ModelSpec(name=name, options=options), WINDOW, task, 0)
