"""Batches that are drawn ahead of their steps: the same training, to the last bit, in little memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from wholegrain.clipping.clipping import ClippedTotal
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.data.subjects import SubjectData
from wholegrain.models.model_catalog import build
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.silo import training
from wholegrain.silo.noise import NoiseSource, SeededNoise
from wholegrain.silo.secure_noise import SecureNoise
from wholegrain.silo.training import Silo, Trainer


def make_silo(items: int = 300) -> Silo:
    draws = np.random.default_rng(1)
    subjects = np.sort(draws.integers(0, 60, items))
    data = SubjectData(draws.random((items, 5), np.float32), draws.integers(0, 2, items), subjects)
    facts = SiloFacts(name="north", items=items, subjects=60, items_per_subject=20, drops_surplus=False)
    return Silo(facts, data)


def train(noise: NoiseSource, policy: str, silo: Silo, steps: int = 9) -> torch.Tensor:
    model = build("mlp", 5, 2, 0)
    trainer = Trainer(clipped_sum=BookKeeping(model, cross_entropy), noise=noise, learning_rate=0.1)
    row = find(policy).row(PolicySettings(batch_size=20, clip_norm=1.0), silo.facts).with_noise(1.0)
    return trainer.train(silo, row, flatten(model), 3, steps)


@pytest.mark.parametrize("policy", ["local_item_dp", "subject_dp"])
def test_drawn_ahead_or_not_training_is_the_same(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = make_silo()
    together = train(SeededNoise(4), policy, silo)
    for ahead in (0, 2 * 20 * 52):  # one step at a time, and about two
        monkeypatch.setattr(training, "AHEAD", ahead)
        assert torch.equal(together, train(SeededNoise(4), policy, replace(silo)))


def test_how_many_steps_are_drawn_ahead_follows_from_public_sizes() -> None:
    few, many = make_silo(10), make_silo(300)
    assert training._steps_ahead(few, 20.0) == training._steps_ahead(many, 20.0) == training.AHEAD // (20 * 52)
    assert training._steps_ahead(many, 1e9) == 0
    assert training._steps_ahead(many, 0.0) > 0


def test_no_more_is_drawn_than_there_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = training.draw_batches
    monkeypatch.setattr(training, "draw_batches", lambda *given: asked.append(given[-1]) or real(*given))
    train(SecureNoise(), "subject_dp", make_silo(), steps=9)
    monkeypatch.setattr(training, "AHEAD", 4 * 60 * 52)
    train(SecureNoise(), "subject_dp", make_silo(), steps=9)
    assert asked[0] == 9
    assert sum(asked[1:]) == 9
    assert len(asked) > 2


def test_where_a_batch_lies_in_memory_does_not_depend_on_the_batches_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five numbers are 20 bytes: within one array, a batch would begin where the sizes of earlier ones say."""
    seen = []

    class Watched(BookKeeping):
        def __call__(self, vector: Tensor, inputs: Tensor, *given: Any) -> ClippedTotal:
            seen.append((inputs.data_ptr() % 64, inputs.storage_offset()))
            return super().__call__(vector, inputs, *given)

    monkeypatch.setattr(f"{__name__}.BookKeeping", Watched)
    train(SeededNoise(4), "subject_dp", make_silo())
    assert seen == [(0, 0)] * 9
