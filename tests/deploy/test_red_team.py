"""A server that lies, through the real message path: chosen parameters, clip norms, rates, learning rates and steps.

The attacker knows everybody's rows and asks whether one patient is among them. Two silos differ by that patient's rows
in the file. What a silo releases must not tell them apart better than the ε that its own ledger shows allows.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from deployment import as_toml, ask, charter_tree, task, write_table
from wholegrain.audit.confidence_bounds import Counts, rates, two_world_epsilon
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.client import answer, open_silo
from wholegrain.deploy.silo_service import SiloService, operator_status
from wholegrain.engines import wire
from wholegrain.gradients import ghost_norms
from wholegrain.gradients.parameters import Layout
from wholegrain.gradients.rounding import SLACK
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Trainer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import clip_fuzz

VICTIM = "p007"
MODEL = "deployment:relu_net"
NOISE = 4.0
TRIALS = 60
CONFIDENCE = 0.999


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[tuple[SiloService, SiloService]]:
    """The silo with the victim and the silo without, each with its own ledger and a budget that no attack exhausts."""
    opened = [open_silo(load_charter(_charter(tmp_path / name, gone))) for name, gone in (("in", False), ("out", True))]
    yield opened[0].__enter__(), opened[1].__enter__()
    for context in opened:
        context.__exit__(None, None, None)


def _charter(folder: Path, gone: bool) -> Path:
    folder.mkdir()
    table = write_table(folder / "visits.csv")
    if gone:
        lines = table.read_text().splitlines()
        table.write_text("\n".join(line for line in lines if not line.startswith(VICTIM)) + "\n")
    limits = {"epsilon": 1e6, "smallest_noise": NOISE, "items_per_subject": 4, "largest_clip": 1.0, "most_steps": 3}
    models = {"models": [{"name": MODEL}]}
    tree = charter_tree(limit=limits, allow=models, ledger={"data": f"visits, {folder.name}"})
    path = folder / "silo.toml"
    path.write_text(as_toml(tree))
    return path


def parameters(host: SiloService, kind: str) -> Tensor:
    """What a server may send: any finite numbers."""
    layout = Layout.of(host.agreed[0].learner.model)
    start = torch.zeros(layout.size)
    if kind.startswith("underflow"):  # huge activations, and a softmax so sure that squares of its gradients underflow
        views = list(layout.views(start).values())
        views[1].fill_(1e18)
        views[-1][int(kind[-1])] = 52.0
        return start
    draws = np.random.default_rng(int(kind))
    start.normal_(generator=torch.Generator().manual_seed(int(kind)))
    return clip_fuzz.extreme_parameters(layout, start, draws)


ATTACKS = {
    "underflow, tiny clip": ("underflow 0", 1e-11, 1e6),
    "underflow, clip 1": ("underflow 1", 1.0, 1.0),
    "extremes 1": ("1", 1e-15, 1.0),
    "extremes 2": ("2", 1.0, 1e6),
    "extremes 5": ("5", 1e-7, 1e-6),
}


def released(host: SiloService, start: Tensor, clip: float, rate: float, round: int) -> Tensor:
    """What the silo's answer says of its noisy sum, in clip norms."""
    asked = task(
        steps=1, model=MODEL, settings=PolicySettings(rate=1.0, clip_norm=clip), noise_multiplier=NOISE,
        learning_rate=rate, round=round,
    )  # fmt: skip
    reply = answer(ask(asked, start), host)
    return _sum(host, start, wire.read_vector(reply), clip, rate)


def _sum(host: SiloService, start: Tensor, update: Tensor, clip: float, rate: float) -> Tensor:
    return (start.double() - update.double()) * (host.silo.facts.subjects / (rate * clip))


class Silent:
    """Noise that is none."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def add_to(self, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None = None) -> None:
        """Only look."""
        self.sums.append(total.double().clone() / clip_norm)


class Looking(SeededNoise):
    """A source whose streams show what noise would have been added to."""

    def stream(self, round: int, silo: str) -> Silent:
        """Without any noise."""
        self.__dict__["silent"] = Silent()
        return self.__dict__["silent"]


def exact(host: SiloService, start: Tensor, clip: float, row: str = "subject_dp") -> Tensor:
    """The sum before noise, in clip norms, as an attacker who knows all rows can compute it."""
    looking = Looking(0)
    policy = find(row).row(PolicySettings(rate=1.0, clip_norm=clip), host.silo.facts).with_noise(NOISE)
    Trainer(clipped_sum=host.agreed[0].gradients, noise=looking, learning_rate=1.0).train(
        host.agreed[0].silo, policy, start, 0, 1
    )
    return looking.__dict__["silent"].sums[0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_sum_moves_by_one_clip_norm_whatever_the_server_sends(
    worlds: tuple[SiloService, SiloService], attack: str
) -> None:
    kind, clip, _ = ATTACKS[attack]
    with_victim, without = worlds
    start = parameters(with_victim, kind)
    move = exact(with_victim, start, clip) - exact(without, start, clip)
    assert float(move.norm()) <= 1 + SLACK
    visits = 4
    by_item = exact(with_victim, start, clip, "local_item_dp") - exact(without, start, clip, "local_item_dp")
    assert float(by_item.norm()) <= visits * (1 + SLACK)


def test_squares_that_underflow_would_be_found(
    worlds: tuple[SiloService, SiloService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that let a server read rows, planted again: squares as they are, of whatever size."""
    for name in ("squared_norms", "raised_squares"):
        monkeypatch.setattr(ghost_norms, name, lambda rows, more=0.0: torch.linalg.vecdot(rows, rows) + more)
    monkeypatch.setattr(ghost_norms, "raised_product", torch.mul)
    monkeypatch.setattr(ghost_norms, "MOST", math.inf)
    with_victim, without = worlds
    moves = []
    for kind in ("underflow 0", "underflow 1"):
        start = parameters(with_victim, kind)
        move = exact(with_victim, start, 1e-11, "local_item_dp") - exact(without, start, 1e-11, "local_item_dp")
        moves.append(float(move.norm()))
    assert max(moves) > 1e6


@pytest.mark.parametrize(
    "attack", [name if name == "extremes 1" else pytest.param(name, marks=pytest.mark.slow) for name in [*ATTACKS][::2]]
)
def test_what_is_measured_stays_below_what_the_ledger_says(
    worlds: tuple[SiloService, SiloService], attack: str
) -> None:
    kind, clip, rate = ATTACKS[attack]
    with_victim, without = worlds
    start = parameters(with_victim, kind)
    move = exact(with_victim, start, clip) - exact(without, start, clip)
    direction = move / max(float(move.norm()), 1e-30)
    middle = float(((exact(with_victim, start, clip) + exact(without, start, clip)) / 2) @ direction)
    ledger = None
    scores = {}
    for name, host in (("in", with_victim), ("out", without)):
        found = []
        for round in range(TRIALS):
            noisy = released(host, start, clip, rate, round)
            ledger = ledger or operator_status(host)["epsilon_spent"]  # of one round
            found.append(float(noisy.nan_to_num_(0.0, 0.0, 0.0) @ direction) - middle)
        scores[name] = np.array(found)
    counts = Counts(int((scores["in"] > 0).sum()), TRIALS, int((scores["out"] > 0).sum()), TRIALS)
    measured = two_world_epsilon(rates(counts, 1 - CONFIDENCE), 1e-5)
    assert measured <= ledger
    # A server that read rows would see sums that are longer than all clipped contributions together.
    most = with_victim.silo.data.subject_count * (1 + SLACK) + 10 * NOISE * math.sqrt(len(start))
    assert float(np.abs(scores["in"]).max()) <= most
