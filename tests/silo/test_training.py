"""T steps in a silo: one draw, one noise and one move each, all decided by (seed, round, silo, step)."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from wholegrain._random import Purpose, generator
from wholegrain.data.subjects import SubjectData
from wholegrain.gradients import reference, vectorised
from wholegrain.gradients.parameters import flatten
from wholegrain.models.catalog import build
from wholegrain.policies.catalog import CATALOG, Settings
from wholegrain.policies.policy import SiloFacts
from wholegrain.silo.noise import Keys, SeededNoise
from wholegrain.silo.training import Silo, Trainer

SETTINGS = Settings(rate=0.3, clip_norm=0.5, group_cap=2, items_per_step=2)


def silo(name: str = "north") -> Silo:
    draws = np.random.default_rng(1)
    data = SubjectData(draws.normal(size=(50, 3)), draws.integers(2, size=50), draws.integers(15, size=50))
    return Silo(SiloFacts(name=name, items=50, subjects=data.subject_count, items_per_subject=9), data)


ROW = CATALOG["subject_dp"].row(SETTINGS, silo().facts).with_noise(0.7)


@dataclass
class Listening:
    """Seeded noise that remembers what it was asked."""

    asked: list[tuple[float, Keys]] = field(default_factory=list)
    name: str = "listening"

    def gaussian(self, like: Tensor, std: float, keys: Keys) -> Tensor:
        self.asked.append((std, keys))
        return SeededNoise(4).gaussian(like, std, keys)


def trainer(**changes) -> Trainer:
    model = build("mlp", 3, 2, seed=0, options={"hidden": (4,)}).double()
    whole = Trainer(
        model=model,
        loss=cross_entropy,
        clipped_sum=vectorised.clipped_sum,
        noise=SeededNoise(4),
        learning_rate=0.2,
        seed=4,
    )
    return replace(whole, **changes)


def test_training_is_the_step_repeated() -> None:
    training, place = trainer(), silo()
    vector = flatten(training.model)
    expected = vector.clone()
    for step in range(6):
        batch = ROW.sampling.draw(place.data.roster, generator(4, Purpose.SAMPLING, 2, "north", step))
        items = torch.from_numpy(batch.items)
        groups = torch.from_numpy(batch.groups)
        inputs, targets = place.inputs[items], place.targets[items]
        total = reference.clipped_sum(training.model, cross_entropy, expected, inputs, targets, groups, ROW.clip).total
        noise = SeededNoise(4).gaussian(total, 0.7 * 0.5, (2, "north", step))
        expected = expected - 0.2 * (total + noise) / ROW.divisor.value
    trained = training.train(place, ROW, vector, round=2, steps=6)
    torch.testing.assert_close(trained, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CATALOG)
def test_each_step_asks_once_for_noise_with_keys_of_its_own(name: str) -> None:
    source = Listening()
    training = trainer(noise=source)
    row = CATALOG[name].row(SETTINGS, silo().facts)
    row = row if row.noise else row.with_noise(0.7)
    training.train(silo(), row, flatten(training.model), round=3, steps=5)
    std = 0.0 if name == "fedavg" else 0.7 * 0.5
    assert source.asked == [(std, (3, "north", step)) for step in range(5)]


def test_the_starting_vector_and_the_data_are_left_alone() -> None:
    training, place = trainer(), silo()
    vector = flatten(training.model)
    before, inputs, own = vector.clone(), place.data.inputs.copy(), flatten(training.model)
    training.train(place, ROW, vector, round=0, steps=3)
    assert torch.equal(vector, before)
    assert (place.data.inputs == inputs).all()
    assert torch.equal(flatten(training.model), own)


def test_no_steps_move_nothing() -> None:
    training = trainer()
    vector = flatten(training.model)
    assert torch.equal(training.train(silo(), ROW, vector, round=0, steps=0), vector)


def test_training_is_a_pure_function_of_its_arguments() -> None:
    training = trainer()
    vector = flatten(training.model)
    trained = training.train(silo(), ROW, vector, round=1, steps=4)
    torch.rand(3)
    np.random.random(3)
    assert torch.equal(trainer().train(silo(), ROW, vector, round=1, steps=4), trained)


def test_rounds_silos_and_seeds_draw_and_blur_differently() -> None:
    vector = flatten(trainer().model)
    results = [
        trainer().train(silo(), ROW, vector, round=0, steps=2),
        trainer().train(silo(), ROW, vector, round=1, steps=2),
        trainer().train(silo("south"), ROW, vector, round=0, steps=2),
        trainer(seed=5).train(silo(), ROW, vector, round=0, steps=2),
        trainer(noise=SeededNoise(5)).train(silo(), ROW, vector, round=0, steps=2),
    ]
    assert len({tuple(result.tolist()) for result in results}) == len(results)


def test_noise_does_not_decide_what_is_drawn() -> None:
    """Batches and noise come from streams of their own: other noise, the same batch in the first step."""
    seen: list[Tensor] = []

    def watching(model, loss, vector, inputs, targets, groups, clip):
        seen.append(inputs)
        return vectorised.clipped_sum(model, loss, vector, inputs, targets, groups, clip)

    for source in (SeededNoise(4), SeededNoise(99)):
        training = trainer(noise=source, clipped_sum=watching)
        training.train(silo(), ROW, flatten(training.model), round=0, steps=2)
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
