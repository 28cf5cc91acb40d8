"""A model must be a function: what a call leaves behind for the next one lets people change each other's gradients."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wholegrain as wg
from wholegrain.errors import ModelError
from wholegrain.models.dropout import with_item_coins
from wholegrain.runs.model_repeats import find_memory


class Twisted(nn.Module):
    """A small model that does something to its hidden values, in training alone."""

    def __init__(self, twist: Callable[["Twisted", Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.outer, self.twist = nn.Linear(10, 4), nn.Linear(4, 2), twist
        self.calls, self.own = 0, np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x).tanh()
        return self.outer(self.twist(self, hidden) if self.training else hidden)


def drop_layer(model: Twisted, hidden: Tensor) -> Tensor:
    return hidden if random.random() < 0.9 else hidden * 0


def mask_by_numpy(model: Twisted, hidden: Tensor) -> Tensor:
    mask = np.ones(hidden.shape[1], np.float32)
    mask[np.random.randint(hidden.shape[1])] = 0
    return hidden * torch.from_numpy(mask)


def draw_from_its_own(model: Twisted, hidden: Tensor) -> Tensor:
    return hidden if model.own.random() < 0.999 else -hidden


def draw_from_the_system(model: Twisted, hidden: Tensor) -> Tensor:
    return hidden * float(np.random.default_rng().random())


def anneal(model: Twisted, hidden: Tensor) -> Tensor:
    model.calls += 1
    return hidden * (1 + 0.01 * model.calls)


def wait_and_turn(model: Twisted, hidden: Tensor) -> Tensor:
    model.calls += 1
    return hidden if model.calls < 10_000 else -hidden


TWISTS = {
    drop_layer: "draws random numbers",
    mask_by_numpy: "draws random numbers",
    draw_from_its_own: "changes 'own'",
    draw_from_the_system: "differ from call to call.*a function of its parameters and its items",
    anneal: "gives other outputs",
    wait_and_turn: "changes 'calls'",
}


@pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")
@pytest.mark.parametrize(("twist", "words"), TWISTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_model_that_remembers_or_draws_is_refused_before_anything_is_paid_for(
    twist: Callable[[Twisted, Tensor], Tensor], words: str
) -> None:
    data = wg.clinics(patients=60, clinics=3).silo("clinic-0")
    with pytest.raises(ModelError, match=words):
        wg.private_steps(Twisted(twist), data, policy=wg.subject_dp(rate=0.5), epsilon=4, delta=1e-5, steps=2)


def keep_what_was_seen(model: Twisted, hidden: Tensor) -> Tensor:
    model.seen = hidden.detach()
    return hidden


def make_a_table_once(model: Twisted, hidden: Tensor) -> Tensor:
    if not model.calls:
        model.calls, model.table = hidden.shape[1], torch.arange(hidden.shape[1])
    return hidden + model.table


@pytest.mark.parametrize("twist", [keep_what_was_seen, make_a_table_once])
def test_what_is_kept_and_changes_nothing_does_no_harm(twist: Callable[[Twisted, Tensor], Tensor]) -> None:
    assert find_memory(Twisted(twist), torch.zeros(2, 10)) is None


def test_dropout_of_items_is_a_function_of_the_item() -> None:
    model = with_item_coins(nn.Sequential(nn.Linear(10, 64), nn.Dropout(0.5), nn.Linear(64, 2)))
    assert find_memory(model, torch.zeros(2, 10)) is None


def test_a_model_with_dropout_is_trained() -> None:
    data = wg.clinics(patients=60, clinics=3).silo("clinic-0")
    net = nn.Sequential(nn.Linear(10, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    steps = wg.private_steps(net, data, policy=wg.subject_dp(rate=0.5), epsilon=4, delta=1e-5, steps=1)
    assert list(steps) == [0]
