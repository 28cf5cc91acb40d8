"""Private scores under secure sums: one sum is opened, with the noise of all silos, and nobody moves it too far."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from effort import amount
from wholegrain.clipping.rounding import SLACK
from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.engines.secure_sum_engine import MaskRequest
from wholegrain.federation.messages import ScoreTask, SiloFault, SumScore
from wholegrain.federation.private_score import ALL
from wholegrain.policies.score_plan import add_score_terms, divide_silos
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.events import gaussian, repeat
from wholegrain.runs.runner import (
    PreparedRun,
    RunResult,
    execute,
    open_guard,
    prepare,
    score_engine_of,
    scores_in_process,
)
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.score_release import STEPS

pytestmark = pytest.mark.usefixtures("coarse_prices")

SILOS = 5
DATA = clinics(patients=200, clinics=SILOS, span=3)


def spec(**changes: dict[str, Any]) -> RunSpec:
    tree: dict[str, Any] = {
        "policy": {"name": "subject_dp", "rate": 1.0},
        "privacy": {"epsilon": 6.0},
        "trust": {"model": "secure_sum", "answers": 4},
        "silos": {"span": 3, "items_per_subject": 6},
        "rounds": {"count": 4, "learning_rate": 0.5, "averaging": "subjects"},
        "evaluation": {"test": 0.3, "private": {"every": 2, "measures": ["accuracy", "histogram"], "bins": 4}},
    }
    for section, values in changes.items():
        tree[section] = {**tree.get(section, {}), **values}
    return RunSpec.of(tree)


def play(prepared: PreparedRun) -> RunResult:
    with open_guard(prepared, "a run") as guard:
        return execute(prepared, guard)


def parts(prepared: PreparedRun, round: int = 1) -> np.ndarray:
    """What each silo adds to the sum [silo, value], in steps."""
    plan = prepared.plan.scores
    assert plan is not None
    scores = scores_in_process(prepared, plan)
    return np.array([scores.part_of_sum(n, MaskRequest(round, (), prepared.first, 64)) for n in prepared.silos])


@pytest.mark.parametrize("by_span", [False, True])
def test_the_opened_sum_is_that_of_all_parts_and_says_what_all_silos_score(by_span: bool) -> None:
    prepared = prepare(spec(policy={"by_span": by_span}), dataset=DATA)
    plan = prepared.plan.scores
    assert plan is not None
    task = ScoreTask(1, tuple(prepared.silos), prepared.first)
    (found,) = score_engine_of(prepared, plan).score(task)
    assert isinstance(found, SumScore)
    assert found.silos == tuple(sorted(prepared.silos))
    np.testing.assert_array_equal(found.sums * STEPS, parts(prepared).sum(0))
    result = play(prepared)
    assert [done.round for done in result.rounds if done.private] == [1, 3]
    assert set(result.private) == {ALL}
    assert set(result.private[ALL]) == {"accuracy", "auc", "calibration_error"}
    assert result.guarantee.standing is Standing.PROVED
    assert result.guarantee.epsilon <= 6.0
    assert result.guarantee.epsilon == pytest.approx(prepared.plan.guarantee().epsilon)


@pytest.mark.parametrize("by_span", [False, True])
def test_scores_are_near_those_of_the_people_whom_silos_hold_out(by_span: bool) -> None:
    quiet = {"measures": ["accuracy"], "noise_multiplier": 0.05}
    asked = spec(
        policy={"by_span": by_span},
        privacy={"epsilon": None, "noise_multiplier": 5.0},
        evaluation={"private": quiet},
    )
    prepared = prepare(asked, dataset=DATA)
    result = play(prepared)
    estimate = result.private[ALL]["accuracy"]
    # Of people, not of items, and by span of everybody once: near, and not the same.
    assert abs(estimate.value - result.scores["test"].accuracy) < 0.1
    assert estimate.noise < estimate.both


def test_each_silo_adds_its_share_of_the_noise() -> None:
    prepared = prepare(spec(evaluation={"private": {"measures": ["accuracy"]}}), dataset=DATA)
    plan, trust = prepared.plan.scores, prepared.plan.trust
    assert plan is not None
    assert trust is not None
    seen = trust.sum_noise(plan.form.noise_multiplier)
    # A person in three silos moves the sum by three; a run has one score at its end.
    assert DEFAULT.epsilon(gaussian(seen / 3), 1e-5) == pytest.approx(6.0, rel=0.02)
    empty = scores_in_process(replace(prepared, held_out={}), plan)
    rounds = amount(400, 2000)
    task = [MaskRequest(round, (), prepared.first, 64) for round in range(rounds)]
    drawn = np.array([empty.part_of_sum(name, each) for name in prepared.silos for each in task])[:, 0] / STEPS
    expected = plan.form.noise_multiplier
    assert expected == pytest.approx(seen / math.sqrt(trust.honest))
    assert stats.kstest(drawn / expected, "norm").pvalue > 1e-4


def without(dataset: Dataset, person: int) -> Dataset:
    kept = np.flatnonzero(dataset.data.subjects != person)
    assert dataset.silos is not None
    return replace(dataset, data=dataset.data.take(kept), silos=dataset.silos[kept])


@pytest.mark.thorough
@pytest.mark.parametrize("by_span", [False, True])
def test_a_person_who_leaves_the_file_moves_the_sum_by_what_is_priced_and_no_parameter(by_span: bool) -> None:
    size = {"items": 200, "subjects": 60}
    asked = spec(policy={"by_span": by_span}, silos={"sizes": {f"clinic-{n}": size for n in range(SILOS)}})
    whole = prepare(asked, dataset=DATA)
    plan = whole.plan.scores
    assert plan is not None
    held = sorted({int(who) for data in whole.held_out.values() for who in data.subjects})
    moved = []
    for person in held[: amount(12, quick=6)]:
        left = prepare(asked, dataset=without(DATA, person))
        assert left.plan == whole.plan
        # The noise is seeded: what is left of the difference is the person.
        moved.append(np.linalg.norm((parts(whole) - parts(left)).sum(0)) / STEPS)
    reach = plan.form.reach * (1 if by_span else 3)
    assert 0.2 * reach < max(moved) <= reach
    left = prepare(asked, dataset=without(DATA, held[0]))
    assert torch.equal(play(left).vector, play(whole).vector)


def test_fewer_silos_than_must_answer_open_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(spec(), dataset=DATA)
    plan = prepared.plan.scores
    assert plan is not None
    engine: Any = score_engine_of(prepared, plan)
    broken, made = set(list(prepared.silos)[:2]), engine.sums.post.score

    def fail(silo: str, request: MaskRequest) -> Any:
        if silo in broken:
            raise RuntimeError("lost")
        return made(silo, request)

    monkeypatch.setattr(engine.sums.post, "score", fail)
    answers = list(engine.score(ScoreTask(1, tuple(prepared.silos), prepared.first)))
    assert all(isinstance(answer, SiloFault) for answer in answers)
    assert {answer.silo for answer in answers} == set(prepared.silos)


def test_prices_are_those_of_a_sum() -> None:
    rows = prepare(spec(evaluation={"private": None}), dataset=DATA).plan
    form = ScoreForm(noise_multiplier=2.0, measures=("accuracy",))
    seen = rows.trust.sum_noise(2.0)  # type: ignore[union-attr]
    for own_coins in (False, True):
        terms = add_score_terms(rows.terms, list(rows.rows), form, 3, own_coins=own_coins)
        once = dict.fromkeys(DATA.silos.tolist(), 1)  # type: ignore[union-attr]
        assert terms.scores is not None
        assert terms.scores[Unit.SUBJECT].event(once) == gaussian(seen / 3)
        assert terms.scores[Unit.ITEM].event(once) == gaussian(seen)
        assert terms.split == ()  # of plain Gaussians, all or none of a person's silos is the worst
    span = form.model_copy(update={"by_span": True})
    terms = add_score_terms(rows.terms, list(rows.rows), span, 3, own_coins=True)
    assert terms.scores is not None
    assert terms.scores[Unit.SUBJECT].event(dict.fromkeys(once, 4)) == repeat(gaussian(seen), 4)


def test_divisions_of_silos_cover_every_division() -> None:
    for span in (1, 2, 5, 17, 60, 256):
        cells = list(divide_silos(span))
        for held in range(1, span):
            assert any(trained >= span - held and most >= held for trained, most in cells)
    assert len(cells) < 40


def test_slack_is_in_the_noise_of_a_sum() -> None:
    prepared = prepare(spec(evaluation={"private": {"measures": ["accuracy"]}}), dataset=DATA)
    form = prepared.plan.scores.form  # type: ignore[union-attr]
    estimate = play(prepared).private[ALL]["accuracy"]
    people = sum(prepared.plan.scores.sizes.values())  # type: ignore[union-attr]
    spread = form.noise_multiplier * (1 + SLACK) * math.sqrt(SILOS) / (2 * people)
    assert estimate.noise == pytest.approx(1.959964 * spread, rel=1e-4)
