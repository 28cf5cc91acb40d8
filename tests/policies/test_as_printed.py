"""The paper's algorithms against a transcription of their pseudocode [Marathe, Algorithms 1–3] in plain loops.

The transcription shares nothing with the package but the random choices: it computes the gradients of a multinomial
logistic regression by hand, item by item, in numpy. Noise is scripted, so that what it was scaled by can be seen; and
the moments accountant's search is replaced by a formula, so that what reaches it (ε, δ, q and lots) can be told from
what comes out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vmap_sum
from accounts import equal_terms, open_guard
from wholegrain._random import Purpose, generator
from wholegrain.clipping.parameters import flatten
from wholegrain.data.subjects import SubjectData
from wholegrain.engines.inprocess import InProcess
from wholegrain.errors import SpecError
from wholegrain.federation.aggregation import Averaging, weights
from wholegrain.federation.rounds import Aggregation, State, rounds
from wholegrain.models.model_catalog import build
from wholegrain.policies import as_printed
from wholegrain.policies.as_printed import PRINTED, Composition, make_printed_plan
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Plan
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.accountants import Accountant, RdpAccountant
from wholegrain.privacy.definitions import Budget, Standing
from wholegrain.silo.training import Silo, Trainer

Vector = NDArray[np.float64]

FEATURES, CLASSES = 4, 3
BATCH, STEPS, ROUNDS, CLIP, RATE, SEED = 8, 3, 4, 0.7, 0.5, 11
BUDGET = Budget(4.0, 1e-5)
# Largest subjects of 4, 3 and 2 items: each silo calibrates with its own k.
SILOS: Mapping[str, list[int]] = {
    "east": [4, 4, 3, 2, 2, 1, 1, 1, 1, 1],
    "north": [3, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1],
    "south": [2] * 12 + [1] * 6,
}
PRIVATE = [name for name in PRINTED if name != "fedavg"]


def silo_data(name: str) -> SubjectData:
    draws = np.random.default_rng(sorted(SILOS).index(name))
    subjects = draws.permutation(np.repeat(np.arange(len(SILOS[name])), SILOS[name]))
    inputs = draws.normal(size=(len(subjects), FEATURES)) * draws.choice([0.1, 1.0, 5.0], size=(len(subjects), 1))
    return SubjectData(inputs, draws.integers(CLASSES, size=len(subjects)), subjects)


DATA = {name: silo_data(name) for name in SILOS}


# What the paper prints, with η·g written as in its server and local loops.


def gradient(theta: Vector, x: Vector, y: int) -> Vector:
    """∇L(θ, s) of one item: softmax regression with θ = (W, b)."""
    W, b = theta[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), theta[CLASSES * FEATURES :]
    scores = W @ x + b
    chances = np.exp(scores - scores.max())
    error = chances / chances.sum() - np.eye(CLASSES)[y]
    return np.concatenate([np.outer(error, x).ravel(), error])


def clip(g: Vector) -> Vector:
    return g / max(1.0, math.sqrt(sum(v * v for v in g)) / CLIP)


def batches(r: int, silo: str, steps: int) -> Iterator[list[int]]:
    """For each step a random sample of B data items from D_i, from the stream of this silo and round."""
    stream = generator(SEED, Purpose.SAMPLING, r, silo)
    for _ in range(steps):
        yield list(stream.choice(DATA[silo].items, BATCH, replace=False))


def subjects_of(batch: list[int], data: SubjectData) -> dict[int, list[int]]:
    """Items of each subject in the batch: S_a^B for a in subjects(B)."""
    groups: dict[int, list[int]] = {}
    for s in batch:
        groups.setdefault(int(data.subjects[s]), []).append(s)
    return groups


@dataclass(frozen=True)
class Step:
    """What a transcription sees in one step."""

    theta: Vector
    batch: list[int]
    data: SubjectData
    lots: int
    unit: Vector  # N(0, I), scripted

    def item_gradient(self, s: int) -> Vector:
        return gradient(self.theta, self.data.inputs[s], int(self.data.targets[s]))

    @property
    def sampling_fraction(self) -> float:
        return BATCH / self.data.items


def local_item_dp(step: Step) -> Vector:
    """DP-SGD in each silo [Marathe, Eq. 3]."""
    total = np.zeros_like(step.theta)
    for s in step.batch:
        total += clip(step.item_gradient(s))
    sigma = noise_for(BUDGET.epsilon, BUDGET.delta, step.sampling_fraction, step.lots)
    return (total + sigma * CLIP * step.unit) / BATCH


def local_group_dp(step: Step) -> Vector:
    """Algorithm 2."""
    total = np.zeros_like(step.theta)
    for s in step.batch:
        total += clip(step.item_gradient(s))
    Z = max(len(items) for items in subjects_of(step.batch, step.data).values())
    epsilon, delta = BUDGET.epsilon / Z, BUDGET.delta / (Z * math.exp((Z - 1) * BUDGET.epsilon / Z))
    sigma = noise_for(epsilon, delta, step.sampling_fraction, step.lots)
    return (total + sigma * CLIP * step.unit) / BATCH


def higradavg_dp(step: Step) -> Vector:
    """Algorithm 3."""
    groups = subjects_of(step.batch, step.data)
    total = np.zeros_like(step.theta)
    for items in groups.values():
        g_a = np.zeros_like(step.theta)
        for s in items:
            g_a += clip(step.item_gradient(s))
        total += g_a / len(items)
    k = max(int((step.data.subjects == a).sum()) for a in step.data.subjects)
    q = min(1.0, k * step.sampling_fraction)
    sigma = noise_for(BUDGET.epsilon, BUDGET.delta, q, step.lots)
    return (total + sigma * CLIP * step.unit) / len(groups)


def user_ldp(step: Step) -> Vector:
    """Algorithm 1."""
    g = np.zeros_like(step.theta)
    for s in step.batch:
        g += step.item_gradient(s) / BATCH
    sigma = noise_for(BUDGET.epsilon, BUDGET.delta, 1.0, step.lots)
    return clip(g) + sigma * CLIP * step.unit


ALGORITHMS: Mapping[str, Callable[[Step], Vector]] = {
    "local_item_dp": local_item_dp,
    "local_group_dp": local_group_dp,
    "higradavg_dp": higradavg_dp,
    "user_ldp": user_ldp,
}


def noise_for(epsilon: float, delta: float, q: float, lots: int) -> float:
    """A stand-in for the moments accountant's σ that no two settings share: c₂·q·√(lots·log(1/δ))/ε with c₂ = 1."""
    return q * math.sqrt(lots * math.log(1 / delta)) / epsilon


@pytest.fixture(autouse=True, scope="module")
def _formula_instead_of_search() -> Iterator[None]:
    def search(event_of: Callable[[float], DpEvent], budget: Budget, accountant: Accountant, tolerance: float) -> float:
        assert isinstance(accountant, RdpAccountant)
        repeated = event_of(1.0)
        q = getattr(repeated.event, "sampling_probability", 1.0)
        return noise_for(budget.epsilon, budget.delta, q, repeated.count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(as_printed, "calibrate_noise", search)
        yield


def local_training(
    name: str, silo: str, theta: Vector, r: int, lots: int, noise: "Scripted", steps: int = STEPS
) -> Vector:
    for t, batch in enumerate(batches(r, silo, steps)):
        theta = theta - RATE * ALGORITHMS[name](
            Step(theta, batch, DATA[silo], lots, noise.unit(len(theta), (r, silo, t)))
        )
    return theta


# The package's own path.


@dataclass
class Scripted:
    """Noise that the transcription can repeat; it remembers each scale that it was asked for."""

    size: float
    scales: dict[tuple[int, str, int], float] = field(default_factory=dict)
    name: str = "scripted"
    identity: str = "scripted"
    repeats: bool = True

    def unit(self, length: int, keys: tuple[int, str, int]) -> Vector:
        r, silo, t = keys
        return self.size * np.random.default_rng([r, sorted(SILOS).index(silo), t]).normal(size=length)

    def stream(self, round: int, silo: str) -> "ScriptedStream":
        assert (round, silo, 0) not in self.scales, "a stream asked for twice with the same keys"
        return ScriptedStream(self, round, silo)

    def coins(self, round: int, silo: str) -> np.random.Generator:
        return generator(SEED, Purpose.SAMPLING, round, silo)


@dataclass
class ScriptedStream:
    """The scripted noise of one silo in one round, step after step."""

    script: Scripted
    round: int
    silo: str
    step: int = 0

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        keys, std = (self.round, self.silo, self.step), multiplier * clip_norm
        self.script.scales[keys] = std
        total.add_(torch.from_numpy(self.script.unit(len(total), keys)), alpha=std)
        self.step += 1


@dataclass(frozen=True)
class Unpriced:
    """An accountant that answers at once; what the printed plans really cost is tested elsewhere."""

    name: str = "unpriced"
    version: str = "1"

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return 1.0


@cache
def plan_for(name: str, composition: Composition = Composition.FEWER_ROUNDS, cohort: int | None = None) -> Plan:
    facts = tuple(
        SiloFacts(name=silo, items=data.items, subjects=data.subject_count, items_per_subject=5)
        for silo, data in DATA.items()
    )
    return make_printed_plan(
        name,
        PolicySettings(batch_size=BATCH, clip_norm=CLIP),
        Federation(silos=facts),
        Horizon(silos=tuple(DATA), rounds=ROUNDS, steps=STEPS, cohort_size=cohort, seed=SEED),
        BUDGET,
        largest_subject={silo: data.largest_subject for silo, data in DATA.items()},
        composition=composition,
        accountant=Unpriced(),
    )


def silos_of(plan: Plan) -> dict[str, Silo]:
    return {facts.name: Silo(facts, DATA[facts.name]) for _, facts in plan.rows}


def model() -> nn.Module:
    return build("logistic", FEATURES, CLASSES, seed=2).double()


def trainer_with(noise: Scripted) -> Trainer:
    return Trainer(
        clipped_sum=partial(vmap_sum.clipped_sum, model(), cross_entropy),
        noise=noise,
        learning_rate=RATE,
    )


@pytest.mark.parametrize("size", [0.0, 1.0], ids=["silent", "noisy"])
@pytest.mark.parametrize("silo", SILOS)
@pytest.mark.parametrize("name", PRIVATE)
def test_local_training_follows_the_pseudocode(name: str, silo: str, size: float) -> None:
    plan, noise = plan_for(name), Scripted(size)
    trainer = trainer_with(noise)
    start, steps = flatten(model()), 12
    trained = trainer.train(silos_of(plan)[silo], plan.policy_for(silo), start, round=3, steps=steps)
    expected = local_training(name, silo, start.numpy(), 3, STEPS * ROUNDS, noise, steps)
    assert np.abs(trained.numpy() - start.numpy()).max() > 0.01
    np.testing.assert_allclose(trained.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cohort", [None, 2], ids=["all silos", "cohorts of two"])
@pytest.mark.parametrize("size", [0.0, 1.0], ids=["silent", "noisy"])
@pytest.mark.parametrize("name", PRIVATE)
def test_the_server_loop_follows_the_pseudocode(name: str, size: float, cohort: int | None) -> None:
    plan, noise = plan_for(name, cohort=cohort), Scripted(size)
    trainer = trainer_with(noise)
    engine = InProcess(silos_of(plan), plan, trainer)
    theta = flatten(model()).numpy()
    guard = open_guard(terms=equal_terms(DATA))
    plain = Aggregation(weights([facts for _, facts in plan.rows], Averaging.PLAIN))
    records = list(rounds(State(0, flatten(model())), plan.horizon, engine, guard, plain))
    assert records
    for r, record in enumerate(records):
        users = plan.horizon.cohort(r)
        thetas = [local_training(name, u, theta, r, STEPS * ROUNDS, noise) for u in users]
        theta = sum(thetas) / len(users)
        np.testing.assert_allclose(record.state.vector.numpy(), theta, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("silo", SILOS)
@pytest.mark.parametrize("name", PRIVATE)
def test_noise_has_the_printed_scale_in_every_batch(name: str, silo: str) -> None:
    plan, noise, lots, steps = plan_for(name), Scripted(0.0), STEPS * ROUNDS, 20
    trainer = trainer_with(noise)
    trainer.train(silos_of(plan)[silo], plan.policy_for(silo), flatten(model()), round=0, steps=steps)
    q, k = BATCH / DATA[silo].items, DATA[silo].largest_subject
    E, D = BUDGET.epsilon, BUDGET.delta
    seen = set()
    for t, batch in enumerate(batches(0, silo, steps)):
        Z = max(len(items) for items in subjects_of(batch, DATA[silo]).values())
        expected = {
            "local_item_dp": (E, D, q),
            "local_group_dp": (E / Z, D / (Z * math.exp((Z - 1) * E / Z)), q),
            "higradavg_dp": (E, D, min(1.0, k * q)),
            "user_ldp": (E, D, 1.0),
        }
        sigma = noise_for(*expected[name], lots)
        assert noise.scales[0, silo, t] == pytest.approx(sigma * CLIP, rel=1e-9)
        seen.add(noise.scales[0, silo, t])
    # Only LocalGroupDP's noise changes with the batch, which is the private fact that it gives away.
    assert (len(seen) > 1) == (name == "local_group_dp")


@pytest.mark.parametrize(
    ("name", "divisor"),
    [
        ("local_item_dp", lambda groups: BATCH),
        ("local_group_dp", lambda groups: BATCH),
        ("higradavg_dp", lambda groups: len(groups)),
        ("user_ldp", lambda groups: 1),
    ],
)
def test_a_step_divides_by_what_is_printed(name: str, divisor: Callable[[dict[int, list[int]]], int]) -> None:
    """From two runs that differ in their noise only, the divisor is the ratio of noise to the move it makes."""
    plan = plan_for(name)
    divisors = set()
    for r in range(8):
        noise, silent = Scripted(1.0), Scripted(0.0)
        noisy, quiet = (
            trainer_with(source).train(
                silos_of(plan)["east"], plan.policy_for("east"), flatten(model()), round=r, steps=1
            )
            for source in (noise, silent)
        )
        added = noise.scales[r, "east", 0] * noise.unit(len(noisy), (r, "east", 0))
        ratio = RATE * added / (quiet - noisy).numpy()
        (batch,) = batches(r, "east", steps=1)
        groups = subjects_of(batch, DATA["east"])
        np.testing.assert_allclose(ratio, divisor(groups), rtol=1e-6)
        divisors.add(divisor(groups))
    assert (len(divisors) > 1) == (name == "higradavg_dp")


def test_fedavg_is_the_mean_gradient_of_a_batch() -> None:
    plan, noise = plan_for("fedavg"), Scripted(1.0)
    trainer = trainer_with(noise)
    start = flatten(model())
    trained = trainer.train(silos_of(plan)["east"], plan.policy_for("east"), start, round=0, steps=1)
    data, g = DATA["east"], np.zeros(len(start))
    (batch,) = batches(0, "east", steps=1)
    for s in batch:
        g += gradient(start.numpy(), data.inputs[s], int(data.targets[s])) / BATCH
    np.testing.assert_allclose(trained.numpy(), start.numpy() - RATE * g, rtol=1e-6, atol=1e-6)
    assert set(noise.scales.values()) == {0.0}


@pytest.mark.parametrize("name", PRIVATE)
def test_the_first_way_of_horizontal_composition_trains_fewer_rounds_with_the_noise_of_all(name: str) -> None:
    rounds_left = plan_for(name).horizon.rounds
    assert rounds_left == (ROUNDS if name == "local_item_dp" else int(ROUNDS / math.sqrt(len(SILOS))))


@pytest.mark.parametrize("name", [name for name in PRIVATE if name != "local_item_dp"])
def test_the_second_way_of_horizontal_composition_adds_noise_for_s_times_the_lots(name: str) -> None:
    plan, noise, s = plan_for(name, Composition.MORE_LOTS), Scripted(1.0), len(SILOS)
    trainer = trainer_with(noise)
    start = flatten(model())
    trained = trainer.train(silos_of(plan)["east"], plan.policy_for("east"), start, round=0, steps=STEPS)
    expected = local_training(name, "east", start.numpy(), 0, STEPS * ROUNDS * s, noise)
    assert plan.horizon.rounds == ROUNDS
    np.testing.assert_allclose(trained.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_plan_as_printed_claims_and_never_proves_its_budget() -> None:
    for name in PRIVATE:
        claim = plan_for(name).claimed
        assert claim is not None
        assert claim.standing is Standing.CLAIMED
        assert (claim.epsilon, claim.delta, claim.event) == (BUDGET.epsilon, BUDGET.delta, None)
    assert plan_for("fedavg").claimed is None


def test_printed_plans_ask_for_a_batch_size() -> None:
    plan = plan_for("higradavg_dp")
    federation = Federation(silos=tuple(facts for _, facts in plan.rows))
    with pytest.raises(SpecError, match="batch_size"):
        make_printed_plan(
            "higradavg_dp", PolicySettings(rate=0.1), federation, plan.horizon, BUDGET, largest_subject={}
        )


def test_too_few_rounds_for_the_first_way_are_refused() -> None:
    plan = plan_for("higradavg_dp")
    federation = Federation(silos=tuple(facts for _, facts in plan.rows))
    with pytest.raises(SpecError, match="needs more rounds"):
        make_printed_plan(
            "higradavg_dp",
            PolicySettings(batch_size=BATCH),
            federation,
            replace(plan.horizon, rounds=1),
            BUDGET,
            largest_subject=dict.fromkeys(SILOS, 4),
        )
