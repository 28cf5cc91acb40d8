"""Features and outputs of items do not depend on who else is in the silo, whatever a server's parameters are."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Classification
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.silo import views
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.score_release import STEPS, ScoreMaker
from wholegrain.silo.views import ROWS, apply_view

WIDTH, PEOPLE = 10, 2000


def test_a_view_that_decides_by_values_sees_one_item_at_a_time() -> None:
    """Else one person's value would decide how the features of others are computed."""
    seen = []

    def view(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x if bool((x > 0).all()) else x * 2

    stored = torch.tensor([[1.0], [2.0], [-1.0]])
    assert apply_view(stored, view, np.arange(3)).tolist() == [[1.0], [2.0], [-2.0]]
    assert seen[-3:] == [1, 1, 1]


def test_an_item_keeps_its_place_in_a_pass_whoever_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "prove_view", lambda view, like: view)  # this one tells of places, which no proof allows
    draws = np.random.default_rng(0)
    stored, subjects = torch.from_numpy(draws.random((500, 3), np.float32)), draws.integers(0, 90, 500)

    def places(left: np.ndarray) -> Tensor:
        """[item] where each item stood, told by a view that gives every row its place."""
        return apply_view(stored[left], lambda x: torch.arange(len(x)), subjects[left])

    everybody = places(np.arange(500))
    assert len(everybody.unique()) == ROWS
    for gone in (0, 31, 89):
        left = np.flatnonzero(subjects != gone)
        assert torch.equal(places(left), everybody[left])
    assert torch.equal(places(np.arange(1, 500)), everybody[1:])  # one item less of a subject


def chosen_by_a_server(model: nn.Module) -> Tensor:
    """Hidden units that are alike, and silent for made-up items, whose first value is positive: what is left of their
    sum is a rounding error, which depends on an item's place in a pass of odd width.
    """
    draws = torch.Generator().manual_seed(1)
    vector = flatten(model)
    views = Layout.of(model).views(vector)
    vector.zero_()
    views["0.weight"].copy_(torch.randn(1, WIDTH, generator=draws).expand(WIDTH, -1))
    views["0.weight"][:, 0] = -1000.0
    weights = torch.randn(WIDTH, generator=draws)
    views["2.weight"][0] = (weights - weights.mean()) * 1e6
    return vector


def test_a_private_score_moves_by_one_person_under_any_parameters() -> None:
    """With places by position one person moved it by 5, because others' answers turned round."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    task = Classification.of(2)
    maker = ScoreMaker(model=model, loss=find_loss(None, task), task=task, noise=SeededNoise(0))
    form, vector = ScoreForm(noise_multiplier=1.0, measures=("accuracy",)), chosen_by_a_server(model)
    inputs = np.random.default_rng(0).uniform(-1, 1, (PEOPLE, WIDTH)).astype(np.float32)
    inputs[:, 0] = -1
    for seed in range(8):
        targets = np.random.default_rng(seed).integers(0, 2, PEOPLE)
        whole, rest = (
            maker.add_up(SubjectData(inputs[k:], targets[k:], np.arange(k, PEOPLE)), form, vector) for k in (0, 1)
        )
        assert abs(int(whole[0] - rest[0])) <= STEPS


def raising(x: Tensor) -> Tensor:
    """A view that cannot take values from 100 on."""
    return nn.functional.embedding((x[:, 0] / 100).long(), torch.eye(1, 3)) + x @ torch.ones(3, 3)


@pytest.mark.parametrize("gone", [1, 63, 64])
def test_whoever_a_view_raises_at_has_features_that_are_not_finite_and_others_notice_nothing(gone: int) -> None:
    draws = np.random.default_rng(0)
    stored, subjects = torch.from_numpy(draws.random((500, 3), np.float32)), draws.integers(0, 90, 500)
    odd = torch.from_numpy(np.flatnonzero(subjects == gone))
    kept = torch.from_numpy(np.flatnonzero(subjects != gone))
    stored[odd] += 100
    found = apply_view(stored, raising, subjects)
    assert found[odd].isnan().all()
    assert torch.equal(found[kept], apply_view(stored[kept], raising, subjects[kept.numpy()]))


def test_of_items_that_a_view_raises_at_alone_nothing_is_finite() -> None:
    assert apply_view(torch.full((5, 3), 100.0), raising, np.arange(5)).isnan().all()


def test_a_view_that_raises_at_every_item_raises() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        apply_view(torch.zeros(5, 2), raising, np.arange(5))
