"""Weights by span: all silos together reveal of a subject no more than one would, and what is not proved is refused."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import NonPrivateDpEvent
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from effort import examples
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.errors import SpecError
from wholegrain.models.model_catalog import build
from wholegrain.policies.guarantees import federation_epsilon, obstacles, terms
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, make_plan
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, make_row
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.events import compose, gaussian, repeat
from wholegrain.runs.datasets import split_dataset
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Silo, Trainer

DELTA = 1e-5
MODEL = build("logistic", features=10, classes=2, seed=0).double()
GRADIENTS = BookKeeping(MODEL, cross_entropy)
BY_SPAN = {"name": "subject_dp", "rate": 1.0, "by_span": True}


def facts(name: str, *, knows: bool = True) -> SiloFacts:
    return SiloFacts(name=name, items=100, subjects=20, items_per_subject=9, knows_spans=knows)


def row(name: str, noise: float = 1.0, clip_norm: float = 1.0) -> tuple[Policy, SiloFacts]:
    made = make_row("subject_dp", PolicySettings(rate=1.0, by_span=True, clip_norm=clip_norm), facts(name))
    return made.with_noise(noise), facts(name)


def silos_of(dataset: Dataset) -> Mapping[str, Silo]:
    spec = RunSpec.of({"policy": BY_SPAN, "evaluation": {"test": 0.0}, "data": {"source": "clinics"}})
    return split_dataset(dataset, spec).silos


def sums(silos: Mapping[str, Silo], clip_norm: float, *, by_span: bool) -> dict[str, Tensor]:
    """Each silo's sum before noise, for one step from the same parameters."""
    trainer = Trainer(clipped_sum=GRADIENTS, noise=SeededNoise(0), learning_rate=1.0)
    vector, found = flatten(MODEL), {}
    for name, silo in silos.items():
        silo = replace(silo, data=replace(silo.data, inputs=silo.data.inputs.astype(np.float64)))
        policy = replace(row(name, noise=0.0, clip_norm=clip_norm)[0], by_span=by_span)
        moved = trainer.train(silo, policy, vector, round=0, steps=1)
        found[name] = (vector - moved) * policy.divisor.value  # type: ignore[union-attr]
    return found


def without(dataset: Dataset, subject: int) -> Dataset:
    kept = np.flatnonzero(dataset.data.subjects != subject)
    assert dataset.silos is not None
    return replace(dataset, data=dataset.data.take(kept), silos=dataset.silos[kept])


@pytest.mark.parametrize("clip_norm", [1e-3, 100.0], ids=["all are clipped", "none is"])
def test_a_subject_moves_all_silos_together_by_no_more_than_one_clip_norm(clip_norm: float) -> None:
    dataset = clinics(patients=12, clinics=4, span=4, visits=12, seed=1)
    whole = {by_span: sums(silos_of(dataset), clip_norm, by_span=by_span) for by_span in (True, False)}
    widest = 0
    for subject in range(12):
        fewer = silos_of(without(dataset, subject))
        own = {str(name) for name in dataset.silos[dataset.data.subjects == subject]}  # type: ignore[index]
        widest = max(widest, len(own))
        for by_span, expected in ((True, 1.0), (False, math.sqrt(len(own)))):
            rest = sums(fewer, clip_norm, by_span=by_span)
            moves = [whole[by_span][name] - rest.get(name, torch.zeros(22)) for name in whole[by_span]]
            length = float(torch.cat(moves).norm()) / clip_norm
            assert length <= expected * (1 + 1e-6)
            if clip_norm < 1:
                assert length == pytest.approx(expected, rel=1e-4)
    assert widest > 2  # the weights mattered


@given(
    noises=st.lists(st.floats(2.0, 20.0), min_size=1, max_size=5),
    counts=st.lists(st.integers(1, 40), min_size=5, max_size=5),
    present=st.integers(1, 5),
)
@examples(25)
def test_the_price_covers_every_set_of_silos_that_a_subject_may_be_in(
    noises: list[float], counts: list[int], present: int
) -> None:
    """The oracle composes, silo by silo, what a subject in m of them meets: a Gaussian at √m times the noise."""
    rows = [row(f"s{k}", noise) for k, noise in enumerate(noises)]
    steps = {facts.name: count for (_, facts), count in zip(rows, counts, strict=False)}
    priced = federation_epsilon(rows, steps, Unit.SUBJECT, len(rows), DEFAULT, DELTA)
    own = list(zip(noises, steps.values(), strict=True))[:present]
    met = compose(repeat(gaussian(noise * math.sqrt(len(own))), count) for noise, count in own)
    assert DEFAULT.epsilon(met, DELTA) <= priced * (1 + 1e-3)


def test_like_silos_cost_what_one_costs_however_many_there_are() -> None:
    one, many = [row("s0", 5.0)], [row(f"s{k}", 5.0) for k in range(6)]
    price = [
        federation_epsilon(rows, {facts.name: 10 for _, facts in rows}, Unit.SUBJECT, len(rows), DEFAULT, DELTA)
        for rows in (one, many)
    ]
    assert price[0] == pytest.approx(price[1])


def test_a_plan_needs_less_noise_and_says_why() -> None:
    dataset = clinics(patients=60, clinics=4, span=3)
    tree = {"data": {"source": "clinics"}, "privacy": {"epsilon": 2.0}, "rounds": {"count": 3}}
    plain, weighed = (
        prepare(RunSpec.of({**tree, "policy": {**BY_SPAN, "by_span": by_span}}), dataset=dataset).plan
        for by_span in (False, True)
    )
    noise = [plan.rows[0][0].noise.multiplier for plan in (plain, weighed)]  # type: ignore[union-attr]
    assert noise[0] / noise[1] == pytest.approx(2.0, rel=1e-2)  # √M, for the four silos
    assert weighed.guarantee().standing is Standing.PROVED
    assert weighed.guarantee().epsilon <= 2.0
    assert "1/√m" in weighed.guarantee().because


def test_spans_are_counted_over_the_silos_that_train() -> None:
    dataset = clinics(patients=30, clinics=5, span=4, seed=2)
    silos = silos_of(dataset)
    for silo in silos.values():
        assert silo.spans is not None
        for subject, span in zip(silo.data.subjects, silo.spans, strict=True):
            assert span == sum(subject in other.data.subjects for other in silos.values())


def test_what_is_not_proved_is_refused() -> None:
    sampled = make_row("subject_dp", PolicySettings(rate=0.5, by_span=True), facts("a"))
    assert any("weights by span" in reason for reason in obstacles(sampled, Unit.SUBJECT))
    federation, goal = Federation(silos=(facts("a"), facts("b"))), Goal(epsilon=1.0, delta=DELTA)
    horizon = Horizon(silos=("a", "b"), rounds=2, steps=1)
    for name, asked, why in (
        ("subject_dp", PolicySettings(rate=0.5, by_span=True), "weights by span"),
        ("higradavg_dp", PolicySettings(rate=1.0, by_span=True), "higradavg_dp does not"),
        ("fedavg", PolicySettings(rate=1.0, by_span=True), "fedavg does not"),
    ):
        with pytest.raises(SpecError, match=why):
            make_plan(name, asked, federation, horizon, goal)
    with pytest.raises(SpecError, match="know in how many"):
        make_row("subject_dp", PolicySettings(rate=1.0, by_span=True), facts("a", knows=False))
    with pytest.raises(SpecError, match="leave out"):
        prepare(RunSpec.of({"policy": {**BY_SPAN, "as_printed": True}, "privacy": {"epsilon": 1.0}}))


def test_a_silo_that_does_not_know_spans_does_not_train() -> None:
    silo = replace(next(iter(silos_of(clinics(patients=12, clinics=3)).values())), spans=None)
    with pytest.raises(SpecError, match="does not know in how many"):
        sums({"s": silo}, 1.0, by_span=True)


def test_nothing_is_proved_of_an_item_whose_removal_changes_a_span() -> None:
    """A subject's only item in a silo: without it the subject counts more in all the others."""
    dataset = clinics(patients=12, clinics=4, span=4, visits=12, seed=1)
    assert dataset.silos is not None
    item = next(item for item in range(dataset.data.items) if _decides_a_span(dataset, item))
    silo, kept = dataset.silos[item], np.delete(np.arange(dataset.data.items), item)
    fewer = replace(dataset, data=dataset.data.take(kept), silos=dataset.silos[kept])
    before, after = (sums(silos_of(each), 1e-3, by_span=True) for each in (dataset, fewer))
    elsewhere = [name for name in after if name != silo and not torch.allclose(before[name], after[name], rtol=1e-9)]
    assert elsewhere
    assert any("one item can decide" in reason for reason in obstacles(row("a")[0], Unit.ITEM))
    assert not obstacles(row("a")[0], Unit.SUBJECT)
    # Nor through its subject: a ledger says what a plan says.
    priced = terms([row("a")], span=4)
    assert priced.through_subject is None
    assert isinstance(priced.exposures[Unit.ITEM].steps["a"], NonPrivateDpEvent)


def _decides_a_span(dataset: Dataset, item: int) -> bool:
    assert dataset.silos is not None
    mine = dataset.data.subjects == dataset.data.subjects[item]
    return bool((mine & (dataset.silos == dataset.silos[item])).sum() == 1 and len(set(dataset.silos[mine])) > 1)
