"""Silos in several processes: the same model to the last bit, and a run that goes on after the loss of one.

Processes are started for real; they take seconds each, most of them to import torch.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ranks
from backbones import write_backbone
from started import PATIENCE, alive, children, model, recorded, running, spent, there, wait_until
from wholegrain.engines import distributed
from wholegrain.engines.distributed import RankAssignment
from wholegrain.engines.processes import _free_port
from wholegrain.errors import RunError, SpecError
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate
from wholegrain.runs.engine_choice import EngineChoice, open_engine
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import load

pytestmark = pytest.mark.exact_prices  # as the processes that are started price

CLINICS = """
seed = 3
[data]
source = "clinics"
options = { patients = 120, clinics = 5, span = 2, visits = 5 }
[policy]
name = "subject_dp"
rate = 0.5
[privacy]
epsilon = 40.0
delta = 1e-5
[rounds]
count = 3
steps = 2
"""
PUBLIC = (
    "model.name=mlp",
    "model.options.hidden=[4]",
    "model.start=b.safetensors",
    "model.train=low_rank",
    "model.rank=2",
)
LOW_RANK = tuple(part for change in PUBLIC for part in ("--set", change))
HEAD = (*LOW_RANK, "--set", "model.train=head")
COHORT = ("--set", "rounds.cohort=3", "--set", "rounds.averaging=items", "--set", "rounds.count=4")
LONG = ("--set", "rounds.count=30")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "clinics.toml"
    path.write_text(CLINICS)
    monkeypatch.chdir(tmp_path)  # from which a path of --set counts
    write_backbone(tmp_path / "b.safetensors", features=10)
    return path


@pytest.mark.slow
def test_the_model_is_the_same_on_any_number_of_processes(here, spec: Path, tmp_path: Path) -> None:
    """With the head of a public start; without one, see the runs that lose a process."""
    alone, one, two = (tmp_path / name for name in ("alone", "one", "two"))
    distributed = ("--quiet", "--engine", "distributed", *HEAD)
    assert here("run", spec, "--out", alone, "--quiet", *HEAD)[0] == 0
    assert here("run", spec, "--out", one, *distributed)[0] == 0
    assert here("run", spec, "--out", two, *distributed, "--processes", 2)[0] == 0
    assert model(one) == model(two) == model(alone)
    assert spent(one) == spent(two) == spent(alone)


@pytest.mark.slow
def test_secure_sums_are_the_same_on_any_number_of_processes(here, spec: Path, tmp_path: Path) -> None:
    """Every silo masks its part where it is, and helps rank 0 to open the sum."""
    changes = ("rounds.steps=1", "rounds.averaging=subjects", "trust.model=secure_sum", "policy.by_span=true")
    summed = tuple(part for change in changes for part in ("--set", change))
    assert here("run", spec, "--out", tmp_path / "alone", "--quiet", *summed)[0] == 0
    several = ("--engine", "distributed", "--processes", 2)
    assert here("run", spec, "--out", tmp_path / "two", "--quiet", *summed, *several)[0] == 0
    assert model(tmp_path / "two") == model(tmp_path / "alone")
    assert spent(tmp_path / "two") == spent(tmp_path / "alone")


@pytest.mark.slow
def test_torchrun_gives_the_same_model_and_one_record_with_a_cohort_of_some_silos(
    here, spec: Path, tmp_path: Path
) -> None:
    """With low-rank updates of a public start."""
    alone, one, two = (tmp_path / name for name in ("alone", "one", "two"))
    distributed = ("--engine", "distributed", *LOW_RANK, *COHORT)
    assert here("run", spec, "--out", alone, *LOW_RANK, *COHORT)[0] == 0
    assert here("run", spec, "--out", one, *distributed)[0] == 0
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = there("run", spec, "--out", two, *distributed, launcher=torchrun)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Record:") == 1
    assert model(one) == model(two) == model(alone)
    assert spent(one) == spent(two) == spent(alone)
    assert {len(cohort) for _, cohort in spent(two)} == {3}


# Ranks of a group, with silos that train in no time.


def play(count: int) -> list[ranks.Seen]:
    """What rank 0 of so many saw."""
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(count)}
    group = [
        subprocess.Popen(
            [sys.executable, ranks.__file__],
            env={**os.environ, **world, "RANK": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in group]
    finally:
        for process in group:
            process.kill()
    assert [process.returncode for process in group] == [0] * count
    return json.loads(said[0])


class Alone:
    """All silos in one process."""

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        return (ranks.Letters(ranks.SILOS).answer(silo, task) for silo in task.silos)


@pytest.mark.slow
def test_answers_and_faults_come_in_the_order_of_the_cohort_from_any_rank() -> None:
    seen = play(3)
    assert seen == [ranks.cohorts(Alone(), size) for size in ranks.SIZES]
    assert ["B", "ValueError: silo B broke in round 0, σ → ∞"] in seen[0][0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_every_silo_has_one_owner(size: int) -> None:
    spread = RankAssignment(ranks.SILOS, size)
    owned = [spread.silos_of(number) for number in range(size)]
    assert sorted(sum(owned, ())) == sorted(ranks.SILOS)
    assert all(spread.owner(silo) == number for number, silos in enumerate(owned) for silo in silos)
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


# The loss of a process.


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_with_a_sentence_and_the_run_goes_on(
    here, spec: Path, tmp_path: Path
) -> None:
    assert here("run", spec, "--out", tmp_path / "alone", "--quiet", *LONG)[0] == 0
    broken = tmp_path / "broken"
    options = ("--quiet", "--engine", "distributed", "--processes", 3)
    with running("run", spec, "--out", broken, *options, *LONG) as process:
        wait_until(lambda: recorded(broken) >= 3, process)
        first, second = children(process)
        os.kill(first, signal.SIGKILL)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    (line,) = error.splitlines()
    assert line.startswith("error: A process of the run was lost in round ")
    assert "`wholegrain resume`" in line
    assert not alive(second)
    assert 3 <= recorded(broken) < 30
    assert not (broken / "summary.json").exists()

    copy = shutil.copytree(broken, tmp_path / "copy")
    assert here("resume", broken, "--quiet")[0] == 0
    assert here("resume", copy, "--quiet", "--engine", "distributed", "--processes", 2)[0] == 0
    assert model(broken) == model(copy) == model(tmp_path / "alone")
    assert recorded(broken) == recorded(copy) == 30


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.slow
def test_the_other_ranks_end_with_the_first_and_the_run_goes_on(here, spec: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    with running("run", spec, "--out", broken, "--engine", "distributed", "--processes", 2, *LONG) as process:
        wait_until(lambda: recorded(broken) >= 1, process)
        (other,) = children(process)
        process.kill()
        process.wait()
        wait_until(lambda: not alive(other))
    assert here("resume", broken, "--quiet")[0] == 0
    assert recorded(broken) == 30


def stop_in_the_middle(prepared: PreparedRun) -> None:
    """Two answers of five, the second from the other process."""
    silos = tuple(prepared.silos)
    with open_engine(prepared, EngineChoice("distributed", 2)) as engine:
        answers = engine.run(RoundTask(0, silos, 1, prepared.first))
        assert [next(answers).silo, next(answers).silo] == list(silos[:2])
        raise KeyboardInterrupt


@pytest.mark.timeout(PATIENCE)
@pytest.mark.slow
def test_a_run_that_is_stopped_in_the_middle_of_a_round_does_not_wait_for_the_others(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["wholegrain", "run", str(spec), "--engine", "distributed", "--processes", "2"])
    prepared = prepare(load(spec))
    with pytest.raises(KeyboardInterrupt):
        stop_in_the_middle(prepared)
    assert "RANK" not in os.environ


# What cannot be meant.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--processes", 2), "The engine 'inprocess' has one process; use --engine distributed for several."),
        (("--engine", "distribute"), "Unknown engine 'distribute' (did you mean 'distributed'?)"),
        (("--engine", "distributed", "--processes", 0), "--processes must be a whole number of at least 1, not 0."),
    ],
)
def test_a_use_that_cannot_be_meant_is_refused(
    here, spec: Path, tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    code, error = here("run", spec, "--out", tmp_path / "run", *options)
    assert code == 2
    assert error.startswith(f"error: {said}")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_one_of_several_processes_must_be_told_so(here, spec: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, error = here("run", spec, "--out", tmp_path / "run")
    assert code == 2
    assert error == "error: This process is one of several; say so with --engine distributed.\n"
    assert not (tmp_path / "run").exists()
    with pytest.raises(SpecError, match=r"There are 2 processes already, and --processes asks for 3"):
        EngineChoice("distributed", 3)
    assert not EngineChoice("distributed").serves
    monkeypatch.setenv("RANK", "1")
    assert EngineChoice("distributed", 2).serves


def test_a_machine_that_tosses_other_coins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose people were spread over silos by two keys would put one of them into too many."""
    own = torch.tensor([3, 4])
    monkeypatch.setattr(distributed.dist, "broadcast", lambda tensor, src: tensor.copy_(torch.tensor([3, 4])))
    distributed.require_same_coins(own)
    monkeypatch.setattr(distributed.dist, "broadcast", lambda tensor, src: tensor.copy_(torch.tensor([3, 5])))
    with pytest.raises(RunError, match=r"other coins than the first one.*WHOLEGRAIN_STATE"):
        distributed.require_same_coins(own)
    assert own.tolist() == [3, 4]
