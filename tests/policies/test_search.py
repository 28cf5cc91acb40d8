"""The planner's prediction: what it is made of, what it must prefer, and that it is close to what noise really does."""

import math
from dataclasses import replace

import pytest
import torch

from wholegrain.errors import SpecError
from wholegrain.policies.catalog import CATALOG, Settings
from wholegrain.policies.plan import Federation
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.search import ALIGNMENT, BENDS, ENOUGH, Question, best, candidates, leaders, signal_to_noise
from wholegrain.privacy.units import Budget


def silos(count: int = 4, subjects: int = 500, items: int = 3500, bound: int | None = 20) -> tuple[SiloFacts, ...]:
    return tuple(SiloFacts(name=f"s{k}", items=items, subjects=subjects, items_per_subject=bound) for k in range(count))


def question(epsilon: float = 4.0, **changes: object) -> Question:
    given = {"federation": Federation(silos=silos()), "budget": Budget(epsilon, 1e-5), "parameters": 500,
             "policies": ("subject_dp",)}  # fmt: skip
    return Question(**{**given, **changes})  # type: ignore[arg-type]


def test_the_ratio_is_that_of_the_picture_of_gradients() -> None:
    """Contributions of the stated alignment, with the stated noise: 4,000 sums agree within 5 standard errors."""
    (facts,) = silos(1, subjects=50, items=50)
    row = CATALOG["subject_dp"].row(Settings(rate=1.0), facts)
    size, noise, trials = 40, 3.0, 4000
    draws = torch.Generator().manual_seed(0)
    residual = torch.randn(trials, 50, size - 1, generator=draws)
    residual *= math.sqrt(1 - ALIGNMENT**2) / residual.norm(dim=2, keepdim=True)
    sums = torch.cat([torch.full((trials, 1), 50 * ALIGNMENT), residual.sum(1)], 1)
    sums += noise * torch.randn(sums.shape, generator=draws)
    away = sums - torch.eye(size)[0] * 50 * ALIGNMENT
    squares = away.square().sum(1)
    measured, error = squares.mean(), squares.std() / math.sqrt(trials)
    predicted = (50 * ALIGNMENT / signal_to_noise([(row, facts)], noise, 1, size)) ** 2
    assert abs(float(measured) - predicted) < 5 * float(error)


def test_more_budget_more_people_and_fewer_parameters_are_better() -> None:
    at = {epsilon: candidates(question(epsilon))[0].ratio for epsilon in (0.5, 2.0, 8.0)}
    assert at[0.5] < at[2.0] < at[8.0]
    assert candidates(question(parameters=5000))[0].ratio < candidates(question())[0].ratio
    crowd = Federation(silos=silos(subjects=2000, items=14000))
    assert candidates(question(federation=crowd))[0].ratio > 3 * candidates(question())[0].ratio


def test_a_smaller_span_is_better_and_is_used() -> None:
    few = Federation(silos=silos(), span=1)
    assert candidates(question(federation=few))[0].ratio > 1.5 * candidates(question())[0].ratio


def test_whole_subjects_beat_single_items_where_subjects_have_many() -> None:
    found = leaders(candidates(question(policies=("subject_dp", "higradavg_dp"))))
    assert [each.policy for each in found] == ["subject_dp", "higradavg_dp"]
    assert found[0].settings.rate == 1.0


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 8.0])
def test_the_choice_is_short_fine_and_nearly_the_best(epsilon: float) -> None:
    found = candidates(question(epsilon))
    chosen = best(found)
    assert chosen.ratio >= ENOUGH * found[0].ratio
    assert chosen.fine
    assert chosen.steps * (1 - chosen.trusted) >= BENDS
    rivals = [each for each in found if each.fine and each.ratio >= ENOUGH * found[0].ratio]
    assert chosen.steps == min(each.steps for each in rivals)


def test_where_no_steps_are_fine_the_finest_are_taken() -> None:
    found = candidates(question(8.0, policies=("subject_dp",), parameters=1))
    certain = tuple(replace(each, ratio=1e3) for each in found)
    assert best(certain).steps == max(each.steps for each in found)


def test_policies_that_cannot_be_priced_are_left_out() -> None:
    unbounded = Federation(silos=silos(bound=None))
    found = candidates(question(federation=unbounded, policies=("subject_dp", "local_item_dp", "fedavg")))
    assert {each.policy for each in found} == {"subject_dp"}
    with pytest.raises(SpecError, match="No policy can be priced"):
        candidates(question(federation=unbounded, policies=("higradavg_dp",)))
