"""Several ranks for one silo: the same release to the last bit, with one process drawing, paying and adding noise.

Messages are tried between threads; what comes of real processes is in the slow tests.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from backbones import write_backbone
from started import PATIENCE, children, model, recorded, running, spent, there, wait_until
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.parted_sum import PartedSum
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.subjects import SubjectData
from wholegrain.engines import silo_ranks
from wholegrain.engines.distributed import RankAssignment
from wholegrain.engines.inprocess import InProcess
from wholegrain.engines.silo_ranks import HelperRanks, serve_parts, stop_helpers
from wholegrain.errors import LostProcessError, ModelError
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate
from wholegrain.models.dropout import with_item_coins
from wholegrain.models.model_catalog import build
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings
from wholegrain.silo import secure_noise
from wholegrain.silo.noise import NoiseSource, SeededNoise
from wholegrain.silo.secure_noise import SecureNoise
from wholegrain.silo.training import Silo, Trainer

pytestmark = pytest.mark.exact_prices  # as the processes that are started price


class Letters:
    """What `torch.distributed` does, between threads of one process. Whoever is dead breaks every connection to it."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[int, int], queue.Queue[Tensor | None]] = {}
        self.local = threading.local()
        self.dead: set[int] = set()
        self.lock = threading.Lock()

    def box(self, source: int, to: int) -> "queue.Queue[Tensor | None]":
        with self.lock:
            return self.boxes.setdefault((source, to), queue.Queue())

    @property
    def rank(self) -> int:
        return getattr(self.local, "rank", 0)

    def isend(self, tensor: Tensor, dst: int) -> None:
        if dst in self.dead:
            raise RuntimeError("[x.cc:1] Connection closed by peer. And more.")
        self.box(self.rank, dst).put(tensor.clone())

    send = isend

    def recv(self, tensor: Tensor, src: int) -> None:
        found = self.box(src, self.rank).get(timeout=PATIENCE)
        if found is None:
            raise RuntimeError("[x.cc:1] Connection closed by peer. And more.")
        assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
        tensor.copy_(found)

    def irecv(self, tensor: Tensor, src: int) -> "Waiting":
        return Waiting(lambda: self.recv(tensor, src))

    def die(self) -> None:
        self.dead.add(self.rank)
        self.box(self.rank, 0).put(None)


class Waiting:
    def __init__(self, receive: Callable[[], None]) -> None:
        self.receive = receive

    def wait(self, patience: object) -> None:
        self.receive()


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    made = Letters()
    monkeypatch.setattr(silo_ranks, "dist", made)
    return made


@contextlib.contextmanager
def helped(letters: Letters, count: int, gradients: Callable[[], Any]) -> Iterator[HelperRanks]:
    """So many helpers of rank 0, each with an engine of its own; they end when they are told to."""

    def help_out(rank: int, own: ClippedSum) -> None:
        letters.local.rank = rank
        try:
            serve_parts(0, own)
        except ConnectionAbortedError:
            letters.die()

    ranks = tuple(range(1, count + 1))
    # Engines are made here: models draw their parameters from one generator, which threads would share.
    threads = [threading.Thread(target=help_out, args=(rank, gradients())) for rank in ranks]
    for thread in threads:
        thread.start()
    try:
        yield HelperRanks(ranks)
    finally:
        stop_helpers([rank for rank in ranks if rank not in letters.dead])
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def silo() -> Silo:
    draws = np.random.default_rng(2)
    subjects = np.repeat(np.arange(40), 1 + np.arange(40) % 5)
    inputs = draws.normal(size=(len(subjects), 6)).astype(np.float32)
    data = SubjectData(inputs, draws.integers(3, size=len(subjects)), subjects)
    facts = SiloFacts(name="north", items=data.items, subjects=40, items_per_subject=5)
    return Silo(facts, data, spans=subjects % 2 + 1)


def network() -> nn.Module:
    return build("mlp", 6, 3, seed=1, options={"hidden": (7,)})


START = flatten(network())


def gradients() -> BookKeeping:
    return BookKeeping(network(), cross_entropy)


def with_dropout() -> BookKeeping:
    return BookKeeping(with_item_coins(nn.Sequential(*network(), nn.Dropout(0.3))), cross_entropy)


def row(name: str, **settings: Any) -> Policy:
    settings = {"rate": 0.6, "clip_norm": 0.5, "group_cap": 2 if name == "local_group_dp" else None} | settings
    return CATALOG[name].row(PolicySettings(**settings), silo().facts).with_noise(0.8)


def train(clipped_sum: ClippedSum, policy: Policy, noise: NoiseSource) -> Tensor:
    trainer = Trainer(clipped_sum=clipped_sum, noise=noise, learning_rate=0.1)
    return trainer.train(silo(), policy, START, round=3, steps=2)


ROWS = {
    "subject_dp": row("subject_dp"),
    "by span": row("subject_dp", rate=1.0, by_span=True),
    "pool = sum": row("subject_dp", pool="sum"),
    "uldp_avg": row("uldp_avg", local_steps=2, local_rate=0.05),
    **{name: row(name) for name in ("local_item_dp", "local_group_dp", "higradavg_dp", "fedavg")},
}


@pytest.mark.parametrize("policy", ROWS.values(), ids=ROWS.keys())
def test_a_release_is_the_same_to_the_last_bit_on_any_number_of_ranks(policy: Policy, letters: Letters) -> None:
    parted = PartedSum(gradients(), 3)
    alone = train(parted, policy, SeededNoise(4))
    for count in (1, 2, 4):
        with helped(letters, count, gradients) as ranks:
            assert torch.equal(train(parted.over(ranks), policy, SeededNoise(4)), alone)
    assert not torch.equal(alone, train(parted, policy, SeededNoise(5)))


def test_coins_of_dropout_reach_the_helpers(letters: Letters) -> None:
    parted = PartedSum(with_dropout(), 2)
    alone = train(parted, ROWS["local_item_dp"], SeededNoise(4))
    with helped(letters, 1, with_dropout) as ranks:
        assert torch.equal(train(parted.over(ranks), ROWS["local_item_dp"], SeededNoise(4)), alone)


@pytest.mark.parametrize("name", ["subject_dp", "local_item_dp"])
def test_secure_noise_is_drawn_once_and_by_the_rank_that_leads(
    name: str, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keys that are known, releases are the same on any number of ranks, and helpers draw none."""
    drawn: list[int] = []

    def known(size: int) -> bytes:
        drawn.append(letters.rank)
        return bytes([len(drawn)] * size)

    monkeypatch.setattr(secure_noise.secrets, "token_bytes", known)
    found = []
    for count in (0, 1, 2):
        noise = SecureNoise()
        drawn.clear()
        with helped(letters, count, gradients) as ranks:
            found.append(train(PartedSum(gradients(), 2).over(ranks), ROWS[name], noise))
        assert drawn == [0, 0]  # coins and noise
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class Fails:
    """An engine that breaks in the second step."""

    def __init__(self, error: Exception) -> None:
        self.error, self.real, self.calls = error, gradients(), 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise self.error
        return self.real(*arguments)


class OnePolicy:
    def policy_for(self, silo: str) -> Policy:
        return ROWS["subject_dp"]


def answer_with(clipped_sum: ClippedSum, round: int = 0) -> SiloUpdate | SiloFault:
    trainer = Trainer(clipped_sum=clipped_sum, noise=SeededNoise(1), learning_rate=0.1)
    engine = InProcess({"north": silo()}, OnePolicy(), trainer)  # type: ignore[arg-type]
    return engine.answer("north", RoundTask(round, ("north",), 3, START))


def test_a_helper_that_fails_is_a_fault_of_the_silo_and_helps_again(letters: Letters) -> None:
    parted = PartedSum(gradients(), 2)
    with helped(letters, 1, lambda: Fails(ModelError("no such row"))) as ranks:
        assert answer_with(parted.over(ranks)) == SiloFault("north", "PartFault")
        again = answer_with(parted.over(ranks), round=1)
    assert isinstance(again, SiloUpdate)
    assert torch.equal(again.vector, answer_with(parted, round=1).vector)


def test_a_leader_that_fails_reads_what_its_helpers_send(letters: Letters) -> None:
    """Otherwise it would take the answer of this step for that of the next."""
    parted = PartedSum(Fails(ModelError("no such row")), 2)
    with helped(letters, 1, gradients) as ranks:
        assert answer_with(parted.over(ranks)) == SiloFault("north", "ModelError")
        again = answer_with(parted.over(ranks), round=1)
    assert isinstance(again, SiloUpdate)
    assert torch.equal(again.vector, answer_with(PartedSum(gradients(), 2), round=1).vector)


def test_a_helper_that_dies_is_no_fault_of_the_silo_but_the_end_of_the_run(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise ConnectionAbortedError

    monkeypatch.setattr(silo_ranks, "_answer", die)
    with (
        helped(letters, 1, gradients) as ranks,
        pytest.raises(LostProcessError, match=r"A process of the run was lost \(Connection closed by peer\).*resume"),
    ):
        answer_with(PartedSum(gradients(), 2).over(ranks))


@pytest.mark.parametrize("silos", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_every_rank_leads_helps_or_waits(silos: int, size: int, shared: int) -> None:
    spread = RankAssignment(tuple("abcde"[:silos]), size, shared)
    leaders = range(min(silos, size))
    assert [rank for rank in range(size) if spread.leader(rank) == rank] == list(leaders)
    assert sorted(sum((spread.followers(rank) for rank in leaders), ())) == list(range(len(leaders), size))
    teams = [(rank, *spread.helpers(rank)) for rank in leaders]
    assert all(len(team) <= shared for team in teams)
    assert size - sum(map(len, teams)) == spread.idle
    assert {spread.owner(silo) for silo in spread.silos} == set(leaders)


# Real processes.

SPEC = """
seed = 3
[data]
source = "clinics"
options = { patients = 120, clinics = 2, span = 2, visits = 5 }
[silos]
partition = "uniform"
count = 1
[model]
name = "mlp"
options = { hidden = [4] }
[policy]
rate = 0.5
[privacy]
epsilon = 40.0
[rounds]
count = 3
steps = 2
"""
TWO = ("--set", "silos.count=2")
PUBLIC = ("model.start=b.safetensors", "model.train=low_rank", "model.rank=2")
LOW_RANK = tuple(part for change in PUBLIC for part in ("--set", change))
PER_ITEM = ("--set", "policy.name=local_item_dp")
LONG = ("--set", "rounds.count=30", "--ranks-per-silo", "2")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "one.toml"
    path.write_text(SPEC)
    monkeypatch.chdir(tmp_path)  # from which a path of --set counts
    write_backbone(tmp_path / "b.safetensors", features=10)
    return path


def entries(folder: Path) -> list[dict[str, object]]:
    """What was reserved and released, in order, but for the name of the run."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as database:
        bodies = [json.loads(body) for (body,) in database.execute("SELECT body FROM entries ORDER BY number")]
    return [body | {"run": ""} for body in bodies if body["kind"] in ("reserved", "released")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "options"),
    [(2, ()), (2, PER_ITEM), (2, LOW_RANK), (3, TWO), (3, (*TWO, *PER_ITEM))],
    ids=["one silo", "one silo, per item", "low rank", "two silos", "two silos, per item"],
)
def test_the_model_is_the_same_with_more_processes_than_silos(
    here, spec: Path, tmp_path: Path, processes: int, options: tuple[str, ...]
) -> None:
    options = ("--quiet", "--ranks-per-silo", "2", *options)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert here("run", spec, "--out", alone, *options)[0] == 0
    code, error = here("run", spec, "--out", shared, *options, "--engine", "distributed", "--processes", processes)
    assert (code, error) == (0, "")
    assert model(shared) == model(alone)
    assert spent(shared) == spent(alone)
    assert entries(shared) == entries(alone)
    silos = 2 if TWO[1] in options else 1
    assert [body["kind"] for body in entries(shared)].count("reserved") == 3 * silos


@pytest.mark.slow
def test_torchrun_shares_the_steps_of_a_secure_sum_too(here, spec: Path, tmp_path: Path) -> None:
    changes = ("silos.count=3", "rounds.steps=1", "rounds.averaging=subjects", "trust.model=secure_sum")
    options = ("--quiet", "--ranks-per-silo", "3", *(part for change in changes for part in ("--set", change)))
    assert here("run", spec, "--out", tmp_path / "alone", *options)[0] == 0
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "5")
    done = there("run", spec, "--out", tmp_path / "five", *options, "--engine", "distributed", launcher=torchrun)
    assert done.returncode == 0, done.stderr
    assert model(tmp_path / "five") == model(tmp_path / "alone")
    assert spent(tmp_path / "five") == spent(tmp_path / "alone")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
@pytest.mark.slow
def test_a_helper_that_is_killed_ends_the_run_with_a_sentence_and_the_run_goes_on(
    here, spec: Path, tmp_path: Path
) -> None:
    assert here("run", spec, "--out", tmp_path / "alone", "--quiet", *LONG)[0] == 0
    broken, options = tmp_path / "broken", ("--quiet", "--engine", "distributed", "--processes", 2)
    with running("run", spec, "--out", broken, *options, *LONG) as process:
        wait_until(lambda: recorded(broken) >= 3, process)
        (helper,) = children(process)
        os.kill(helper, signal.SIGKILL)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    (line,) = error.splitlines()
    assert line.startswith("error: A process of the run was lost")
    assert "`wholegrain resume`" in line
    assert 3 <= recorded(broken) < 30

    copy = shutil.copytree(broken, tmp_path / "copy")
    assert here("resume", broken, "--quiet")[0] == 0
    assert here("resume", copy, *options)[0] == 0
    assert model(broken) == model(copy) == model(tmp_path / "alone")


@pytest.mark.slow
def test_processes_that_have_nothing_to_do_are_told_of_and_end_with_the_run(
    here, spec: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--quiet", "--engine", "distributed", "--processes", 2)
    assert here("run", spec, "--out", tmp_path / "run", *options)[0] == 0
    assert "1 of 2 processes have nothing to do" in caplog.text
    assert "--ranks-per-silo 2" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ranks-per-silo", 0), "In the spec, compute.ranks_per_silo: it should be greater than or equal to 1"),
        (("--ranks-per-silo", 2, "--set", "policy.name=user_ldp"), "A policy that clips the mean of a whole batch"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(
    here, spec: Path, tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    code, error = here("run", spec, "--out", tmp_path / "run", *options)
    assert code == 2
    assert error.startswith(f"error: {said}")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()
