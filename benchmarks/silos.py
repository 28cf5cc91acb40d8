"""Synthetic federations to time rounds on: random items, subjects of 1 to 8 items, real plans.

What is timed of wholegrain is what a run uses: `make_plan`, `Trainer`, `InProcess`, `Guard` and `rounds`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from settings import CLIP_NORM, LEARNING_RATE
from wholegrain._random import Purpose, generator
from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.devices import USUAL, Compute
from wholegrain.data.sampling import Batch, Source
from wholegrain.data.subjects import SubjectData
from wholegrain.models.model_catalog import build
from wholegrain.models.model_inputs import values
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Silo, Trainer
from workloads import GROUP_SIZES, SEED

EPSILON, DELTA = 8.0, 1e-5


@dataclass(frozen=True)
class Setting:
    """A model, its expected batch in items, and the steps of a round."""

    title: str
    model: str
    features: int
    classes: int
    batch: int
    steps: int

    def build(self) -> nn.Module:
        """The model with its initial parameters."""
        return build(self.model, self.features, self.classes, SEED)


SETTINGS: Mapping[str, Setting] = {
    "cnn": Setting("LEAF CNN", "leaf_cnn", 784, 62, batch=128, steps=2),
    "mlp": Setting("MLP 16-64-2", "mlp", 16, 2, batch=256, steps=20),
}


@dataclass(frozen=True, eq=False)
class Ready:
    """A batch as a step needs it: drawn, gathered, turned into values."""

    batch: Batch
    policy: Policy
    inputs: Tensor
    targets: Tensor
    groups: Tensor


@dataclass(frozen=True, eq=False)
class Federated:
    """Silos with a plan and one trainer for all of them."""

    setting: Setting
    silos: Mapping[str, Silo]
    plan: Plan
    compute: Compute = USUAL

    @cached_property
    def model(self) -> nn.Module:
        """The model that all silos train."""
        return self.setting.build()

    @cached_property
    def trainer(self) -> Trainer:
        """The trainer that a run would make."""
        return Trainer(
            clipped_sum=clipped_sums(self.model, cross_entropy, self.compute),
            noise=SeededNoise(SEED, in_c=self.compute.compiled),
            learning_rate=LEARNING_RATE,
        )

    def ready(self, round: int) -> Iterator[Ready]:
        """The very batches that `Trainer` draws in this round, in its order."""
        for name in self.plan.horizon.cohort(round):
            draws = self.trainer.noise.coins(round, name)
            yield from ready(self.silos[name], self.plan.policy_for(name), draws, self.plan.horizon.steps)


def ready(silo: Silo, policy: Policy, draws: Source, steps: int) -> Iterator[Ready]:
    """A silo's batches of one round."""
    for _ in range(steps):
        batch = policy.sampling.draw(silo.data.index, draws)
        inputs, targets = values(silo.inputs[batch.items]), silo.targets[batch.items]
        yield Ready(batch, policy, inputs, targets, silo.targets.new_tensor(batch.groups))


def federate(
    setting: Setting, silos: int, rounds: int, *, policy: str = "local_item_dp", subjects: int = 512
) -> Federated:
    """A federation of like silos, each with this many subjects."""
    members = {name: make_silo(setting, name, subjects) for name in (f"silo-{i:02d}" for i in range(silos))}
    horizon = Horizon(silos=tuple(members), rounds=rounds, steps=setting.steps)
    federation = Federation(silos=tuple(silo.facts for silo in members.values()))
    # What a subject adds to a batch is 4 items on average: the same expected items under every policy.
    expected = setting.batch // 4 if policy == "subject_dp" else setting.batch
    settings = PolicySettings(batch_size=expected, clip_norm=CLIP_NORM)
    goal = Goal(epsilon=EPSILON, delta=DELTA)
    return Federated(setting, members, make_plan(policy, settings, federation, horizon, goal))


def make_silo(setting: Setting, name: str, subjects: int) -> Silo:
    """Random items of `subjects` subjects whose sizes follow the cycle."""
    draws = generator(SEED, Purpose.SYNTHETIC, name)
    sizes = np.resize(np.array(GROUP_SIZES), subjects)
    codes = np.repeat(np.arange(subjects), sizes)
    inputs = _inputs(setting, len(codes), draws)
    data = SubjectData(inputs, draws.integers(setting.classes, size=len(codes)), codes)
    most = max(GROUP_SIZES)
    facts = SiloFacts(name=name, items=data.items, subjects=subjects, items_per_subject=most, drops_surplus=False)
    return Silo(facts, data)


def _inputs(setting: Setting, items: int, draws: np.random.Generator) -> NDArray[Any]:
    """Pixels for the CNN, values for the MLP."""
    if setting.model == "leaf_cnn":
        return draws.integers(256, size=(items, setting.features), dtype=np.uint8)
    return draws.random((items, setting.features), dtype=np.float32)
