"""Nobody moves a sum by more than the accountant is told, and somebody can move it by as much.

Each test compares the sum before noise for a batch with the one for its neighbour: the batch that is drawn, by the
same random choices, from data without one subject or one item. What is declared is read off the priced event itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

import vmap_sum
from effort import examples
from policy_rows import cap_of, private_policies
from wholegrain.clipping.clipping import Clip, ClipPer, Pool, pool_gradients
from wholegrain.clipping.devices import USUAL
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.parted_sum import PartedSum
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.data.sampling import Batch, FixedItems, PoissonItems
from wholegrain.data.subjects import SubjectData, SubjectIndex
from wholegrain.models.model_catalog import build
from wholegrain.policies.guarantees import federation_event, obstacles, step_event
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.policy import Policy, PublicDivisor, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.trust import SecureSum
from wholegrain.silo.training import Silo, Trainer

SUMMED = "subject_dp, pool = sum"
PRIVATE = [*private_policies(), SUMMED]
CAP = 2
SIZE = 3
# Rounding only: rows are float64 and C is at least 1e-3.
SLACK = 1 + 1e-9


def row_of(name: str, facts: SiloFacts, clip_norm: float = 1.0, rate: float = 0.6) -> Policy:
    pool = Pool.SUM if name == SUMMED else Pool.MEAN
    settings = PolicySettings(rate=rate, clip_norm=clip_norm, group_cap=CAP, items_per_step=CAP, pool=pool)
    return CATALOG["subject_dp" if name == SUMMED else name].row(settings, facts).with_noise(1.0)


def facts_of(counts: list[int], *, drops_surplus: bool = False) -> SiloFacts:
    return SiloFacts(
        name="silo",
        items=sum(counts),
        subjects=len(counts),
        items_per_subject=max(counts),
        drops_surplus=drops_surplus,
    )


def declared(policy: Policy, facts: SiloFacts, unit: Unit) -> float:
    """The largest move, in units of C, that the priced event allows for."""
    return largest_move(step_event(policy, facts, unit))


def largest_move(event: DpEvent) -> float:
    if isinstance(event, MixtureOfGaussiansDpEvent):
        return max(event.sensitivities) / event.standard_deviation
    return 1 / getattr(event, "event", event).noise_multiplier


@dataclass(frozen=True)
class Scene:
    """Subjects with items, one gradient row for each item, and a batch."""

    counts: list[int]
    rows: Tensor  # [item, parameter]
    index: SubjectIndex
    seed: int

    def draw(self, sampling) -> Batch:
        return sampling.draw(self.index, np.random.default_rng(self.seed))

    def total(self, items: NDArray[np.int64], clip: Clip) -> Tensor:
        """The sum before noise of these items."""
        groups = np.unique(self.index.subjects[items], return_inverse=True)[1]
        return pool_gradients(self.rows[torch.from_numpy(items)], torch.from_numpy(groups), clip).total

    def moved(self, items: NDArray[np.int64], neighbour: NDArray[np.int64], clip: Clip) -> float:
        """How far apart, in units of C, the two batches' sums are."""
        return float((self.total(items, clip) - self.total(neighbour, clip)).norm()) / clip.norm


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Up to six subjects; gradients from 1e-12 to 1e12 long, in like or unlike directions, some not finite."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    seed = draw(st.integers(0, 2**32 - 1))
    draws = np.random.default_rng(seed)
    subjects = draws.permutation(np.repeat(np.arange(len(counts)), counts))
    directions = draws.normal(size=(len(subjects), SIZE))
    if draw(st.booleans()):  # along one line: subjects that agree, or point apart
        directions = draws.choice([-1.0, 1.0], size=(len(subjects), 1)) * directions[:1]
    rows = directions * 10.0 ** draws.uniform(-12, 12, size=(len(subjects), 1))
    if draw(st.booleans()):
        rows[draws.random(len(rows)) < 0.2] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return Scene(counts, torch.from_numpy(rows), SubjectIndex.of(subjects), seed)


clip_norms = st.sampled_from([1e-3, 1.0, 50.0])


@pytest.mark.parametrize("name", PRIVATE)
@examples(100)
@given(scene=scenes(), clip_norm=clip_norms)
def test_a_subject_moves_the_sum_by_no_more_than_declared(name: str, scene: Scene, clip_norm: float) -> None:
    facts = facts_of(scene.counts)
    policy = row_of(name, facts, clip_norm)
    batch = scene.draw(policy.sampling)
    most = declared(policy, facts, Unit.SUBJECT)
    drawn = drawn_before_the_cap(scene, policy)
    for subject in range(len(scene.counts)):
        mine = scene.index.subjects[batch.items] == subject
        moved = scene.moved(batch.items, batch.items[~mine], policy.clip)
        assert moved <= most * SLACK
        if not mine.any():
            assert moved == 0
        if (policy.clip.per, policy.clip.pool) == (ClipPer.ITEM, Pool.SUM):
            j = int((scene.index.subjects[drawn] == subject).sum())
            assert moved <= min(j, cap_of(policy) or j) * SLACK


def drawn_before_the_cap(scene: Scene, policy: Policy) -> NDArray[np.int64]:
    """The items that the same random choices draw where no cap holds any back."""
    sampling = policy.sampling
    if isinstance(sampling, PoissonItems):
        return scene.draw(replace(sampling, most_per_subject=None)).items
    return scene.draw(replace(sampling, items=None)).items


def subject_bound(policy: Policy, bound: int) -> float:
    """What a subject with so many items may move, in clip norms, by what is clipped and how it is pooled."""
    if policy.clip.per is ClipPer.BATCH:
        return 2.0
    items_summed = (policy.clip.per, policy.clip.pool) == (ClipPer.ITEM, Pool.SUM)
    return float(cap_of(policy) or bound) if items_summed else 1.0


@pytest.mark.parametrize("name", PRIVATE)
def test_the_declared_bound_for_a_subject_is_the_papers_or_the_proved_one_and_is_attained(name: str) -> None:
    """Five long gradients of one subject, all one way, against another subject's that points the other way."""
    scene = line_scene([5, 1], [9.0] * 5 + [-2.0])
    facts = facts_of(scene.counts)
    policy = row_of(name, facts)
    batch = everything(scene, policy)
    others = batch[scene.index.subjects[batch] != 0]
    bound = declared(policy, facts, Unit.SUBJECT)
    assert bound == pytest.approx(subject_bound(policy, bound=5))
    assert scene.moved(batch, others, policy.clip) == pytest.approx(bound)


def line_scene(counts: list[int], lengths: list[float]) -> Scene:
    """Items in the order of their subjects, with gradients of these lengths along one line."""
    rows = torch.zeros(len(lengths), SIZE, dtype=torch.float64)
    rows[:, 0] = torch.tensor(lengths, dtype=torch.float64)
    return Scene(counts, rows, SubjectIndex.of(np.repeat(np.arange(len(counts)), counts)), seed=0)


def everything(scene: Scene, policy: Policy) -> NDArray[np.int64]:
    """The batch in which all were drawn that the row's cap allows."""
    sampling = replace(policy.sampling, rate=1.0)
    return scene.draw(sampling).items


def one_round(policy: Policy, facts: SiloFacts, trust: SecureSum | None, by_span: bool, span: int) -> list[DpEvent]:
    """What one step reveals about each unit for which something is proved."""
    named = replace(facts, name="a", knows_spans=True), replace(facts, name="b", knows_spans=True)
    rows = [(replace(policy, trust=trust, by_span=by_span), silo) for silo in named]
    releases = Horizon(silos=("a", "b"), rounds=1, steps=1).releases()
    units = [unit for unit in Unit if not obstacles(rows[0][0], unit)]
    assert Unit.SUBJECT in units
    return [federation_event(rows, releases, unit, span) for unit in units]


@pytest.mark.parametrize("by_span", [False, True])
@pytest.mark.parametrize("trust", [None, SecureSum.over(2, None, 1)], ids=["local", "secure sum"])
@pytest.mark.parametrize("span", [1, 2])
def test_gradients_added_up_cost_what_their_mean_costs(trust: SecureSum | None, by_span: bool, span: int) -> None:
    """A subject clipped as one moves a sum by C, however its gradients were pooled before; an item by 2C."""
    facts = facts_of([4, 1, 3])
    mean, summed = (row_of(name, facts, rate=1.0) for name in ("subject_dp", SUMMED))
    assert (mean.clip.pool, summed.clip.pool) == (Pool.MEAN, Pool.SUM)
    assert one_round(mean, facts, trust, by_span, span) == one_round(summed, facts, trust, by_span, span)
    assert declared(summed, facts, Unit.ITEM) == pytest.approx(2.0)


def test_fedavg_has_no_bound() -> None:
    facts = facts_of([1, 1])
    policy = row_of("fedavg", facts)
    for length in (1e3, 1e6, 1e9):
        scene = line_scene([1, 1], [length, 1.0])
        assert scene.moved(np.array([0, 1]), np.array([1]), policy.clip) == pytest.approx(length)
    assert obstacles(policy, Unit.SUBJECT)


# One item more or less.


def neighbours_without_an_item(
    scene: Scene, policy: Policy, facts: SiloFacts
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of a batch and each batch that the same choices may draw from data without one of its items.

    An item that leaves lets in another of its subject that was drawn as well and held back by the cap. Where surplus
    items were dropped for K, any of the subject's dropped items may take its place instead; here, one that was not
    drawn stands for it.
    """
    batch, drawn = scene.draw(policy.sampling).items, drawn_before_the_cap(scene, policy)
    for item in batch:
        mine = scene.index.subjects == scene.index.subjects[item]
        rest = batch[batch != item]
        waiting = np.setdiff1d(drawn[mine[drawn]], batch)
        if facts.drops_surplus:
            waiting = np.setdiff1d(np.flatnonzero(mine), batch)
        if not len(waiting) or facts.drops_surplus:
            yield batch, rest
        for other in waiting:
            yield batch, np.sort(np.append(rest, other))


@pytest.mark.parametrize("drops_surplus", [False, True])
@pytest.mark.parametrize("name", PRIVATE)
@examples(60)
@given(scene=scenes(), clip_norm=clip_norms)
def test_an_item_moves_the_sum_by_no_more_than_declared(
    name: str, drops_surplus: bool, scene: Scene, clip_norm: float
) -> None:
    facts = facts_of(scene.counts, drops_surplus=drops_surplus)
    policy = row_of(name, facts, clip_norm)
    most = declared(policy, facts, Unit.ITEM)
    for batch, neighbour in neighbours_without_an_item(scene, policy, facts):
        assert scene.moved(batch, neighbour, policy.clip) <= most * SLACK


@dataclass(frozen=True)
class Extreme:
    """A batch and its neighbour without one item, in which the sum moves as far as it can."""

    policy: str
    counts: list[int]
    lengths: list[float]
    batch: list[int]
    neighbour: list[int]
    bound: float
    drops_surplus: bool = False
    why: str = ""


EXTREMES = [
    Extreme("local_item_dp", [2], [9.0, 9.0], [0, 1], [1], 1.0, why="a clipped gradient leaves"),
    Extreme("local_item_dp", [2], [9.0, -9.0], [0], [1], 2.0, drops_surplus=True, why="a dropped item enters"),
    Extreme("local_group_dp", [2], [9.0, 9.0], [0, 1], [1], 1.0, why="a cap that cannot bind"),
    Extreme("local_group_dp", [3], [9.0, 9.0, -9.0], [0, 1], [1, 2], 2.0, why="the cap lets another in"),
    Extreme("higradavg_dp", [1], [9.0], [0], [], 1.0, why="alone in the batch"),
    Extreme("higradavg_dp", [2], [9.0, -9.0], [0, 1], [1], 1.0, why="a mean of two turns to the other"),
    Extreme("higradavg_dp", [2], [9.0, -9.0], [0], [1], 2.0, drops_surplus=True, why="a dropped item enters"),
    Extreme("user_ldp", [1, 1], [9.0, -3.0], [0, 1], [1], 2.0, why="the clipped mean turns round"),
    Extreme("subject_dp", [2], [9.0, -3.0], [0, 1], [1], 2.0, why="the subject's clipped mean turns round"),
    Extreme("subject_dp", [1, 1], [9.0, 9.0], [0, 1], [1], 1.0, why="nobody has a second item"),
    Extreme("subject_dp", [3], [9.0, 9.0, -99.0], [0, 1], [1, 2], 2.0, why="the cap lets another in"),
    Extreme(SUMMED, [2], [9.0, -3.0], [0, 1], [1], 2.0, why="the subject's clipped sum turns round"),
    Extreme(SUMMED, [1, 1], [9.0, 9.0], [0, 1], [1], 1.0, why="nobody has a second item"),
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=[f"{e.policy}: {e.why}" for e in EXTREMES])
def test_the_declared_bound_for_an_item_is_attained(extreme: Extreme) -> None:
    scene = line_scene(extreme.counts, extreme.lengths)
    facts = facts_of(extreme.counts, drops_surplus=extreme.drops_surplus)
    policy = row_of(extreme.policy, facts)
    moved = scene.moved(np.array(extreme.batch), np.array(extreme.neighbour, np.int64), policy.clip)
    assert declared(policy, facts, Unit.ITEM) == pytest.approx(extreme.bound)
    assert moved == pytest.approx(extreme.bound)


def test_two_silos_data_are_at_most_2c_apart_where_the_batch_is_clipped() -> None:
    facts = facts_of([1, 1])
    policy = row_of("user_ldp", facts)
    scene = line_scene([1, 1], [9.0, -9.0])
    assert declared(policy, facts, Unit.SILO) == pytest.approx(2.0)
    assert scene.moved(np.array([0]), np.array([1]), policy.clip) == pytest.approx(2.0)


# Batches of a fixed size: as many others enter as the subject's items leave.

FIXED = [
    Clip(ClipPer.ITEM, Pool.SUM, 1.0),
    Clip(ClipPer.ITEM, Pool.MEAN, 1.0),
    Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0),
    Clip(ClipPer.SUBJECT, Pool.SUM, 1.0),
    Clip(ClipPer.BATCH, Pool.MEAN, 1.0),
]


@pytest.mark.parametrize("clip", FIXED, ids=lambda clip: f"{clip.per}-{clip.pool}")
@examples(100)
@given(scene=scenes(), chance=st.integers(0, 100))
def test_a_subject_moves_a_sum_of_fixed_size_by_no_more_than_declared(clip: Clip, scene: Scene, chance: int) -> None:
    facts, draws = facts_of(scene.counts), np.random.default_rng(chance)
    size = max(1, facts.items - max(scene.counts))
    policy = Policy(name="fixed", sampling=FixedItems(size), clip=clip, divisor=PublicDivisor(1.0))
    most = declared(policy.with_noise(1.0), facts, Unit.SUBJECT)
    batch = scene.draw(policy.sampling).items
    for subject, count in enumerate(scene.counts):
        if facts.items - count < size:
            continue  # too few are left to draw a batch from
        mine = scene.index.subjects[batch] == subject
        others = np.flatnonzero(scene.index.subjects != subject)
        enter = draws.choice(np.setdiff1d(others, batch), int(mine.sum()), replace=False)
        assert scene.moved(batch, np.append(batch[~mine], enter), clip) <= most * SLACK


@pytest.mark.parametrize("clip", FIXED, ids=lambda clip: f"{clip.per}-{clip.pool}")
@examples(100)
@given(scene=scenes())
def test_an_item_moves_a_sum_of_fixed_size_by_no_more_than_declared(clip: Clip, scene: Scene) -> None:
    facts = facts_of(scene.counts)
    policy = Policy(
        name="fixed", sampling=FixedItems(max(1, facts.items - 2)), clip=clip, divisor=PublicDivisor(1.0)
    ).with_noise(1.0)
    batch = scene.draw(policy.sampling).items
    for item in batch:
        for enters in np.setdiff1d(np.arange(facts.items), batch):
            moved = scene.moved(batch, np.append(batch[batch != item], enters), clip)
            assert moved <= declared(policy, facts, Unit.ITEM) * SLACK


@pytest.mark.parametrize(
    ("clip", "lengths", "bound"),
    [
        (FIXED[0], [9.0, 9.0, -9.0, -9.0], 2.0),
        (FIXED[1], [9.0, -9.0, 9.0, -9.0], 2.0),
        (FIXED[2], [9.0, -3.0, 3.0, -9.0], 4.0),
        (FIXED[3], [9.0, -3.0, 3.0, -9.0], 4.0),
        (FIXED[4], [9.0, -1.0, 0.0, -9.0], 2.0),
    ],
    ids=["item-sum", "item-mean", "subject-mean", "subject-sum", "batch-mean"],
)
def test_the_declared_bound_for_an_item_in_a_fixed_size_is_attained(
    clip: Clip, lengths: list[float], bound: float
) -> None:
    """Of two subjects with two items each, the first loses an item and the second's other one enters."""
    scene, facts = line_scene([2, 2], lengths), facts_of([2, 2])
    policy = Policy(name="fixed", sampling=FixedItems(3), clip=clip, divisor=PublicDivisor(1.0)).with_noise(1.0)
    assert declared(policy, facts, Unit.ITEM) == pytest.approx(bound)
    assert scene.moved(np.array([0, 1, 2]), np.array([1, 2, 3]), clip) == pytest.approx(bound)


# The real path: a silo's own training step, on two neighbouring silos.


@dataclass(frozen=True)
class Scripted:
    """A sampler that draws what it is told."""

    items: tuple[int, ...]

    def draw(self, index: SubjectIndex, generator: np.random.Generator) -> Batch:
        items = np.array(self.items, np.int64)
        return Batch(items, np.unique(index.subjects[items], return_inverse=True)[1].astype(np.int64))


@dataclass(frozen=True)
class Silent:
    """A noise source without noise."""

    name: str = "none"
    identity: str = "none"
    repeats: bool = True

    def stream(self, round: int, silo: str) -> "Silent":
        return self

    def coins(self, round: int, silo: str) -> np.random.Generator:
        return np.random.default_rng(0)

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        pass


GRADIENTS: dict[str, Callable[..., ClippedSum]] = {
    "book-keeping": BookKeeping,
    "vectorised": partial(partial, vmap_sum.clipped_sum),
    "unit by unit": partial(UnitPasses, compute=USUAL),
    "in three parts": lambda model, loss: PartedSum(BookKeeping(model, loss), 3),
}


def train_one_step(
    data: SubjectData, policy: Policy, items: NDArray[np.int64], rate: float, gradients: Callable[..., ClippedSum]
) -> Tensor:
    model = build("mlp", 4, 3, seed=1, options={"hidden": (5,)}).double()
    trainer = Trainer(
        clipped_sum=gradients(model, cross_entropy),
        noise=Silent(),
        learning_rate=rate,
    )
    facts = SiloFacts(name="silo", items=data.items, subjects=data.subject_count)
    scripted = replace(policy, sampling=Scripted(tuple(items.tolist())))
    return trainer.train(Silo(facts, data), scripted, flatten(model), round=0, steps=1)


@pytest.mark.parametrize("gradients", GRADIENTS.values(), ids=GRADIENTS.keys())
@pytest.mark.parametrize("clip_norm", [0.05, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PRIVATE)
def test_a_subject_moves_a_silos_released_step_by_no_more_than_declared(
    name: str, clip_norm: float, gradients: Callable[..., ClippedSum]
) -> None:
    if name == "user_ldp" and gradients is GRADIENTS["in three parts"]:
        pytest.skip("a batch that is clipped as a whole has no parts")
    draws = np.random.default_rng(3)
    counts, rate = [4, 1, 3, 2, 1], 0.3
    subjects = np.repeat(np.arange(5), counts)
    inputs = draws.normal(size=(11, 4)) * 10.0 ** draws.uniform(-2, 3, size=(11, 1))
    data = SubjectData(inputs, draws.integers(3, size=11), subjects)
    facts = facts_of(counts)
    policy = row_of(name, facts, clip_norm, rate=0.9)
    most = declared(policy, facts, Unit.SUBJECT) * clip_norm
    batch = policy.sampling.draw(data.index, draws).items
    whole = train_one_step(data, policy, batch, rate, gradients)
    moves = []
    for subject in range(5):
        left = np.flatnonzero(subjects != subject)
        neighbour = np.searchsorted(left, batch[subjects[batch] != subject])
        moved = whole - train_one_step(data.take(left), policy, neighbour, rate, gradients)
        moves.append(float(moved.norm()) * policy.divisor.value / rate)
    assert max(moves) <= most * SLACK
    assert max(moves) > 0.1 * clip_norm
