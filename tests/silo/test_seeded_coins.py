"""Seeded coins with the C program and without: the same batches, and the same numbers left in the generator."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from compilers import require_compiler
from draw_cases import SAMPLINGS, SILOS
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.data.sampling import Sampling, draw_batches
from wholegrain.data.subjects import SubjectData, SubjectIndex
from wholegrain.models.model_catalog import build
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.silo import c_library, noise, seeded_coins
from wholegrain.silo.c_library import load_library
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.seeded_coins import MOST, ChosenBatches, find_program
from wholegrain.silo.training import Silo, Trainer

require_compiler()

ALL_SILOS = {
    **SILOS,
    "as many as it takes": np.repeat(np.arange(MOST // 2), 2),
    "one more": np.append(np.repeat(np.arange(MOST // 2), 2), 3),
    "nobody": np.zeros(0, np.int64),
}


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """What an earlier test found out of the program is forgotten."""
    load_library()
    for found in (c_library.kept_library, find_program):
        found.cache_clear()
    yield
    for found in (c_library.kept_library, find_program):
        found.cache_clear()


def both() -> tuple[ChosenBatches, np.random.Generator]:
    program = find_program()
    assert program is not None, "the program was compiled, and is not used"
    return ChosenBatches(np.random.default_rng(9), program), np.random.default_rng(9)


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", ALL_SILOS)
def test_batches_are_those_of_numpy_alone(name: str, sampling: Sampling, count: int) -> None:
    index = SubjectIndex.of(ALL_SILOS[name])
    own, numpy = both()
    for _ in range(2):
        found, wanted = draw_batches(sampling, index, own, count), draw_batches(sampling, index, numpy, count)
        for one, other in zip(found, wanted, strict=True):
            assert one.items.dtype == one.groups.dtype == np.int64
            assert np.array_equal(one.items, other.items)
            assert np.array_equal(one.groups, other.groups)
    assert own.generator.bit_generator.state == numpy.bit_generator.state


def train(policy: str) -> torch.Tensor:
    data = SubjectData(np.ones((1370, 3), np.float32), np.arange(1370) % 2, np.repeat(np.arange(137), 10))
    facts = SiloFacts(name="north", items=1370, subjects=137, items_per_subject=10, drops_surplus=False)
    model = build("mlp", 3, 2, 0)
    trainer = Trainer(clipped_sum=BookKeeping(model, cross_entropy), noise=SeededNoise(4), learning_rate=0.1)
    row = find(policy).row(PolicySettings(batch_size=20, clip_norm=1.0), facts).with_noise(1.0)
    return trainer.train(Silo(facts, data), row, flatten(model), 3, 5)


@pytest.mark.parametrize("policy", ["local_item_dp", "subject_dp"])
def test_training_is_the_same_with_the_program_and_without(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(SeededNoise(4).coins(3, "north"), ChosenBatches)
    with_program = train(policy)
    monkeypatch.setattr(noise, "seeded_coins", lambda generator: generator)
    assert torch.equal(with_program, train(policy))


def test_a_program_that_chooses_others_than_numpy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_program()
    assert real is not None

    def shuffles_never(bits: int, size: int, shuffled: bool, *given: Any) -> int:
        return int(real(bits, size, False, *given))

    assert seeded_coins._agrees(real, 300)
    assert not seeded_coins._agrees(shuffles_never, 300)


def test_nothing_is_compiled_for_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLEGRAIN_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr(c_library, "load_library", cache(c_library.load_library.__wrapped__))
    assert isinstance(SeededNoise(4).coins(3, "north"), np.random.Generator)
    assert not (tmp_path / "none").exists()
