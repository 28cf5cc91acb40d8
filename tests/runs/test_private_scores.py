"""Private scores of a run: paid before they are computed, side by side with training, and about other people."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import BudgetError, SpecError
from wholegrain.federation.messages import ScoreTask, SiloScore
from wholegrain.federation.private_score import ALL
from wholegrain.federation.round_record import RoundRecord
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.events import WorstOfDpEvent, gaussian, repeat, sampled_gaussian, side_by_side
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Reserved, TermsRecord
from wholegrain.runs.accounts import guard_run
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.runner import execute, open_guard, prepare, scores_in_process
from wholegrain.runs.spec import RunSpec

PATIENTS = 120
DATA = clinics(patients=PATIENTS, clinics=2, span=2)


def spec(private: Mapping[str, Any] | None = None, **sections: Any) -> RunSpec:
    tree: dict[str, Any] = {
        "privacy": {"epsilon": 4.0},
        "rounds": {"count": 5, "learning_rate": 0.5},
        "policy": {"rate": 0.5},
        "evaluation": {"test": 0.3, "private": dict(private or {})},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return RunSpec.of(tree)


def play(prepared: PreparedRun, **more: Any) -> RunResult:
    with open_guard(prepared, "a run") as guard:
        return execute(prepared, guard, **more)


@pytest.mark.usefixtures("coarse_prices")
def test_scores_come_each_so_many_rounds_and_at_the_end() -> None:
    result = play(prepare(spec({"every": 2}), dataset=DATA))
    assert [done.round for done in result.rounds if done.private] == [1, 3, 4]
    assert set(result.private) == {ALL, "clinic-0", "clinic-1"}
    again = RoundRecord.read(result.rounds[1].line())
    assert again.private[ALL]["accuracy"].value == pytest.approx(result.rounds[1].private[ALL]["accuracy"].value)
    summary = RunSummary.of(result)
    assert RunSummary.read(summary.facts()).private.keys() == summary.private.keys()


@pytest.mark.usefixtures("coarse_prices")
def test_what_a_person_pays_is_the_larger_of_training_and_scores() -> None:
    cheap = prepare(spec({"noise_multiplier": 100.0}), dataset=DATA).plan
    alone = prepare(spec(evaluation={"private": None}), dataset=DATA).plan
    assert cheap.guarantee().epsilon == pytest.approx(alone.guarantee().epsilon, rel=1e-6)
    dear = prepare(
        spec({"noise_multiplier": 0.9}, privacy={"epsilon": 20.0, "noise_multiplier": 9.0}), dataset=DATA
    ).plan
    # Of each of the two silos that may hold a person, one score.
    assert dear.guarantee().epsilon == pytest.approx(DEFAULT.epsilon(repeat(gaussian(0.9), 2), 1e-5), rel=0.01)
    assert "nobody for both" in dear.guarantee().because


@pytest.mark.usefixtures("coarse_prices")
def test_a_share_of_the_budget_is_what_scores_cost_whoever_is_held_out() -> None:
    plan = prepare(spec({"share": 0.25, "every": 2}), dataset=DATA).plan
    assert plan.scores is not None
    cost = DEFAULT.epsilon(repeat(gaussian(plan.scores.form.noise_multiplier), 3 * 2), 1e-5)
    assert 0.95 < cost <= 1.0


@pytest.mark.usefixtures("coarse_prices")
def test_a_score_that_the_budget_cannot_pay_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(BudgetError, match="private scores cost"):
        prepare(spec({"noise_multiplier": 0.5}), dataset=DATA)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"evaluation": {"by": "item"}}, "are not trained on"),
        ({"evaluation": {"test": 0.0}}, "nobody is held out"),
        ({"privacy": {"epsilon": None, "noise_multiplier": 4.0}}, "share of the budget"),
    ],
)
@pytest.mark.usefixtures("coarse_prices")
def test_what_cannot_be_scored_privately_is_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        prepare(spec(**sections), dataset=DATA)


@pytest.mark.usefixtures("coarse_prices")
def test_where_some_items_are_scored_no_single_item_is_promised_anything() -> None:
    """An item that leaves lets another of the same person in: an answer turns round, which is twice what is priced."""
    item = {"policy": {"name": "local_item_dp"}, "privacy": {"unit": "item", "noise_multiplier": 3.0, "epsilon": 50.0}}
    item["silos"] = {"items_per_subject": 60}
    score = {"noise_multiplier": 3.0}
    assert prepare(spec(score, **item), dataset=DATA).plan.guarantee(Unit.ITEM).standing is Standing.PROVED
    with pytest.raises(SpecError, match="lets another in"):
        prepare(spec(score, evaluation={"scored_items": 1}, **item), dataset=DATA)
    whole, some = (prepare(spec(evaluation=each), dataset=DATA).plan for each in ({}, {"scored_items": 1}))
    assert math.isfinite(whole.guarantee(Unit.ITEM).epsilon)
    assert math.isinf(some.guarantee(Unit.ITEM).epsilon)
    assert some.guarantee(Unit.SUBJECT) == whole.guarantee(Unit.SUBJECT)


class Watching:
    """A score engine that looks at the ledger when it is asked."""

    def __init__(self, inner: Any, ledger: Ledger) -> None:
        self.inner, self.ledger, self.seen = inner, ledger, []  # type: ignore[var-annotated]

    def score(self, task: ScoreTask) -> Any:
        self.seen.append(dict(self.ledger.state.runs["a run"].scored))
        return self.inner.score(task)


@pytest.mark.usefixtures("coarse_prices")
def test_scores_are_in_the_ledger_before_they_are_computed() -> None:
    prepared = prepare(spec({"every": 2}), dataset=DATA)
    assert prepared.plan.scores is not None
    with Ledger.in_memory() as ledger:
        guard = guard_run(ledger, "a run", prepared.spec, "clinics", prepared.plan, prepared.noise)
        engine = Watching(scores_in_process(prepared, prepared.plan.scores), ledger)
        result = execute(prepared, guard, score_engine=engine)
        assert engine.seen == [{"clinic-0": n, "clinic-1": n} for n in (1, 2, 3)]
        spent = result.spent(Unit.SUBJECT)
    assert spent.standing is Standing.PROVED
    assert spent.epsilon == pytest.approx(prepared.plan.guarantee().epsilon)


def without(dataset: Dataset, person: int) -> Dataset:
    kept = np.flatnonzero(dataset.data.subjects != person)
    assert dataset.silos is not None
    return replace(dataset, data=dataset.data.take(kept), silos=dataset.silos[kept])


def same(one: SubjectData, other: SubjectData) -> bool:
    pairs = ((one.inputs, other.inputs), (one.targets, other.targets), (one.subjects, other.subjects))
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.usefixtures("coarse_prices")
def test_whoever_leaves_the_file_leaves_training_or_scores_and_never_both() -> None:
    asked = spec({}, silos={"sizes": {"clinic-0": SIZE, "clinic-1": SIZE}})
    whole = prepare(asked, dataset=DATA)
    held = {int(who) for data in whole.held_out.values() for who in data.subjects}
    trained = {int(who) for silo in whole.silos.values() for who in silo.data.subjects}
    assert held
    assert trained
    assert not held & trained
    for person in (min(held), min(trained)):
        left = prepare(asked, dataset=without(DATA, person))
        assert left.plan.guarantees == whole.plan.guarantees
        assert left.plan.scores == whole.plan.scores
        is_held = person in held
        for name in whole.silos:
            training_same = same(left.silos[name].data, whole.silos[name].data)
            scores_same = same(left.held_out[name], whole.held_out[name])
            assert training_same if is_held else scores_same
            present = np.isin(person, whole.held_out[name].subjects if is_held else whole.silos[name].data.subjects)
            assert (scores_same if is_held else training_same) != bool(present)
        # Same noise, same coins: a person who is held out changes no parameter.
        if is_held:
            np.testing.assert_array_equal(play(left).vector.numpy(), play(whole).vector.numpy())


SIZE = {"items": 200, "subjects": 50}


@pytest.mark.usefixtures("coarse_prices")
def test_the_noise_of_a_release_is_scored_by_nothing_that_is_not_paid_for(tmp_path: Path) -> None:
    asked = spec(
        {},
        silos={"sizes": {"clinic-0": SIZE, "clinic-1": SIZE}},
        privacy={"noise": "secure"},
        ledger={"data": "patients", "path": str(tmp_path / "ledger.sqlite"), "epsilon": 12.0},
    )
    result = play(prepare(asked, dataset=DATA))
    assert not result.scores
    assert all(not done.scores for done in result.rounds)
    assert 0.2 < result.private[ALL]["accuracy"].value < 1.5


def test_ledgers_keep_scores_beside_training() -> None:
    terms = prepare(spec({"noise_multiplier": 30.0}, privacy={"noise_multiplier": 9.0}), dataset=DATA).plan.terms
    kept = TermsRecord.model_validate_json(TermsRecord.of(terms).model_dump_json())
    assert kept.terms == terms
    entry = Reserved(run="r", round=1, silo="a", steps=1, stream="s", start="v")
    assert "purpose" not in entry.model_dump_json()
    paid = entry.model_copy(update={"purpose": "scores"})
    assert Reserved.model_validate_json(paid.model_dump_json()) == paid


def test_of_two_gaussians_side_by_side_the_one_with_less_noise_counts() -> None:
    assert side_by_side(repeat(gaussian(4.0), 4), repeat(gaussian(3.0), 2)) == repeat(gaussian(4.0), 4)
    mixed = side_by_side(repeat(sampled_gaussian(0.5, 2.0), 3), gaussian(3.0))
    assert isinstance(mixed, WorstOfDpEvent)
    assert DEFAULT.epsilon(mixed, 1e-5) == max(DEFAULT.epsilon(case, 1e-5) for case in mixed.cases)
    # A filter takes the larger curve at every order.
    account = DEFAULT.as_filter(4.0)
    parts = [account.epsilon(case, 1e-5) for case in (repeat(sampled_gaussian(0.5, 2.0), 3),)]
    assert account.epsilon(mixed, 1e-5) >= max(parts)
    assert account.way(GaussianDpEvent(1.0)) != account.way(mixed)


def test_an_engine_that_answers_nonsense_is_a_fault() -> None:
    prepared = prepare(spec({"noise_multiplier": 30.0}, privacy={"noise_multiplier": 9.0}), dataset=DATA)

    class Odd:
        def score(self, task: ScoreTask) -> Any:
            yield SiloScore("clinic-0", np.full(1, np.nan))
            yield SiloScore("clinic-1", np.zeros(1))

    result = play(prepared, score_engine=Odd())
    assert set(result.private) == {ALL, "clinic-1"}
    assert [fault.silo for fault in result.rounds[-1].faults] == ["clinic-0"]
