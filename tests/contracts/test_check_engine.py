"""What every engine must keep to: carry the task to its silos, bring one update of each back, and nothing else."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent
from torch.nn.functional import cross_entropy

from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.data.subjects import SubjectData
from wholegrain.engines.inprocess import InProcess
from wholegrain.federation.messages import Engine, RoundTask, SiloUpdate
from wholegrain.models.model_catalog import build
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Silo, Trainer

NAMES = ("east", "north", "south", "west")
START = flatten(build("mlp", 3, 2, seed=0, options={"hidden": (4,)}))


class Unpriced:
    name, version = "unpriced", "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return 1.0

    def way(self, event: DpEvent) -> str:
        return self.name

    def as_filter(self, limit: float | None) -> "Unpriced":
        return self


def silos() -> dict[str, Silo]:
    """Silos of different sizes, so that each has a row of its own."""
    made = {}
    for number, name in enumerate(NAMES):
        draws, size = np.random.default_rng(number), 20 + 10 * number
        inputs = draws.normal(size=(size, 3)).astype(np.float32)
        data = SubjectData(inputs, draws.integers(2, size=size), draws.integers(9, size=size))
        made[name] = Silo(SiloFacts(name=name, items=size, subjects=data.subject_count, items_per_subject=20), data)
    return made


def plan() -> Plan:
    return make_plan(
        "subject_dp",
        PolicySettings(batch_size=4),
        Federation(silos=tuple(silo.facts for silo in silos().values())),
        Horizon(silos=NAMES, rounds=5, steps=3),
        Goal(epsilon=None, delta=1e-5, noise_multiplier=0.9, accountant=Unpriced()),
    )


def trainer() -> Trainer:
    return Trainer(
        # As in a run: one for all silos, with memory that it uses again and again.
        clipped_sum=BookKeeping(build("mlp", 3, 2, seed=0, options={"hidden": (4,)}), cross_entropy),
        noise=SeededNoise(1),
        learning_rate=0.3,
    )


ENGINES: dict[str, Callable[[], Engine]] = {"inprocess": lambda: InProcess(silos(), plan(), trainer())}

every_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES.keys())


def run(engine: Engine, *names: str, round: int = 2, steps: int = 3) -> dict[str, SiloUpdate]:
    updates = list(engine.run(RoundTask(round, names, steps, START)))
    assert sorted(update.silo for update in updates) == sorted(names)
    return {update.silo: update for update in updates}


@every_engine
@pytest.mark.parametrize("names", [NAMES, ("south",), ("west", "east"), ()], ids=["all", "one", "two", "none"])
def test_one_update_for_each_silo_of_the_task_and_for_no_other(make, names: tuple[str, ...]) -> None:
    for update in run(make(), *names).values():
        assert update.vector.shape == START.shape
        assert update.vector.isfinite().all()
        assert not torch.equal(update.vector, START)


@every_engine
def test_the_tasks_vector_is_left_as_it_was(make) -> None:
    before = START.clone()
    updates = run(make(), *NAMES)
    for update in updates.values():
        update.vector.zero_()
    assert torch.equal(START, before)


@every_engine
def test_updates_do_not_share_memory(make) -> None:
    updates = run(make(), *NAMES)
    kept = updates["north"].vector.clone()
    updates["east"].vector.zero_()
    assert torch.equal(updates["north"].vector, kept)


@every_engine
def test_the_same_task_gives_the_same_updates(make) -> None:
    engine = make()
    first, again, afresh = run(engine, *NAMES), run(engine, *NAMES), run(make(), *NAMES)
    for name in NAMES:
        assert torch.equal(first[name].vector, again[name].vector)
        assert torch.equal(first[name].vector, afresh[name].vector)


@every_engine
def test_a_silos_update_does_not_depend_on_who_else_trains(make) -> None:
    together, alone = run(make(), *NAMES), run(make(), "south")
    assert torch.equal(together["south"].vector, alone["south"].vector)


@every_engine
def test_an_update_is_the_silos_own_training_by_its_own_row(make) -> None:
    updates = run(make(), *NAMES, round=4, steps=2)
    for name, silo in silos().items():
        expected = trainer().train(silo, plan().policy_for(name), START, 4, 2)
        torch.testing.assert_close(updates[name].vector, expected, rtol=1e-5, atol=1e-6)


@every_engine
def test_round_and_steps_of_the_task_are_followed(make) -> None:
    results = [run(make(), "east", round=r, steps=t)["east"].vector for r, t in [(0, 3), (1, 3), (0, 4)]]
    assert len({tuple(result.tolist()) for result in results}) == 3
