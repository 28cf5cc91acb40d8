"""T steps in a silo: one draw, one noise and one move each, from the two streams of (seed, round, silo)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vmap_sum
from wholegrain._random import Purpose, generator
from wholegrain.clipping import reference
from wholegrain.clipping.devices import USUAL
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.data.subjects import SubjectData
from wholegrain.models.model_catalog import build
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings
from wholegrain.silo.noise import NoiseStream, SeededNoise
from wholegrain.silo.training import Silo, Trainer

SETTINGS = PolicySettings(rate=0.3, clip_norm=0.5, group_cap=2, items_per_step=2)


def silo(name: str = "north") -> Silo:
    draws = np.random.default_rng(1)
    data = SubjectData(draws.normal(size=(50, 3)), draws.integers(2, size=50), draws.integers(15, size=50))
    return Silo(SiloFacts(name=name, items=50, subjects=data.subject_count, items_per_subject=9), data)


ROW = CATALOG["subject_dp"].row(SETTINGS, silo().facts).with_noise(0.7)


@dataclass
class Listening:
    """Seeded noise that remembers which streams were opened and what each was asked."""

    asked: dict[tuple[int, str], list[tuple[float, float]]] = field(default_factory=dict)
    name: str = "listening"
    identity: str = "listening"
    repeats: bool = True

    def coins(self, round: int, silo: str) -> np.random.Generator:
        return SeededNoise(4).coins(round, silo)

    def stream(self, round: int, silo: str) -> NoiseStream:
        assert (round, silo) not in self.asked, "a stream opened twice gives its noise twice"
        self.asked[round, silo] = []
        return Overheard(SeededNoise(4).stream(round, silo), self.asked[round, silo])


@dataclass
class Overheard:
    """A stream that notes each scale it is asked for."""

    stream: NoiseStream
    scales: list[tuple[float, float]]

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        self.scales.append((multiplier, clip_norm))
        self.stream.add_to(total, multiplier, clip_norm)


@dataclass(frozen=True)
class Split:
    """Noise of one seed and coins of another."""

    noise: int
    tossed: int
    name: str = "split"
    identity: str = "split"
    repeats: bool = True

    def stream(self, round: int, silo: str) -> NoiseStream:
        return SeededNoise(self.noise).stream(round, silo)

    def coins(self, round: int, silo: str) -> np.random.Generator:
        return SeededNoise(self.tossed).coins(round, silo)


def model() -> nn.Module:
    return build("mlp", 3, 2, seed=0, options={"hidden": (4,)}).double()


VECTOR = flatten(model())
GRADIENTS: dict[str, Callable[[nn.Module], ClippedSum]] = {
    "book-keeping": lambda network: BookKeeping(network, cross_entropy),
    "vectorised": lambda network: partial(vmap_sum.clipped_sum, network, cross_entropy),
    "unit by unit": lambda network: UnitPasses(network, cross_entropy, USUAL),
}

every_gradient = pytest.mark.parametrize("gradients", GRADIENTS.values(), ids=GRADIENTS.keys())


def watching(seen: list[tuple[Tensor, Tensor]]) -> ClippedSum:
    """Clipped sums that note the parameters and the inputs of each step."""

    def clipped_sum(vector, inputs, targets, groups, clip, buckets):
        seen.append((vector.clone(), inputs))
        return vmap_sum.clipped_sum(model(), cross_entropy, vector, inputs, targets, groups, clip)

    return clipped_sum


def trainer(**changes) -> Trainer:
    whole = Trainer(
        clipped_sum=partial(vmap_sum.clipped_sum, model(), cross_entropy),
        noise=SeededNoise(4),
        learning_rate=0.2,
    )
    return replace(whole, **changes)


@every_gradient
def test_training_is_the_step_repeated(gradients: Callable[[nn.Module], ClippedSum]) -> None:
    place, expected = silo(), VECTOR.clone()
    draws, noise = generator(4, Purpose.SAMPLING, 2, "north"), SeededNoise(4).stream(2, "north")
    for _ in range(6):
        batch = ROW.sampling.draw(place.data.index, draws)
        items = torch.from_numpy(batch.items)
        groups = torch.from_numpy(batch.groups)
        inputs, targets = place.inputs[items], place.targets[items]
        total = reference.clipped_sum(model(), cross_entropy, expected, inputs, targets, groups, ROW.clip).total
        noise.add_to(total, 0.7, 0.5)
        expected = expected - 0.2 * total / ROW.divisor.value
    trained = trainer(clipped_sum=gradients(model())).train(place, ROW, VECTOR, round=2, steps=6)
    torch.testing.assert_close(trained, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CATALOG)
def test_each_step_asks_once_for_noise_from_the_one_stream_of_its_silo_and_round(name: str) -> None:
    source = Listening()
    row = CATALOG[name].row(SETTINGS, silo().facts)
    row = row if row.noise else row.with_noise(0.7)
    trainer(noise=source).train(silo(), row, VECTOR, round=3, steps=5)
    assert source.asked == {(3, "north"): [(row.noise.multiplier, 0.5)] * 5}


def test_more_steps_begin_as_fewer_do() -> None:
    """Both streams are used up step after step: how many steps follow does not change those before."""
    longer, shorter = [], []
    for steps, seen in ((5, longer), (3, shorter)):
        training = trainer(clipped_sum=watching(seen))
        training.train(silo(), ROW, VECTOR, round=0, steps=steps)
    for (vector, inputs), (sooner, same) in zip(longer, shorter, strict=False):
        assert torch.equal(vector, sooner)
        assert torch.equal(inputs, same)
    assert (len(longer), len(shorter)) == (5, 3)
    assert len({tuple(inputs.ravel().tolist()) for _, inputs in longer}) == 5


@every_gradient
def test_the_starting_vector_the_data_and_the_model_are_left_alone(
    gradients: Callable[[nn.Module], ClippedSum],
) -> None:
    network, place, vector = model(), silo(), VECTOR.clone()
    inputs, own = place.data.inputs.copy(), flatten(network)
    trainer(clipped_sum=gradients(network)).train(place, ROW, vector, round=0, steps=3)
    assert torch.equal(vector, VECTOR)
    assert (place.data.inputs == inputs).all()
    assert torch.equal(flatten(network), own)


def test_no_steps_move_nothing() -> None:
    assert torch.equal(trainer().train(silo(), ROW, VECTOR, round=0, steps=0), VECTOR)


@every_gradient
def test_training_is_a_pure_function_of_its_arguments(gradients: Callable[[nn.Module], ClippedSum]) -> None:
    training = trainer(clipped_sum=gradients(model()))
    trained = training.train(silo(), ROW, VECTOR, round=1, steps=4)
    torch.rand(3)
    np.random.random(3)
    assert torch.equal(training.train(silo(), ROW, VECTOR, round=1, steps=4), trained)
    afresh = trainer(clipped_sum=gradients(model()))
    assert torch.equal(afresh.train(silo(), ROW, VECTOR, round=1, steps=4), trained)


def test_rounds_silos_and_seeds_draw_and_blur_differently() -> None:
    results = [
        trainer().train(silo(), ROW, VECTOR, round=0, steps=2),
        trainer().train(silo(), ROW, VECTOR, round=1, steps=2),
        trainer().train(silo("south"), ROW, VECTOR, round=0, steps=2),
        trainer(noise=Split(noise=4, tossed=5)).train(silo(), ROW, VECTOR, round=0, steps=2),
        trainer(noise=Split(noise=5, tossed=4)).train(silo(), ROW, VECTOR, round=0, steps=2),
    ]
    assert len({tuple(result.tolist()) for result in results}) == len(results)


def test_noise_does_not_decide_what_is_drawn() -> None:
    """Batches and noise come from streams of their own: other noise, the same batch in every step."""
    seen: list[tuple[Tensor, Tensor]] = []
    for source in (SeededNoise(4), Split(noise=99, tossed=4)):
        trainer(noise=source, clipped_sum=watching(seen)).train(silo(), ROW, VECTOR, round=0, steps=2)
    inputs = [drawn for _, drawn in seen]
    assert torch.equal(inputs[0], inputs[2])
    assert torch.equal(inputs[1], inputs[3])


class Fresh(SeededNoise):
    """Noise as a release has it: it never comes again."""

    kinds: ClassVar[list[torch.dtype]] = []

    @property
    def repeats(self) -> bool:
        return False

    def stream(self, round: int, silo: str) -> "Fresh":
        return self

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        self.kinds.append(total.dtype)


def test_a_release_has_one_format_whichever_way_its_sum_was_made() -> None:
    """The last bits of what is released must not tell an empty batch, or one that was summed in groups, from others."""
    noise = Fresh(0)
    noise.kinds.clear()
    for rate in (1e-9, 0.3, 1.0):
        row = CATALOG["subject_dp"].row(PolicySettings(rate=rate), silo().facts).with_noise(0.7)
        trainer = Trainer(clipped_sum=BookKeeping(model(), cross_entropy), noise=noise, learning_rate=0.1)
        trainer.train(silo(), row, flatten(model()), 0, 2)
    assert set(noise.kinds) == {torch.float64}
