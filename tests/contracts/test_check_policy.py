"""What every row of the catalogue must keep to; a new row is checked by being there."""

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent, NoOpDpEvent
from torch import Tensor
from torch.nn.functional import cross_entropy

import vmap_sum
from policy_rows import cap_of
from wholegrain.clipping.clipping import ClipPer, Pool
from wholegrain.clipping.parameters import flatten
from wholegrain.data.sampling import Batch, PoissonSubjects
from wholegrain.data.subjects import SubjectData, SubjectIndex
from wholegrain.errors import SpecError
from wholegrain.models.model_catalog import build
from wholegrain.policies.guarantees import obstacles, step_event
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy import FixedNoise, Policy, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings, find
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.silo.training import Silo, Trainer

SIGMA, CLIP_NORM, CAP, RATE = 1.3, 0.4, 2, 0.35
SETTINGS = PolicySettings(rate=RATE, clip_norm=CLIP_NORM, group_cap=CAP, items_per_step=CAP)
COUNTS = [6, 5, 3, 2, 1, 1]
FACTS = SiloFacts(name="silo", items=sum(COUNTS), subjects=len(COUNTS), items_per_subject=max(COUNTS))
EMPTY = Batch(np.zeros(0, np.int64), np.zeros(0, np.int64))

every_row = pytest.mark.parametrize("name", CATALOG)


def data() -> SubjectData:
    draws = np.random.default_rng(0)
    subjects = draws.permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
    return SubjectData(draws.normal(size=(len(subjects), 3)), draws.integers(2, size=len(subjects)), subjects)


def row(name: str) -> Policy:
    """The row with noise, unless it is one that has its own."""
    bare = find(name).row(SETTINGS, FACTS)
    return bare if bare.noise is not None else bare.with_noise(SIGMA)


def noise_of(name: str) -> float:
    """The row's own noise multiplier, or the one that it was given."""
    noise = row(name).noise
    assert isinstance(noise, FixedNoise)
    return noise.multiplier


def batches(policy: Policy, count: int = 200) -> Iterator[Batch]:
    for seed in range(count):
        yield policy.sampling.draw(data().index, np.random.default_rng(seed))


@dataclass(frozen=True)
class Unpriced:
    """An accountant that remembers nothing and answers at once: what is asked here is whether it is asked at all."""

    name: str = "unpriced"
    version: str = "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return 1.0


@every_row
def test_a_row_is_a_frozen_value(name: str) -> None:
    policy, twin = row(name), row(name)
    assert policy == twin
    assert hash(policy) == hash(twin)
    assert policy != replace(policy, clip=replace(policy.clip, norm=2 * CLIP_NORM))
    assert policy.name == name
    with pytest.raises(FrozenInstanceError):
        policy.name = "other"  # type: ignore[misc]


@every_row
def test_a_row_is_made_from_public_facts(name: str) -> None:
    """Silos that publish the same facts follow the same row, whatever their data."""
    renamed = find(name).row(SETTINGS, replace(FACTS, name="another"))
    assert renamed == find(name).row(SETTINGS, FACTS)


@every_row
def test_batches_respect_the_caps_of_the_row(name: str) -> None:
    policy = row(name)
    index = data().index
    cap = cap_of(policy)
    largest = 0
    for batch in batches(policy):
        assert len(np.unique(batch.items)) == len(batch.items) == len(batch.groups)
        together = index.subjects[batch.items][:, None] == index.subjects[batch.items]
        assert (together == (batch.groups[:, None] == batch.groups)).all()
        assert sorted(set(batch.groups)) == list(range(batch.subjects))
        largest = max(largest, batch.largest_group)
    # The cap is kept, and it (or, without one, the largest subject) is come near: the test would see a missing one.
    assert largest <= (cap or max(COUNTS))
    assert largest == cap or (cap is None and largest > CAP)


@every_row
def test_the_expected_batch_is_what_the_divisor_takes_it_for(name: str) -> None:
    """The divisor is about the number of contributions, so that a learning rate means the same for every row."""
    policy = row(name)
    if policy.clip.per is ClipPer.BATCH:
        assert policy.divisor.value == 1
        return
    per_subject = policy.clip.pool is Pool.MEAN
    contributions = [batch.subjects if per_subject else len(batch.items) for batch in batches(policy, 1000)]
    # A group cap lets fewer items in than the public divisor counts, and HiGradAvgDP knows typical sizes only.
    assert 0.5 < np.mean(contributions) / policy.divisor.value < 1.2


@every_row
def test_noise_and_divisor_are_the_same_for_every_batch(name: str) -> None:
    policy = row(name)
    drawn = [*batches(policy, 50), EMPTY]
    assert len({len(batch.items) for batch in drawn}) > 3
    assert len({policy.noise_multiplier_for(batch) for batch in drawn}) == 1
    assert len({policy.divisor.divisor_for(batch) for batch in drawn}) == 1
    assert policy.noise_multiplier_for(EMPTY) == noise_of(name)


@dataclass(frozen=True)
class Nobody:
    """A sampler whose batches are empty."""

    def draw(self, index: SubjectIndex, generator: np.random.Generator) -> Batch:
        return EMPTY


@dataclass(frozen=True)
class Ramp:
    """Noise that is known: std times 1, 2, 3, …"""

    name: str = "ramp"
    identity: str = "ramp"
    repeats: bool = True

    def stream(self, round: int, silo: str) -> "Ramp":
        return self

    def coins(self, round: int, silo: str) -> np.random.Generator:
        return np.random.default_rng(0)

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        total.add_(multiplier * clip_norm * torch.arange(1, len(total) + 1, dtype=total.dtype))


@every_row
def test_an_empty_batch_still_adds_noise(name: str) -> None:
    policy = row(name)
    model = build("logistic", 3, 2, seed=0).double()
    trainer = Trainer(
        clipped_sum=partial(vmap_sum.clipped_sum, model, cross_entropy),
        noise=Ramp(),
        learning_rate=0.5,
    )
    start = flatten(model)
    moved = trainer.train(Silo(FACTS, data()), replace(policy, sampling=Nobody()), start, round=0, steps=1)
    std = noise_of(name) * CLIP_NORM
    expected = start - 0.5 * std * torch.arange(1, len(start) + 1, dtype=start.dtype) / policy.divisor.value
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-12)


def plan(name: str, bound: int | None = 6) -> Plan:
    facts = replace(FACTS, items_per_subject=bound)
    return make_plan(
        name,
        SETTINGS,
        Federation(silos=(facts,)),
        Horizon(silos=(facts.name,), rounds=2, steps=3),
        Goal(epsilon=None, delta=1e-5, noise_multiplier=SIGMA, accountant=Unpriced()),
    )


@every_row
def test_a_row_is_proved_for_a_subject_or_says_why_not(name: str) -> None:
    guarantee = plan(name).guarantee(Unit.SUBJECT)
    if row(name).clip.per is ClipPer.NONE:
        assert guarantee.standing is Standing.NONE
        assert guarantee.epsilon == math.inf
        assert "not clipped" in guarantee.because
        assert guarantee.event is None
    else:
        assert guarantee.standing is Standing.PROVED
        assert guarantee.event is not None
        assert guarantee.event != NoOpDpEvent()
        assert not obstacles(row(name), Unit.SUBJECT)


@every_row
def test_without_a_bound_on_a_subjects_items_only_subject_sampling_is_proved(name: str) -> None:
    guarantee = plan(name, bound=None).guarantee(Unit.SUBJECT)
    proved = isinstance(row(name).sampling, PoissonSubjects)
    assert guarantee.standing is (Standing.PROVED if proved else Standing.NONE)
    assert proved or guarantee.because


@every_row
def test_only_a_clip_of_the_whole_batch_protects_a_silo(name: str) -> None:
    standing = plan(name).guarantee(Unit.SILO).standing
    assert standing is (Standing.PROVED if row(name).clip.per is ClipPer.BATCH else Standing.NONE)


@pytest.mark.parametrize("unit", [Unit.ITEM, Unit.SUBJECT])
@pytest.mark.parametrize("name", [name for name in CATALOG if noise_of(name)])
def test_a_rows_event_depends_on_its_structure_and_not_on_its_name(name: str, unit: Unit) -> None:
    renamed = replace(row(name), name="another")
    assert step_event(renamed, FACTS, unit) == step_event(row(name), FACTS, unit)


@every_row
def test_settings_name_a_rate_or_an_expected_batch(name: str) -> None:
    by_rate = find(name).row(SETTINGS, FACTS)
    things = FACTS.subjects if isinstance(by_rate.sampling, PoissonSubjects) else FACTS.items
    by_size = find(name).row(replace(SETTINGS, rate=None, batch_size=3), FACTS)
    assert by_size.sampling.rate == pytest.approx(3 / things)
    whole = find(name).row(replace(SETTINGS, rate=None, batch_size=1000), FACTS)
    assert whole.sampling.rate == 1


OTHERWISE = {
    "group_cap": CAP + 1,
    "items_per_step": CAP + 1,
    "by_span": True,
    "pool": "sum",
    "local_steps": 5,
    "local_rate": 0.3,
}
"""Optional settings, each with another value."""


@every_row
@pytest.mark.parametrize("setting", OTHERWISE)
def test_a_row_reads_the_optional_settings_that_its_entry_names_and_no_others(name: str, setting: str) -> None:
    facts = replace(FACTS, knows_spans=True)
    other = replace(SETTINGS, **{setting: OTHERWISE[setting]})
    assert (find(name).row(SETTINGS, facts) != find(name).row(other, facts)) == (setting in find(name).reads)


def test_local_group_dp_needs_its_cap() -> None:
    with pytest.raises(SpecError, match="group_cap"):
        find("local_group_dp").row(PolicySettings(rate=0.1), FACTS)
