"""The planner's prediction: what it is made of, what it must prefer, and that it is close to what noise really does."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from wholegrain.errors import SpecError
from wholegrain.federation.server_optimiser import SCHEDULES
from wholegrain.policies.plan import Federation
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings
from wholegrain.policies.search import (
    ALIGNMENT,
    ENOUGH,
    PACES,
    SearchQuery,
    best,
    candidates,
    leaders,
    misalignment,
    one_step,
)
from wholegrain.privacy.definitions import Budget

pytestmark = pytest.mark.usefixtures("coarse_prices")


def silos(count: int = 4, subjects: int = 500, items: int = 3500, bound: int | None = 20) -> tuple[SiloFacts, ...]:
    return tuple(SiloFacts(name=f"s{k}", items=items, subjects=subjects, items_per_subject=bound) for k in range(count))


def question(epsilon: float = 4.0, **changes: object) -> SearchQuery:
    given = {"federation": Federation(silos=silos()), "budget": Budget(epsilon, 1e-5), "parameters": 500,
             "policies": ("subject_dp",)}  # fmt: skip
    return SearchQuery(**{**given, **changes})  # type: ignore[arg-type]


def test_noise_is_that_of_the_picture_of_gradients() -> None:
    """Contributions of the stated alignment, with the stated noise: 4,000 sums agree within 5 standard errors."""
    (facts,) = silos(1, subjects=50, items=50)
    row = CATALOG["subject_dp"].row(PolicySettings(rate=1.0), facts)
    size, noise, trials = 40, 3.0, 4000
    draws = torch.Generator().manual_seed(0)
    residual = torch.randn(trials, 50, size - 1, generator=draws)
    residual *= math.sqrt(1 - ALIGNMENT**2) / residual.norm(dim=2, keepdim=True)
    sums = torch.cat([torch.full((trials, 1), 50 * ALIGNMENT), residual.sum(1)], 1)
    sums += noise * torch.randn(sums.shape, generator=draws)
    away = sums - torch.eye(size)[0] * 50 * ALIGNMENT
    squares = away.square().sum(1)
    measured, error = squares.mean(), squares.std() / math.sqrt(trials)
    signal, predicted = one_step([(row, facts)], noise, size, reach=1)
    assert signal == pytest.approx(ALIGNMENT)
    assert abs(float(measured) - (50 * predicted) ** 2) < 5 * float(error)


@pytest.mark.parametrize("schedule", [lambda done: 1.0, lambda done: 1 - done], ids=["constant", "linear"])
def test_what_is_left_is_that_of_a_bowl(schedule: Callable[[float], float]) -> None:
    """A bowl of 30 directions, walked down 4,000 times: what is left on average agrees within 2 %."""
    size, steps, signal, noise, trials = 30, 25, 1.0, 2.0, 4000
    paces = [schedule(step / steps) for step in range(steps)]
    predicted = misalignment(signal, noise, paces, parameters=size, kinds=size)[PACES.index(0.5)]
    draws = torch.Generator().manual_seed(0)
    steepness = 1 / torch.arange(1.0, size + 1)
    goal = torch.ones(size) * signal / steepness.norm()
    at = torch.zeros(trials, size)
    for pace in paces:
        gradients = steepness * (at - goal) + noise / math.sqrt(size) * torch.randn(at.shape, generator=draws)
        at -= 0.5 * pace * gradients
    along = (steepness * goal * at).sum(1).mean() ** 2
    whole = (steepness * goal**2).sum() * (steepness * at**2).sum(1).mean()
    assert predicted == pytest.approx(1 - float(along / whole), rel=0.02)


@pytest.mark.slow
def test_more_budget_more_people_and_fewer_parameters_are_better() -> None:
    at = {epsilon: candidates(question(epsilon))[0] for epsilon in (0.5, 2.0, 8.0)}
    assert at[0.5].ratio < at[2.0].ratio < at[8.0].ratio
    assert at[0.5].left > at[2.0].left > at[8.0].left
    assert candidates(question(parameters=5000))[0].left > candidates(question())[0].left
    crowd = Federation(silos=silos(subjects=2000, items=14000))
    assert candidates(question(federation=crowd))[0].ratio > 3 * candidates(question())[0].ratio


def test_a_smaller_span_is_better_and_is_used() -> None:
    few = Federation(silos=silos(), span=1)
    assert candidates(question(federation=few))[0].ratio > 1.5 * candidates(question())[0].ratio


def test_whole_subjects_beat_single_items_where_subjects_have_many() -> None:
    found = leaders(candidates(question(policies=("subject_dp", "higradavg_dp"))))
    assert [each.policy for each in found] == ["subject_dp", "higradavg_dp"]
    assert found[0].settings.rate == 1.0


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_choice_is_short_and_nearly_the_best(epsilon: float) -> None:
    found = candidates(question(epsilon, schedules=SCHEDULES))
    chosen = best(found)
    assert 1 - chosen.left >= ENOUGH * (1 - found[0].left)
    assert chosen.steps == min(each.steps for each in found if 1 - each.left >= ENOUGH * (1 - found[0].left))


def test_the_clip_norm_does_not_enter() -> None:
    small, large = (candidates(question(clip_norm=norm))[0] for norm in (0.01, 10.0))
    assert (small.left, small.ratio, small.pace) == pytest.approx((large.left, large.ratio, large.pace))


def test_less_budget_is_spent_more_slowly() -> None:
    slow, fast = (best(candidates(question(epsilon))) for epsilon in (0.2, 8.0))
    assert slow.steps * slow.pace < fast.steps * fast.pace


def test_weights_by_span_are_weighed_where_silos_know_spans() -> None:
    """Taken to be everywhere, a subject gains nothing by them, and loses nothing."""
    knowing = Federation(silos=tuple(replace(silo, knows_spans=True) for silo in silos()))
    by_span = candidates(question(federation=knowing, by_span=True))[0]
    assert by_span.settings.by_span
    assert by_span.left == pytest.approx(candidates(question())[0].left, rel=0.01)


def test_policies_that_cannot_be_priced_are_left_out() -> None:
    unbounded = Federation(silos=silos(bound=None))
    found = candidates(question(federation=unbounded, policies=("subject_dp", "local_item_dp", "fedavg")))
    assert {each.policy for each in found} == {"subject_dp"}
    with pytest.raises(SpecError, match="No policy can be priced"):
        candidates(question(federation=unbounded, policies=("higradavg_dp",)))
