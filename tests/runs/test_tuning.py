"""Paid tuning: one price, drawn trials with noise of their own, and nothing of them left but the best."""

import json
import logging
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wholegrain.data.clinics import clinics
from wholegrain.errors import BudgetError, RunError, SpecError, WholegrainError
from wholegrain.privacy.accountants import SELECTION
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.trial_count import TrialCount
from wholegrain.report.run_reader import read_run
from wholegrain.report.wording import conditions, unpaid_words
from wholegrain.runs import tuning_trials
from wholegrain.runs.public_tuning import tune_on_public
from wholegrain.runs.runner import prepare
from wholegrain.runs.setting_origins import Origin
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.tuning import tune
from wholegrain.runs.tuning_setup import prepare_tuning
from wholegrain.runs.tuning_space import SearchSpace
from wholegrain.runs.tuning_trials import PaidBefore

DATA = clinics(patients=80, clinics=2, span=2)
SIZE = {"items": 120, "subjects": 30}
SPACE = SearchSpace.of({"rounds.learning_rate": [0.1, 1.0], "policy.clip_norm": {"low": 0.5, "high": 2.0}})
COUNT = TrialCount(3.0, 1.0)
NOISY = {"private": {"noise_multiplier": 9.0}}

pytestmark = pytest.mark.usefixtures("coarse_prices")


def spec(**sections: Any) -> RunSpec:
    tree: dict[str, Any] = {
        "data": {"source": "clinics", "options": {"patients": 80, "clinics": 2, "span": 2}},
        "privacy": {"epsilon": 6.0},
        "policy": {"rate": 1.0},
        "rounds": {"count": 2, "learning_rate": 0.5},
        "evaluation": {"test": 0.3, "private": {}},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return RunSpec.of(tree)


def release(tmp_path: Path, **sections: Any) -> RunSpec:
    return spec(
        silos={"sizes": {"clinic-0": SIZE, "clinic-1": SIZE}},
        privacy={"epsilon": 6.0, "noise": "secure"},
        ledger={"data": "patients", "path": str(tmp_path / "ledger.sqlite"), "epsilon": 20.0},
        **sections,
    )


def test_the_chosen_run_is_kept_with_the_price_of_the_best_of_all_trials(tmp_path: Path) -> None:
    prepared = prepare_tuning(spec(), SPACE, COUNT)
    told: list[Any] = []
    found = tune(prepared, tmp_path / "out", tell=told.append)
    assert found.chosen is not None
    assert len(told) == len(found.trials) >= 1
    assert max(trial.score for trial in found.trials) == next(
        trial.score for trial in found.trials if trial.settings == found.settings
    )
    run = read_run(tmp_path / "out", "tuned")
    assert run.promise.standing is Standing.PROVED
    assert run.promise.accountant == SELECTION
    assert run.promise.epsilon == pytest.approx(prepared.epsilon, rel=1e-6)
    assert run.promise.epsilon <= 6.0
    assert run.ledger.whole
    assert {place for place, origin in run.origins.items() if origin is Origin.PAID} == {
        "rounds.learning_rate",
        "policy.clip_norm",
    }
    assert not unpaid_words(run)
    assert "2 paid" in dict(conditions(run))["Settings"]
    assert not (tmp_path / ".out.tuning").exists()


def test_a_release_keeps_nothing_of_its_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = prepare_tuning(release(tmp_path), SPACE, COUNT, DATA)
    found = tune(prepared, tmp_path / "out", tell=lambda trial: pytest.fail("somebody was told of a trial"))
    assert found.trials == ()
    assert not (tmp_path / ".out.tuning").exists()
    assert not list(tmp_path.rglob("*trial*"))
    assert found.chosen is None or not found.chosen.scores


def test_nothing_tells_how_many_trials_a_release_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a warning of each that fails, nor how long the rounds of the chosen one took."""
    monkeypatch.setattr(TrialCount, "count_at", lambda *_: 4)
    play, made = tuning_trials.play_rounds, []

    def fail_sometimes(*arguments: Any) -> Any:
        made.append(1)
        logging.getLogger("wholegrain.federation").warning("a word of a trial")
        if len(made) % 2:
            raise RunError("this trial failed")
        return play(*arguments)

    monkeypatch.setattr(tuning_trials, "play_rounds", fail_sometimes)
    found = tune(prepare_tuning(release(tmp_path), SPACE, COUNT, DATA), tmp_path / "out")
    assert len(made) == 4
    assert found.chosen is not None
    assert caplog.messages == []
    assert found.chosen.seconds == 0
    assert {json.loads(line)["seconds"] for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()} == {0}
    logging.getLogger("wholegrain.federation").warning("heard again")
    assert caplog.messages == ["heard again"]


def test_of_equal_scores_the_first_is_kept_and_what_is_no_number_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = iter([math.nan, 0.5, math.inf, 0.5])
    monkeypatch.setattr(TrialCount, "count_at", lambda *_: 4)
    monkeypatch.setattr(tuning_trials, "_rank", lambda played: next(ranks))
    found = tune(prepare_tuning(spec(), SPACE, COUNT), tmp_path / "out")
    assert found.chosen is not None
    assert found.settings == found.trials[1].settings


def test_a_tuning_is_paid_for_before_its_first_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_tuning(release(tmp_path), SPACE, COUNT, DATA)

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning_trials, "make_trial", stop)
    with pytest.raises(KeyboardInterrupt):
        tune(prepared, tmp_path / "out")
    from wholegrain.privacy.ledger import Ledger

    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        (run,) = ledger.state.runs.values()
        assert dict(run.reserved) == {"all trials": 1}
    work = tmp_path / ".out.tuning"
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    before = json.loads((work / "tuning.json").read_text())
    # It goes on with the number that was drawn, and is not paid for again.
    monkeypatch.undo()
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "state"))
    tune(prepared, tmp_path / "out")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert [dict(run.reserved) for run in ledger.state.runs.values()] == [{"all trials": 1}]
    assert before["trials"] >= 1


def test_a_tuning_of_another_space_does_not_go_on_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning_trials, "make_trial", stop)
    with pytest.raises(KeyboardInterrupt):
        tune(prepare_tuning(spec(), SPACE, COUNT), tmp_path / "out")
    other = prepare_tuning(spec(), SearchSpace.of({"rounds.learning_rate": [0.3]}), COUNT)
    with pytest.raises(RunError, match="another spec or space"):
        tune(other, tmp_path / "out")


def test_no_trial_at_all_releases_nothing_and_stays_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialCount, "count_at", lambda *_: 0)
    found = tune(prepare_tuning(spec(), SPACE, TrialCount(3.0)), tmp_path / "out")
    assert found.chosen is None
    assert not (tmp_path / "out").exists()


def test_trials_have_noise_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialCount, "count_at", lambda *_: 3)
    found = tune(prepare_tuning(spec(), SearchSpace.of({"rounds.learning_rate": [0.5]}), COUNT))
    assert len({trial.score for trial in found.trials}) == 3  # the same settings, and other noise


@pytest.mark.slow
def test_several_processes_make_the_same_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialCount, "count_at", lambda *_: 3)
    prepared = prepare_tuning(spec(), SPACE, COUNT)
    alone, together = tune(prepared), tune(prepared, processes=2)
    assert [(each.settings, each.score) for each in together.trials] == [
        (each.settings, each.score) for each in alone.trials
    ]
    assert together.settings == alone.settings


def test_every_combination_that_changes_the_price_is_priced() -> None:
    space = SearchSpace.of({"rounds.count": [2, 4], "rounds.learning_rate": [0.1, 1.0]})
    prepared = prepare_tuning(spec(), space, COUNT)
    assert len(prepared.selection.plans) == 2
    short, long = prepared.selection.noise
    assert long.training > short.training
    assert prepared.epsilon <= 6.0
    chosen = prepared.trial_spec({"rounds.count": 4, "rounds.learning_rate": 0.1})
    assert chosen.privacy.noise_multiplier == long.training
    assert prepare(chosen, dataset=DATA).plan.horizon.rounds == 4


def test_a_trial_releases_no_more_than_was_priced() -> None:
    prepared = prepare_tuning(spec(), SPACE, COUNT)
    payer = PaidBefore(prepared.base.plan, 1.0)
    for round in range(2):
        payer.reserve(round, {"clinic-0": 1, "clinic-1": 1}, "v")
    with pytest.raises(BudgetError):
        payer.reserve(2, {"clinic-0": 1}, "v")


def test_trials_have_private_scores_whether_or_not_the_spec_asks_for_them() -> None:
    asked, silent = spec(), spec(evaluation={"private": None})
    prepared = prepare_tuning(silent, SPACE, COUNT)
    assert prepared.spec.evaluation == prepare_tuning(asked, SPACE, COUNT).spec.evaluation


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"policy": {"name": "fedavg"}}, "must be PROVED"),
        ({"privacy": {"epsilon": None}}, "needs privacy.epsilon"),
        ({"privacy": {"noise_multiplier": 3.0}}, "both, or neither"),
        ({"privacy": {"epsilon": 0.5, "noise_multiplier": 3.0}, "evaluation": NOISY}, "costs ε"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        prepare_tuning(spec(**sections), SPACE, COUNT)


@pytest.mark.parametrize(
    "tree",
    [
        {"policy.clip_norm": [1.0, -1.0]},
        {"policy.clip_norm": {"low": -1.0, "high": 1.0}},
        {"rounds.learning_rate": [0.1, 1e9]},
        {"rounds.learning_rate": [0.1, "fast"]},
        {"model.name": ["logistic", "no_such_model"]},
        {"server.momentum": [0.5, 7.0]},
    ],
)
def test_a_choice_that_no_run_could_have_is_refused_before_anything_is_paid(tree: dict[str, Any]) -> None:
    with pytest.raises(WholegrainError):
        prepare_tuning(spec(), SearchSpace.of(tree), COUNT)


def test_under_secure_sums_trials_are_ranked_by_what_the_sum_says(tmp_path: Path) -> None:
    data = clinics(patients=120, clinics=4, span=2)
    asked = spec(
        data={"options": {"patients": 120, "clinics": 4, "span": 2}},
        silos={"span": 2},
        trust={"model": "secure_sum", "answers": 4},
        rounds={"averaging": "subjects"},
    )
    prepared = prepare_tuning(asked, SPACE, COUNT, data)
    assert prepared.epsilon <= 6.0
    found = tune(prepared)
    assert found.chosen is not None
    assert set(found.chosen.private) == {"all silos"}


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"privacy.epsilon": [1.0, 2.0]},
        {"rounds.count": {"low": 1, "high": 9}},
        {"rounds.learning_rate": []},
        {"rounds.learning_rate": 0.5},
        {"rounds.learning_rate": {"low": 0.0, "high": 1.0, "scale": "log"}},
        {"rounds.learning_rate": {"low": 2.0, "high": 1.0}},
        {"rounds.count": list(range(1, 100))},
        {"seed": [1, 2]},
    ],
)
def test_what_is_no_space_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        SearchSpace.of(tree)


def test_settings_are_drawn_from_the_law_that_the_space_states() -> None:
    rates = {"low": 0.01, "high": 100.0, "scale": "log"}
    space = SearchSpace.of({"rounds": {"learning_rate": rates, "count": [1, 2, 3, 4]}})
    drawn = [space.draw(np.random.default_rng(seed)) for seed in range(800)]
    logs = np.log10([each["rounds.learning_rate"] for each in drawn])
    assert abs(logs.mean()) < 0.15
    assert -2 <= logs.min() < -1.9 < 1.9 < logs.max() <= 2
    assert np.bincount([each["rounds.count"] for each in drawn])[1:].min() > 150


def test_tuning_on_public_data_spends_nothing_and_says_so() -> None:
    public = RunSpec.of({"data": {"source": "clinics", "options": {"patients": 60, "clinics": 2, "span": 2}}})
    found = tune_on_public(spec(), public, SPACE, trials=2)
    assert len(found.trials) == 2
    assert math.isfinite(found.best.score)
    assert "origin.rounds.learning_rate=public" in found.changes()


def test_settings_that_nobody_paid_for_are_told_first(tmp_path: Path) -> None:
    from small_runs import start, write_spec

    path = write_spec(tmp_path / "specs")
    path.write_text(path.read_text() + '\n[origin]\nrounds.learning_rate = "unpaid"\npolicy = "public"\n')
    start(tmp_path / "run", path)
    run = read_run(tmp_path / "run", "run")
    assert run.origins["rounds.learning_rate"] is Origin.UNPAID
    assert run.origins["policy.rate"] is Origin.PUBLIC
    assert run.origins["rounds.count"] is Origin.GIVEN
    assert unpaid_words(run).startswith("UNPAID: rounds.learning_rate was chosen by scores on private people")
    assert {view.unit for view in run.attacks} == {Unit.SUBJECT, Unit.ITEM}


@pytest.mark.parametrize("origin", [{"privacy": "given"}, {"rounds": {"speed": "given"}}])
def test_an_origin_of_something_that_is_no_setting_is_refused(origin: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="origin"):
        prepare(spec(origin=origin), dataset=DATA)
