"""One subject leaves the file: nobody else changes, sums move as far as was priced, and what is public stays.

Faults that were planted again, each by what the code once did: a cap, a hold-out and a partition that were drawn by
position from a known seed.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backbones import public_model, write_backbone
from planted_faults import findings, short_sums
from wholegrain._random import Purpose, generator
from wholegrain.audit.auditing import AuditSettings, audit
from wholegrain.audit.findings import Audit, AuditVerdict
from wholegrain.audit.neighbours import Neighbours, build_file, neighbours
from wholegrain.audit.removal import affordable, from_the_file, moves
from wholegrain.audit.simulate import ignore_updates, noise_like, simulate_run
from wholegrain.clipping.rounding import SLACK
from wholegrain.data import partition
from wholegrain.data import table as data_table
from wholegrain.data.dataset import Dataset
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData, rank_within
from wholegrain.runs import datasets
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec, load
from wholegrain.silo.training import Silo

OTHERS, SUMS, PUBLIC = (
    "one subject leaves the file: others",
    "one subject leaves the file: sums",
    "one subject leaves the file: public facts",
)
CAPPED = {"items_per_subject": 2, "span": 2}
WAYS: dict[str, dict[str, Any]] = {
    "cap": {"silos": CAPPED, "evaluation": {"test": 0.0}},
    "hold-out": {"evaluation": {"test": 0.3, "validation": 0.2}},
    "hold-out of items": {"silos": CAPPED, "evaluation": {"test": 0.3, "by": "item"}},
    "uniform": {"silos": {"partition": "uniform", "count": 3, "items_per_subject": 2}},
    "power": {"silos": {"partition": "power", "count": 3}, "policy": {"name": "higradavg_dp", "rate": 0.5}},
    "by span": {"policy": {"name": "subject_dp", "rate": 1.0, "by_span": True}},
    "whole batches": {"silos": CAPPED, "policy": {"name": "user_ldp", "rate": 0.5}},
    "single items": {"silos": {"span": 2}, "policy": {"name": "local_item_dp", "rate": 0.5}},
    "groups": {"silos": {"span": 2}, "policy": {"name": "local_group_dp", "rate": 0.5, "group_cap": 2}},
}


def spec(**sections: Any) -> RunSpec:
    usual = {
        "data": {"source": "clinics", "options": {"patients": 150, "clinics": 3, "span": 2, "visits": 5}},
        "policy": {"name": "subject_dp", "rate": 1.0},
        "privacy": {"noise_multiplier": 20.0},
        "rounds": {"count": 3, "learning_rate": 1.0},
    }
    return RunSpec.of(usual | sections)


def pairs_of(asked: RunSpec) -> tuple[PreparedRun, Any, list[Neighbours]]:
    run, dataset = prepare(asked), load_dataset(asked)
    file = build_file(run, dataset, seed=0)
    return run, file, neighbours(file, seed=0)


@pytest.mark.parametrize("way", WAYS)
def test_nobody_else_changes(way: str) -> None:
    run, file, pairs = pairs_of(spec(**WAYS[way]))
    assert {pair.who for pair in pairs} >= {"a subject", "the subject with most rows", "a made-up subject"}
    assert not any(len(pair.moved_subjects(file)) for pair in pairs)
    found = list(moves(run, file, pairs))
    assert found
    assert all(0 < move.clip_norms <= move.allowed * (1 + SLACK) for move in found)


def test_somebody_who_is_held_out_moves_nothing() -> None:
    run, file, pairs = pairs_of(spec(**WAYS["hold-out"]))
    held_out = [pair for pair in pairs if "held out" in pair.who]
    assert {pair.who for pair in held_out} == {"a subject that is held out", "a made-up subject that is held out"}
    assert not list(moves(run, file, held_out))
    assert not any(pair.silos for pair in held_out)


def test_the_cap_binds_on_made_up_subjects() -> None:
    _, _, pairs = pairs_of(spec(**WAYS["cap"]))
    made_up = next(pair for pair in pairs if pair.who == "a made-up subject")
    assert len(made_up.own) == 3 * 2 * 2  # three times K, in two silos
    kept = [np.isin(silo.data.inputs[:, 0], made_up.own).sum() for silo in made_up.within.silos.values()]
    assert sorted(kept) == [0, 2, 2]


def shuffled_cap(self: SubjectData, most: int, coins: Coins) -> SubjectData:
    """Survivors by a permutation of all positions."""
    shuffled = generator(0, Purpose.CAP, "by position").permutation(self.items)
    return self.take(np.sort(shuffled[rank_within(self.subjects[shuffled]) < most]))


def positions_held_out(
    data: SubjectData, fraction: float, coins: Coins, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A coin for the n-th subject there is."""
    draws = generator(0, Purpose.SPLIT, name).random(data.subject_count)
    held_out = (draws < fraction)[data.index.subjects]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def positions_spread(data: SubjectData, silos: int, coins: Coins) -> NDArray[np.str_]:
    """A silo for the n-th item there is."""
    slots = generator(0, Purpose.PARTITION, "uniform").integers(silos, size=data.items)
    return partition.silo_names(silos)[slots]


FAULTS: dict[str, tuple[str, Any, str, Callable[..., Any]]] = {
    "cap": ("cap", SubjectData, "cap_subjects", shuffled_cap),
    "hold-out": ("hold-out", partition, "split_by_subject", positions_held_out),
    "partition": ("uniform", partition, "uniform", positions_spread),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_coins_by_position_are_a_violation(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, where, name, wrong = FAULTS[fault]
    asked = spec(**WAYS[way])
    assert audited(asked).verdict is AuditVerdict.CONSISTENT
    monkeypatch.setattr(where, name, wrong)
    found = audited(asked)
    assert found.verdict is AuditVerdict.VIOLATION
    assert found.failed == (OTHERS, SUMS)


@pytest.mark.slow
def test_the_attack_measures_what_coins_by_position_give_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an attacker would, who knows the seed: with noise, and by what silos send."""
    monkeypatch.setattr(partition, "uniform", positions_spread)
    found = audited(spec(**WAYS["uniform"], privacy={"epsilon": 1.0}), runs=60)
    assert found.proved.epsilon <= 1.0
    assert min(findings(found, "file")) > found.proved.epsilon


def test_a_clip_of_whole_batches_hides_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo that the subject is in may turn round whatever happens there; who else changed is told by itself."""
    monkeypatch.setattr(SubjectData, "cap_subjects", shuffled_cap)
    assert OTHERS in audited(spec(**WAYS["whole batches"])).failed


@pytest.mark.slow
def test_sizes_that_were_declared_stay() -> None:
    sizes = {"*": {"items": 100, "subjects": 50}}
    declared, counted = (check(audited(spec(silos=CAPPED | more)), PUBLIC) for more in ({"sizes": sizes}, {}))
    assert declared.seen == "the same"
    assert "a simulation reads sizes off the data" in counted.seen
    assert declared.passed
    assert counted.passed


@pytest.mark.slow
def test_sizes_that_are_counted_although_they_were_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    right = datasets._silo

    def counted(*arguments: Any) -> Silo:
        silo = right(*arguments)
        return replace(silo, facts=replace(silo.facts, items=silo.data.items))

    monkeypatch.setattr(datasets, "_silo", counted)
    found = audited(spec(silos=CAPPED | {"sizes": {"*": {"items": 100, "subjects": 50}}}))
    assert found.verdict is AuditVerdict.VIOLATION
    assert found.failed == (PUBLIC,)


TABLE = """
[data.table]
path = "people.csv"
subject = "person"
silo = "place"
target = { column = "ill", classes = ["no", "yes"] }
[data.table.features]
age = { low = 0, high = 100 }
[silos]
items_per_subject = 2
[policy]
name = "subject_dp"
rate = 1.0
[privacy]
noise_multiplier = 20.0
[rounds]
count = 2
"""


def table(folder: Path) -> Path:
    """People with up to five rows, of which silos keep two; ids that are neither numbers nor in order."""
    draws, lines = np.random.default_rng(0), ["person,place,age,ill"]
    for person in range(120):
        for _ in range(int(draws.integers(1, 6))):
            place, age = ("north", "south")[draws.integers(2)], int(draws.integers(100))
            lines.append(f"p{person * 7919 % 120},{place},{age},{'yes' if age > 60 else 'no'}")
    (folder / "people.csv").write_text("\n".join(lines))
    (folder / "people.toml").write_text(TABLE)
    return folder / "people.toml"


@pytest.mark.slow
def test_a_capped_table_with_a_hold_out(wholegrain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_sums(monkeypatch)
    arguments = ("audit", table(tmp_path), "--canaries", "200", "--runs", "8", "--no-membership")
    right = wholegrain(*arguments)
    assert right.code == 0, right.out
    assert "Verdict: consistent" in right.out
    assert "nobody changes" in right.out
    monkeypatch.setattr(partition, "split_by_subject", positions_held_out)
    wrong = wholegrain(*arguments)
    assert wrong.code == 1
    assert "Not as it was priced: one subject leaves the file: others" in wrong.out


def test_rows_of_a_table_leave_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes that count subjects are a fault of reading, which no data set in memory shows."""
    monkeypatch.setattr("wholegrain.data.table.subject_codes", lambda ids: np.unique(list(ids), return_inverse=True)[1])
    _, file, pairs = pairs_of(load(table(tmp_path), ()))
    assert any(len(pair.moved_subjects(file)) for pair in pairs)


@pytest.mark.parametrize(
    ("train", "rank"),
    [
        ("head", None),
        pytest.param("low_rank", 1, marks=pytest.mark.slow),
        pytest.param("all", None, marks=pytest.mark.slow),
    ],
)
def test_models_with_a_frozen_part(train: str, rank: int | None, tmp_path: Path) -> None:
    write_backbone(tmp_path / "b.safetensors")
    options = {"patients": 80, "clinics": 2, "span": 1, "visits": 4, "features": 3}
    asked = spec(
        data={"source": "clinics", "options": options},
        silos={"items_per_subject": 2, "span": 1},
        model=public_model(str(tmp_path / "b.safetensors"), train, rank),
        policy={"name": "subject_dp", "rate": 0.5},
        privacy={"noise_multiplier": 1.2},
    )
    found = audited(asked, canaries=1000)
    assert found.verdict is AuditVerdict.CONSISTENT
    assert found.epsilon > 0.2 * found.proved.epsilon
    assert found.failed == ()


SERVERS = [
    {"step": "momentum", "learning_rate": 0.5, "average": "tail"},
    {"step": "adam", "learning_rate": 0.01, "average": "exponential"},
]


@pytest.mark.parametrize("server", SERVERS)
def test_the_last_model_is_the_one_that_the_run_keeps(server: dict[str, Any]) -> None:
    run = prepare(spec(server=server, rounds={"count": 4, "learning_rate": 1.0}))
    *_, last = simulate_run(run, run.first, ignore_updates)
    with open_guard(run, "run") as guard:
        assert torch.equal(last, execute(run, guard).vector)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.slow
def test_a_server_with_a_step_of_its_own(server: dict[str, Any]) -> None:
    found = audited(spec(server=server, privacy={"noise_multiplier": 3.0}), canaries=1000)
    assert found.verdict is AuditVerdict.CONSISTENT
    assert found.failed == ()


def test_a_release() -> None:
    """Coins of the operating system, noise on a grid, sizes declared."""
    sizes = {f"clinic-{number}": {"items": 60, "subjects": 50} for number in range(3)}
    found = audited(spec(silos=CAPPED | {"sizes": sizes}, privacy={"noise_multiplier": 3.0, "noise": "secure"}))
    assert found.verdict is AuditVerdict.CONSISTENT
    assert found.failed == ()
    assert check(found, PUBLIC).seen == "the same"


@pytest.mark.slow
def test_the_score_is_a_log_likelihood_ratio_where_everybody_is_in_every_batch() -> None:
    """E[e^L | out] = 1 and E[e^−L | in] = 1."""
    run, file, pairs = pairs_of(spec(privacy={"noise_multiplier": 2.0}, rounds={"count": 1, "learning_rate": 1.0}))
    pair = next(pair for pair in pairs if pair.who == "a made-up subject")
    found = from_the_file(run, file, pair, noise_like(run), runs=400, seed=0)
    level = found.scores["level"]
    assert len(level) == 400
    assert np.exp(level[~found.coins]).mean() == pytest.approx(1.0, abs=0.25)
    assert np.exp(-level[found.coins]).mean() == pytest.approx(1.0, abs=0.25)
    assert level[found.coins].mean() - level[~found.coins].mean() == pytest.approx(3 / 2.0**2, rel=0.25)  # three silos


def test_costly_gradients_are_tried_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepare(spec(rounds={"count": 10, "learning_rate": 1.0}))
    assert affordable(run, run.silos, 50) == (50, 10)
    monkeypatch.setattr("wholegrain.audit.removal.WORK", 0.0)
    assert affordable(run, run.silos, 50) == (10, 1)
    assert affordable(run, run.silos, 4) == (4, 2)


FEW = AuditSettings(canaries=200, runs=8, subjects=1000)


def audited(asked: RunSpec, **settings: Any) -> Audit:
    dataset: Dataset = load_dataset(asked)
    few = {"canaries": FEW.canaries, "runs": FEW.runs, "subjects": FEW.subjects}
    return audit(prepare(asked, dataset=dataset), dataset, AuditSettings(**few | settings))


def check(found: Audit, name: str) -> Any:
    return next(each for each in found.checks if each.name == name)


def scaled_by_what_is_there(frame: Any, layout: Any) -> NDArray[np.float32]:
    found = REAL_FEATURES(frame, layout)
    return (found / np.abs(found).max(0, initial=1e-6)).astype(np.float32)


REAL_FEATURES = data_table.encode_features


@pytest.mark.parametrize("planted", [False, True], ids=["declared", "observed"])
def test_a_scale_that_is_read_off_the_rows_is_a_change_of_others(
    planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"p{k},{'ns'[k % 2]},{k % 7 + k / 100},{'ny'[k % 3 > 0]}" for k in range(60)]
    (tmp_path / "rows.csv").write_text("id,silo,x,y\n" + "\n".join(lines))
    declared = {
        "path": str(tmp_path / "rows.csv"),
        "subject": "id",
        "silo": "silo",
        "target": {"column": "y", "classes": ["n", "y"]},
        "features": {"x": {"low": 0, "high": 20}},
    }
    if planted:
        monkeypatch.setattr(data_table, "encode_features", scaled_by_what_is_there)
    _, file, pairs = pairs_of(spec(data={"source": "table", "table": declared}))
    assert any(len(pair.moved_subjects(file)) for pair in pairs) is planted
