"""Runs of an experiment: made once, gone on with where they stopped, and none lost to another's fault."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from small_runs import Stopped
from wholegrain.errors import RunError, SpecError
from wholegrain.policies.guarantees import federation_epsilon
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec
from wholegrain_reproduction import run_trials
from wholegrain_reproduction.recipes import Kind
from wholegrain_reproduction.results import read_results
from wholegrain_reproduction.run_trials import (
    Outcome,
    read_seconds,
    read_true_epsilon,
    run_all,
    run_trial,
    true_epsilon_file,
)
from wholegrain_reproduction.subject_epsilon import TrueEpsilon, price_printed_run
from wholegrain_reproduction.trials import PaperTrial, trial_key

VISITS = 6


def trial(
    algorithm: str = "local_group_dp", kind: Kind = Kind.PRINTED, variant: str = "", **changes: dict[str, Any]
) -> PaperTrial:
    printed = kind in (Kind.PRINTED, Kind.EXACT)
    sections: dict[str, Any] = {
        "data": {"source": "clinics", "options": {"patients": 60, "clinics": 4, "span": 2, "visits": VISITS}},
        "silos": {"items_per_subject": None, "surplus": "refuse"} if printed else {"items_per_subject": VISITS},
        "policy": {"name": algorithm, "batch_size": 8, "as_printed": printed, "group_cap": None if printed else 2},
        "privacy": {"epsilon": 1.0},
        "rounds": {"count": 4, "steps": 1, "learning_rate": 1.0},
    }
    for section, change in changes.items():
        sections[section] = {**sections.get(section, {}), **change}
    counterpart = trial_key("tiny", variant, algorithm, Kind.PRINTED) if kind is Kind.TRUE else None
    return PaperTrial("tiny", variant, algorithm, kind, RunSpec.of(sections), VISITS, counterpart)


def ignore(outcome: Outcome) -> None:
    pass


def stopped(*arguments: Any) -> None:
    raise Stopped


def model(out: Path, made: PaperTrial) -> bytes:
    return (out / made.key / "model.safetensors").read_bytes()


def test_what_is_finished_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial("user_ldp")
    assert run_trial(made, tmp_path).status == "done"
    before = (tmp_path / made.key / "summary.json").stat().st_mtime_ns
    monkeypatch.setattr(run_trials, "prepare", None)
    assert run_trial(made, tmp_path) == Outcome(made, "already done")
    assert (tmp_path / made.key / "summary.json").stat().st_mtime_ns == before


def test_what_was_stopped_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial("fedavg")
    run_trial(made, tmp_path / "whole")
    add, seen = run_trials.RunFolder.add_round, []

    def stop(folder: run_trials.RunFolder, *round: Any) -> None:
        add(folder, *round)
        seen.append(round[0].round)
        if len(seen) == 2:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(run_trials.RunFolder, "add_round", stop)
        with pytest.raises(Stopped):
            run_trial(made, tmp_path / "stopped")
        assert not (tmp_path / "stopped" / made.key / "summary.json").exists()
        assert run_trial(made, tmp_path / "stopped").status == "gone on with"
    assert seen == [0, 1, 2, 3]
    assert model(tmp_path / "stopped", made) == model(tmp_path / "whole", made)


def test_what_a_run_took_is_kept_over_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock = trial("fedavg"), iter([10.0, 13.0, 20.0, 22.0, 30.0, 39.0])
    monkeypatch.setattr(run_trials.time, "process_time", lambda: next(clock))
    with monkeypatch.context() as patch:
        patch.setattr(run_trials.RunFolder, "finish", stopped)
        with pytest.raises(Stopped):
            run_trial(made, tmp_path)
    assert read_seconds(tmp_path / made.key) == 3.0
    assert run_trial(made, tmp_path).status == "gone on with"
    assert run_trial(made, tmp_path).status == "already done"
    assert read_seconds(tmp_path / made.key) == 5.0


def test_one_process_computes_with_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(run_trials, "_run", lambda *_: str(torch.get_num_threads()))
    try:
        torch.set_num_threads(2)
        assert [outcome.status for outcome in run_all([trial("fedavg")], tmp_path, 1, ignore)] == ["1"]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_run_made_again_is_known_by_its_seed(tmp_path: Path) -> None:
    first, again = trial("fedavg"), replace(trial("fedavg"), seed=1)
    again = replace(again, spec=again.spec.model_copy(update={"seed": 1}))
    run_all([first, again], tmp_path, 1, ignore)
    found = read_results([first, again], tmp_path)
    assert set(found.by_key) == {first.key}
    assert set(found.repeats[1]) == {first.key}
    assert found.of_trial(again) == found.repeats[1][first.key] != found.of_trial(first)


def test_one_that_fails_does_not_lose_the_others(tmp_path: Path) -> None:
    bad = trial("fedavg", variant="bad", data={"options": {"patients": 60, "visit": 3}})
    trials = [bad, trial("fedavg")]
    told: list[Outcome] = []
    outcomes = run_all(trials, tmp_path, 1, told.append)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert "has no option 'visit'" in outcomes[0].error
    assert told == outcomes


def test_runs_that_claims_are_judged_from_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_trials, "_run", lambda *_: "done")
    kinds = [Kind.TRUE, Kind.CLAIMED, Kind.PRINTED, Kind.EXACT, Kind.MORE_LOTS]
    outcomes = run_all([trial(kind=kind) for kind in kinds], tmp_path, 1, ignore)
    done = [outcome.trial.kind for outcome in outcomes]
    assert done == [Kind.PRINTED, Kind.MORE_LOTS, Kind.CLAIMED, Kind.EXACT, Kind.TRUE]


@pytest.mark.slow
def test_several_processes_give_the_same(tmp_path: Path) -> None:
    trials = [trial("fedavg"), trial("fedavg", variant="other", rounds={"learning_rate": 0.5})]
    outcomes = run_all(trials, tmp_path / "two", 2, ignore)
    assert sorted(outcome.status for outcome in outcomes) == ["done", "done"]
    for made in trials:
        run_trial(made, tmp_path / "one")
        assert model(tmp_path / "two", made) == model(tmp_path / "one", made)


def test_other_settings_in_the_same_place_are_refused(tmp_path: Path) -> None:
    run_trial(trial("fedavg"), tmp_path)
    outcome = run_trial(trial("fedavg", rounds={"count": 2}), tmp_path)
    assert "was made with other settings" in outcome.error


@pytest.mark.slow
def test_a_sound_run_is_put_beside_a_printed_one_at_what_that_is_worth(tmp_path: Path) -> None:
    printed, sound = trial("higradavg_dp"), trial("higradavg_dp", Kind.TRUE)
    outcomes = run_all([sound, printed], tmp_path, 1, ignore)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    found = read_true_epsilon(tmp_path / printed.key)
    assert found is not None
    assert math.isinf(found.subject)
    summary = json.loads((tmp_path / sound.key / "summary.json").read_text())
    proved = next(g for g in summary["spent"] if g["unit"] == "subject")
    assert proved["standing"] == "PROVED"
    assert found.granted * 0.998 <= proved["epsilon"] <= found.granted
    assert run_trial(sound, tmp_path).status == "already done"


def test_nothing_is_put_beside_a_run_that_protects_nobody(tmp_path: Path) -> None:
    sound = trial("higradavg_dp", Kind.TRUE)
    file = true_epsilon_file(tmp_path / str(sound.counterpart))
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(TrueEpsilon(item=1.0, subject=math.inf, granted=math.inf, noise=1.0).facts()))
    assert run_trial(sound, tmp_path).status == "skipped"
    assert not (tmp_path / sound.key).exists()


def test_without_its_printed_run_there_is_nothing_to_go_by(tmp_path: Path) -> None:
    assert "has not been made" in run_trial(trial("higradavg_dp", Kind.TRUE), tmp_path).error


def test_a_worth_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    true_epsilon_file(tmp_path / "run").write_text("[]")
    with pytest.raises(RunError, match="cannot be read"):
        read_true_epsilon(tmp_path / "run")


@pytest.mark.parametrize("algorithm", [pytest.param("local_item_dp", marks=pytest.mark.slow), "user_ldp"])
def test_what_can_be_proved_is_no_less_than_the_exact_price(algorithm: str) -> None:
    made = trial(algorithm)
    found = price_printed_run(prepare(made.spec), VISITS)
    declared = {"items_per_subject": VISITS, "surplus": "refuse"}
    plan = prepare(trial(algorithm, silos=declared).spec).plan
    exact = federation_epsilon(
        plan.rows, plan.horizon.releases(), Unit.SUBJECT, len(plan.rows), plan.accountant, plan.delta
    )
    assert exact <= found.subject <= 2 * exact  # the smallest silo has 29 items, the largest 47
    assert found.granted == found.subject


@pytest.mark.parametrize("algorithm", [pytest.param("local_group_dp", marks=pytest.mark.slow), "higradavg_dp"])
@pytest.mark.usefixtures("coarse_prices")
def test_where_private_facts_set_the_noise_nothing_is_proved(algorithm: str) -> None:
    found = price_printed_run(prepare(trial(algorithm).spec), VISITS)
    assert math.isinf(found.subject)
    assert 1.0 < found.granted < math.inf  # and granted that, the claim of ε = 1 is still too small
    assert found.epsilon(Unit.SUBJECT) == found.granted


def test_fedavg_is_worth_nothing() -> None:
    found = price_printed_run(prepare(trial("fedavg").spec), VISITS)
    assert math.isinf(found.epsilon(Unit.SUBJECT))
    assert TrueEpsilon.of(found.facts()) == found


def test_a_bound_that_the_data_exceeds_is_refused() -> None:
    with pytest.raises(SpecError, match="set silos"):
        price_printed_run(prepare(trial("user_ldp").spec), 1)
