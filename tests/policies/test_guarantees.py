"""Rows to events: the rows of the design page, the laws that each event must obey, and each price against the truth.

The truth is exact: for small data the law of one step is a mixture of Gaussians, found by going through every batch,
and δ at the promised ε is an integral.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from math import exp, pi, prod, sqrt

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from effort import examples
from wholegrain.clipping.clipping import Clip, ClipPer, Pool, pool_gradients
from wholegrain.data.sampling import FixedItems, PoissonItems, PoissonSubjects
from wholegrain.errors import AccountingError
from wholegrain.policies.guarantees import (
    federation_epsilon,
    federation_event,
    missing_bound,
    obstacles,
    step_event,
    worst_row,
)
from wholegrain.policies.policy import (
    FixedNoise,
    NoiseByLargestGroup,
    Policy,
    PublicDivisor,
    RealisedSubjects,
    SiloFacts,
)
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import compose, repeat

PRIVATE = ["local_item_dp", "local_group_dp", "higradavg_dp", "user_ldp", "subject_dp"]
PRICING = PldAccountant(grid=1e-2)  # any grid is an upper bound, and all comparisons here are on the same one
Q, SIGMA, K, Z = 0.2, 3.0, 4, 2


def facts(name="silo", items=1000, subjects=400, bound=K, drops=False):
    return SiloFacts(name=name, items=items, subjects=subjects, items_per_subject=bound, drops_surplus=drops)


def catalogued(name, silo, rate=Q, noise=SIGMA):
    settings = PolicySettings(rate=rate, group_cap=Z)
    return find(name).row(settings, silo).with_noise(noise)


def built(sampling, per, pool, noise=SIGMA):
    return Policy(
        name="built",
        sampling=sampling,
        clip=Clip(per, pool, 1.0),
        noise=FixedNoise(noise),
        divisor=PublicDivisor(1.0),
    )


def at_least_one_of(items, rate=Q):
    return 1 - (1 - rate) ** items


class TestRowsOfTheDesignPage:
    @pytest.mark.parametrize(
        ("name", "probability", "sigma"),
        [
            ("higradavg_dp", at_least_one_of(K), SIGMA),
            ("user_ldp", at_least_one_of(K), SIGMA / 2),
            ("subject_dp", Q, SIGMA),
        ],
    )
    def test_subject_that_is_pooled(self, name, probability, sigma):
        event = step_event(catalogued(name, facts()), facts(), Unit.SUBJECT)
        assert event.sampling_probability == pytest.approx(probability)
        assert event.event.noise_multiplier == pytest.approx(sigma)

    @pytest.mark.parametrize(("name", "cap"), [("local_item_dp", K), ("local_group_dp", Z)])
    def test_subject_whose_items_are_summed(self, name, cap):
        event = step_event(catalogued(name, facts()), facts(), Unit.SUBJECT)
        chances = stats.binom.pmf(np.arange(K + 1), K, Q)
        assert isinstance(event, MixtureOfGaussiansDpEvent)
        assert event.standard_deviation == SIGMA
        assert event.sensitivities == tuple(range(cap + 1))
        assert event.sampling_probs == pytest.approx([*chances[:cap], chances[cap:].sum()])

    @pytest.mark.parametrize(
        ("name", "sigma"),
        [
            ("local_item_dp", SIGMA),
            ("local_group_dp", SIGMA / 2),  # beyond the cap, one item's going lets another in
            ("higradavg_dp", SIGMA),
            ("user_ldp", SIGMA / 2),
        ],
    )
    def test_item_that_has_its_own_coin(self, name, sigma):
        event = step_event(catalogued(name, facts()), facts(), Unit.ITEM)
        assert event == PoissonSampledDpEvent(Q, GaussianDpEvent(sigma))

    @pytest.mark.parametrize("name", PRIVATE)
    def test_item_that_shares_its_coin_is_not_hidden_by_sampling(self, name):
        """Dropped surplus lets another item in at the same coin."""
        silo = facts(drops=True)
        assert step_event(catalogued(name, silo), silo, Unit.ITEM) == GaussianDpEvent(SIGMA / 2)

    @pytest.mark.parametrize("name", PRIVATE)
    def test_item_that_is_a_subject_is_priced_as_one(self, name):
        silo = facts(bound=1)
        policy = catalogued(name, silo)
        assert step_event(policy, silo, Unit.ITEM) == step_event(policy, silo, Unit.SUBJECT)

    def test_silo_is_protected_by_user_ldp_alone(self):
        assert step_event(catalogued("user_ldp", facts()), facts(), Unit.SILO) == GaussianDpEvent(SIGMA / 2)
        for name in set(PRIVATE) - {"user_ldp"}:
            with pytest.raises(AccountingError, match="only a clip of the whole batch"):
                step_event(catalogued(name, facts()), facts(), Unit.SILO)

    @pytest.mark.parametrize("unit", Unit)
    def test_fedavg_has_no_event(self, unit):
        policy = find("fedavg").row(PolicySettings(rate=Q), facts())
        with pytest.raises(AccountingError, match="not clipped"):
            step_event(policy, facts(), unit)

    @pytest.mark.parametrize("unit", [Unit.ITEM, Unit.SUBJECT])
    @pytest.mark.parametrize(
        ("noise", "divisor", "reason"),
        [
            (NoiseByLargestGroup(float, 2), PublicDivisor(1.0), "largest group"),
            (FixedNoise(1.0), RealisedSubjects(), "number of subjects"),
        ],
    )
    def test_private_scale_is_an_obstacle(self, noise, divisor, reason, unit):
        policy = Policy(
            name="built",
            sampling=PoissonItems(Q),
            clip=Clip(ClipPer.ITEM, Pool.SUM, 1.0),
            noise=noise,
            divisor=divisor,
        )
        assert reason in "; ".join(obstacles(policy, unit))
        with pytest.raises(AccountingError, match=reason):
            step_event(policy, facts(), unit)

    def test_noise_must_be_there(self):
        policy = find("subject_dp").row(PolicySettings(rate=Q), facts())
        with pytest.raises(AccountingError, match="no noise yet"):
            step_event(policy, facts(), Unit.SUBJECT)

    @pytest.mark.parametrize("name", sorted(set(PRIVATE) - {"subject_dp"}))
    def test_bound_must_be_there(self, name):
        silo = facts(name="north", bound=None)
        with pytest.raises(AccountingError, match=r"items_per_subject.*'north'"):
            step_event(catalogued(name, silo), silo, Unit.SUBJECT)

    def test_subject_dp_needs_no_bound(self):
        silo = facts(bound=None)
        assert step_event(catalogued("subject_dp", silo), silo, Unit.SUBJECT) == PoissonSampledDpEvent(
            Q, GaussianDpEvent(SIGMA)
        )

    @pytest.mark.parametrize("items", [1, 3, None])
    def test_items_that_a_step_bounds_need_no_other_bound(self, items):
        silo = facts(name="north", bound=None)
        policy = built(PoissonSubjects(Q, items=items), ClipPer.ITEM, Pool.SUM)
        if items is None:
            assert missing_bound([(policy, silo)], Unit.SUBJECT) == "north"
            return
        assert missing_bound([(policy, silo)], Unit.SUBJECT) is None
        assert step_event(policy, silo, Unit.SUBJECT) == PoissonSampledDpEvent(Q, GaussianDpEvent(SIGMA / items))
        both = [(policy, silo), (replace(policy, sampling=PoissonSubjects(Q)), facts(name="south", bound=None))]
        assert missing_bound(both, Unit.SUBJECT) == "south"
        assert worst_row([(policy, silo), (policy, facts(bound=2))], Unit.SUBJECT)[0].sampling.items == items


class TestBatchesOfFixedSize:
    """10 of 40 items; a subject has 4."""

    SILO = facts(items=40, subjects=20)
    CHANCES = stats.hypergeom(40, K, 10).pmf(np.arange(K + 1))

    @pytest.mark.parametrize(
        ("per", "pool", "moves"),
        [
            (ClipPer.ITEM, Pool.SUM, [0, 2, 4, 6, 8]),  # j items leave, j others enter
            (ClipPer.ITEM, Pool.MEAN, [0, 2, 3, 4, 5]),
            (ClipPer.SUBJECT, Pool.MEAN, [0, 3, 5, 7, 9]),
        ],
    )
    def test_subject(self, per, pool, moves):
        event = step_event(built(FixedItems(10), per, pool), self.SILO, Unit.SUBJECT)
        assert event.standard_deviation == SIGMA
        assert event.sensitivities == tuple(moves)
        assert event.sampling_probs == pytest.approx(self.CHANCES)

    def test_subject_in_a_batch_clipped_as_a_whole(self):
        event = step_event(built(FixedItems(10), ClipPer.BATCH, Pool.MEAN), self.SILO, Unit.SUBJECT)
        assert event.sampling_probability == pytest.approx(1 - self.CHANCES[0])
        assert event.event == GaussianDpEvent(SIGMA / 2)

    @pytest.mark.parametrize("clip", [(ClipPer.ITEM, Pool.SUM), (ClipPer.ITEM, Pool.MEAN), (ClipPer.BATCH, Pool.MEAN)])
    def test_item(self, clip):
        event = step_event(built(FixedItems(10), *clip), self.SILO, Unit.ITEM)
        assert event == PoissonSampledDpEvent(0.25, GaussianDpEvent(SIGMA / 2))

    @pytest.mark.parametrize("drops", [False, True])
    def test_item_whose_subject_is_clipped(self, drops):
        """The item that leaves can turn its subject's mean round, and the one that enters another's: 2C each."""
        policy, silo = built(FixedItems(10), ClipPer.SUBJECT, Pool.MEAN), replace(self.SILO, drops_surplus=drops)
        at_4c = GaussianDpEvent(SIGMA / 4)
        assert step_event(policy, silo, Unit.ITEM) == (at_4c if drops else PoissonSampledDpEvent(0.25, at_4c))

    @pytest.mark.parametrize(
        ("per", "pool", "move"),
        [
            (ClipPer.ITEM, Pool.SUM, 2 * K),
            (ClipPer.ITEM, Pool.MEAN, 1 + K),
            (ClipPer.SUBJECT, Pool.MEAN, 1 + 2 * K),
            (ClipPer.BATCH, Pool.MEAN, 2),
        ],
    )
    @pytest.mark.parametrize(("size", "declared"), [(10, True), (37, False)], ids=["declared size", "N − K < B"])
    def test_sampling_hides_nobody_where_the_exact_size_is_not_to_be_had(self, per, pool, move, size, declared):
        policy, silo = built(FixedItems(size), per, pool), replace(self.SILO, declared=declared)
        assert step_event(policy, silo, Unit.SUBJECT) == GaussianDpEvent(SIGMA / move)
        assert step_event(built(FixedItems(36), per, pool), self.SILO, Unit.SUBJECT) != GaussianDpEvent(SIGMA / move)

    def test_item_of_a_silo_whose_size_is_declared(self):
        policy, silo = built(FixedItems(10), ClipPer.ITEM, Pool.SUM), replace(self.SILO, declared=True)
        assert step_event(policy, silo, Unit.ITEM) == GaussianDpEvent(SIGMA / 2)

    def test_batch_of_everything_is_no_sampling(self):
        event = step_event(built(FixedItems(40), ClipPer.ITEM, Pool.SUM), self.SILO, Unit.SUBJECT)
        assert event == GaussianDpEvent(SIGMA / (2 * K))


# One step, exactly. A world is a tuple of items, each a subject and a gradient in one dimension; C = 1.

SAMPLINGS = [
    PoissonItems(0.5),
    PoissonItems(0.5, 2),
    PoissonSubjects(0.5),
    PoissonSubjects(0.5, 2),
    FixedItems(2),
    FixedItems(3),
    FixedItems(5),  # more than some neighbours have
]
CLIPS = [
    (ClipPer.ITEM, Pool.SUM),
    (ClipPer.ITEM, Pool.MEAN),
    (ClipPer.SUBJECT, Pool.SUM),
    (ClipPer.SUBJECT, Pool.MEAN),
    (ClipPer.BATCH, Pool.MEAN),
]
WORLDS = [
    (("a", 12.0), ("a", -9.0), ("b", 9.0), ("b", -12.0)),  # means that turn round when an item goes
    (("a", 1.0), ("a", 1.0), ("a", 1.0), ("b", -1.0), ("c", -1.0)),  # one subject against the rest
    (("a", 1.0), ("a", -1.0), ("a", -1.0), ("b", -1.0), ("b", 1.0)),
    (("a", 0.4), ("a", 3.0), ("a", -0.5), ("b", -9.0), ("c", 12.0)),
]


def choices(items, most):
    """Subsets that a cap leaves, each as likely as the next."""
    kept = list(combinations(items, min(most or len(items), len(items))))
    return [(1 / len(kept), subset) for subset in kept]


def independently(options):
    """One choice for each subject, with the product of their chances; the items together."""
    for chosen in product(*options):
        yield prod(chance for chance, _ in chosen), tuple(i for _, items in chosen for i in items)


def by_subject(items, world):
    names = sorted({world[i][0] for i in items})
    return [[i for i in items if world[i][0] == name] for name in names]


def batches(sampling, world):
    """Every batch that can be drawn, with its chance."""
    everything = range(len(world))
    if isinstance(sampling, FixedItems):
        drawn = list(combinations(everything, min(sampling.size, len(world))))
        yield from ((1 / len(drawn), batch) for batch in drawn)
    elif isinstance(sampling, PoissonSubjects):
        options = (
            [(1 - sampling.rate, ())] + [(sampling.rate * p, kept) for p, kept in choices(own, sampling.items)]
            for own in by_subject(everything, world)
        )
        yield from independently(options)
    else:
        coins = [[(1 - sampling.rate, ()), (sampling.rate, (i,))] for i in everything]
        for chance, drawn in independently(coins):
            capped = [choices(own, sampling.most_per_subject) for own in by_subject(drawn, world)]
            yield from ((chance * p, batch) for p, batch in independently(capped))


def loaded(world, silo):
    """What a silo keeps of its data: at most K items of each subject."""
    most = silo.items_per_subject if silo.drops_surplus else None
    for chance, kept in independently(choices(own, most) for own in by_subject(range(len(world)), world)):
        yield chance, tuple(world[i] for i in kept)


@cache
def pooled(items, clip):
    """The sum before noise of these items."""
    gradients = torch.tensor([[gradient] for _, gradient in items], dtype=torch.float64).reshape(-1, 1)
    groups = np.unique([subject for subject, _ in items], return_inverse=True)[1] if items else np.zeros(0)
    return round(float(pool_gradients(gradients, torch.as_tensor(groups, dtype=torch.int64), clip).total), 9)


def law_of_sums(policy, silo, world):
    """Sum before noise → chance."""
    law = Counter()
    for kept_chance, kept in loaded(world, silo):
        for chance, batch in batches(policy.sampling, kept):
            law[pooled(tuple(kept[i] for i in batch), policy.clip)] += kept_chance * chance
    return law


def true_deltas(epsilons, law, other):
    """For each ε the most by which P[S] can exceed e^ε·Q[S], either way, with noise of σ = `SIGMA` on both laws."""
    x = np.linspace(min(law | other) - 10 * SIGMA, max(law | other) + 10 * SIGMA, 2001)
    p, q = (sum(chance * density(x - move) for move, chance in of.items()) for of in (law, other))
    ways = [np.maximum(np.stack([p - exp(epsilon) * q, q - exp(epsilon) * p]), 0) for epsilon in epsilons]
    return [float(np.trapezoid(way, x).max()) for way in ways]


def density(x):
    return np.exp(-((x / SIGMA) ** 2) / 2) / (SIGMA * sqrt(2 * pi))


def neighbours(world, unit):
    """The world without one item, or without one subject."""
    removals = range(len(world)) if unit is Unit.ITEM else sorted({subject for subject, _ in world})
    for removed in removals:
        yield tuple(item for i, item in enumerate(world) if removed not in (i, item[0]))


def public_facts(world, drops):
    """K is what the largest subject has, or one less where the surplus is dropped."""
    largest = max(Counter(subject for subject, _ in world).values())
    silo = facts(items=len(world), bound=largest - 1 if drops else largest, drops=drops)
    return replace(silo, items=len(next(loaded(world, silo))[1]))


@pytest.mark.parametrize(
    "declared", [None, 1, pytest.param(60, marks=pytest.mark.slow)], ids=["counted", "declared small", "declared large"]
)
@pytest.mark.parametrize("drops", [False, True], ids=["refuses", "drops"])
@pytest.mark.parametrize("unit", [Unit.ITEM, Unit.SUBJECT])
@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: "-".join(clip))
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_one_step_is_as_private_as_promised(sampling, clip, unit, drops, declared):
    """Whatever sizes are declared: they may be wrong, and the promise must hold."""
    policy = built(sampling, *clip)
    for world in WORLDS:
        silo = public_facts(world, drops)
        silo = silo if declared is None else replace(silo, items=declared, declared=True)
        promised = {
            delta: federation_epsilon([(policy, silo)], {"silo": 1}, unit, 1, PRICING, delta) for delta in (1e-2, 1e-5)
        }
        law = law_of_sums(policy, silo, world)
        for neighbour in neighbours(world, unit):
            found = true_deltas(promised.values(), law, law_of_sums(policy, silo, neighbour))
            for delta, true in zip(promised, found, strict=True):
                assert true <= delta * (1 + 1e-4)  # what the integral is good for


@pytest.mark.parametrize(("rate", "hidden"), [(0.05, True), (1.0, False)])
def test_item_that_shares_its_coin_pays_the_smaller_of_two_prices(rate, hidden):
    """Twice its subject, sampled, or itself alone, not sampled."""
    silo = facts()
    policy = catalogued("subject_dp", silo, rate)
    alone = PRICING.epsilon(repeat(GaussianDpEvent(SIGMA / 2), 20), 1e-5)
    priced = federation_epsilon([(policy, silo)], {"silo": 20}, Unit.ITEM, 1, PRICING, 1e-5)
    assert (priced < alone) is hidden
    assert priced <= alone
    assert priced > PRICING.epsilon(federation_event([(policy, silo)], {"silo": 20}, Unit.SUBJECT, 1), 1e-5)


# Composition over silos.

SILOS = [
    facts("north", items=500, subjects=100, bound=2),
    facts("south", items=1000, subjects=150, bound=5),
    facts("west", items=2000, subjects=400, bound=3),
]
STEPS = {"north": 20, "south": 10, "west": 30}


def rows_of(name, silos=SILOS, batch=100, noise=(SIGMA, SIGMA, SIGMA)):
    settings = PolicySettings(batch_size=batch, group_cap=2)
    return [(find(name).row(settings, silo).with_noise(n), silo) for silo, n in zip(silos, noise, strict=True)]


@pytest.mark.parametrize("name", PRIVATE)
def test_subject_in_all_silos_pays_each(name):
    rows = rows_of(name)
    each = [repeat(step_event(policy, silo, Unit.SUBJECT), STEPS[silo.name]) for policy, silo in rows]
    assert len(set(each)) == 3
    assert federation_event(rows, STEPS, Unit.SUBJECT, span=3) == compose(each)


@pytest.mark.parametrize(("span", "steps"), [(1, 30), (2, 30 + 20)])
def test_subject_in_some_silos_pays_the_worst_as_often_as_the_busiest_released(span, steps):
    """Largest q (100 of 500), largest K (5), least noise, of three different silos; most steps of as many."""
    event = federation_event(rows_of("higradavg_dp", noise=(4.0, 5.0, 3.0)), STEPS, Unit.SUBJECT, span)
    assert event.count == steps
    assert event.event.sampling_probability == pytest.approx(at_least_one_of(5, rate=0.2))
    assert event.event.event == GaussianDpEvent(3.0)


def test_like_silos_cost_one_silo_that_releases_more():
    like = [facts(name) for name in ("north", "south", "west")]
    rows = rows_of("subject_dp", like)
    step = step_event(*rows[0], Unit.SUBJECT)
    releases = dict.fromkeys(STEPS, 10)
    assert federation_event(rows, releases, Unit.SUBJECT, span=3) == repeat(step, 30)
    assert federation_event(rows, releases, Unit.SUBJECT, span=1) == repeat(step, 10)


@pytest.mark.parametrize(("name", "unit"), [("local_item_dp", Unit.ITEM), ("user_ldp", Unit.SILO)])
def test_items_and_silos_pay_in_one_silo_whatever_the_span(name, unit):
    rows = rows_of(name)
    alone = federation_event(rows, STEPS, unit, span=1)
    assert alone.count == max(STEPS.values())
    assert federation_event(rows, STEPS, unit, span=3) == alone


def test_silos_that_released_nothing_cost_nothing():
    rows = rows_of("subject_dp")
    south = federation_event(rows[1:2], {"south": 10}, Unit.SUBJECT, span=1)
    assert federation_event(rows, {"south": 10, "west": 0}, Unit.SUBJECT, span=3) == south
    assert PRICING.epsilon(federation_event(rows, {}, Unit.SUBJECT, span=3), 1e-5) == 0.0


def test_different_algorithms_have_no_worst_one():
    mixed = [rows_of("subject_dp")[0], rows_of("higradavg_dp")[1]]
    releases = {"north": 20, "south": 10}
    assert PRICING.epsilon(federation_event(mixed, releases, Unit.SUBJECT, span=2), 1e-5) < float("inf")
    with pytest.raises(AccountingError, match="set span to the number of silos"):
        federation_event(mixed, releases, Unit.SUBJECT, span=1)


@st.composite
def federations(draw):
    """Two silos that follow the same algorithm with everything else different."""
    kind, clip = draw(st.sampled_from(["items", "capped", "subjects", "fixed"])), draw(st.sampled_from(CLIPS))
    rows = []
    for name in ("north", "south"):
        rate, cap = draw(st.floats(0.1, 0.9)), draw(st.integers(1, 3))
        sampling = {
            "items": PoissonItems(rate),
            "capped": PoissonItems(rate, cap),
            "subjects": PoissonSubjects(rate, cap),
            "fixed": FixedItems(draw(st.integers(1, 12))),
        }[kind]
        silo = facts(name, items=draw(st.integers(12, 30)), bound=draw(st.integers(1, 4)), drops=draw(st.booleans()))
        rows.append((built(sampling, *clip, noise=draw(st.floats(3.0, 9.0))), silo))
    return rows


@examples(25)
@given(rows=federations(), unit=st.sampled_from([Unit.ITEM, Unit.SUBJECT]))
def test_worst_row_is_at_least_as_costly_as_each(rows, unit):
    coarse = PldAccountant(grid=5e-2)
    worst = coarse.epsilon(step_event(*worst_row(rows, unit), unit), 1e-4)
    for row in rows:
        assert coarse.epsilon(step_event(*row, unit), 1e-4) <= worst * (1 + 1e-6)


def test_worst_row_binds_where_any_does():
    """A cap of 1 on 4 items binds and a cap of 4 does not; the worst of both has to pay for both."""
    rows = [
        (built(PoissonItems(0.3, 1), ClipPer.ITEM, Pool.SUM), facts("north")),
        (built(PoissonItems(0.3, 4), ClipPer.ITEM, Pool.SUM), facts("south")),
    ]
    assert step_event(*rows[0], Unit.ITEM) == PoissonSampledDpEvent(0.3, GaussianDpEvent(SIGMA / 2))
    assert step_event(*worst_row(rows, Unit.ITEM), Unit.ITEM) == step_event(*rows[0], Unit.ITEM)
