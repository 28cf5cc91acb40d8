"""A server that lies, through the real message path: what it is refused costs nothing, what it gets was paid for.

The attacker of the first tests knows everybody's rows and asks whether one patient is among them. Two silos differ by
that patient's rows in the file. What a silo releases must not tell them apart better than the ε that its own ledger
shows allows.
"""

import math
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from deployment import as_toml, charter_tree, write_charter, write_table
from effort import amount
from red_team import Loot, MaliciousServer, chosen_parameters, line_to
from wholegrain.audit.confidence_bounds import Counts, rates, two_world_epsilon
from wholegrain.clipping import ghost_norms
from wholegrain.clipping.rounding import SLACK
from wholegrain.deploy.certificates import private_text, silo_key
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.silo_answers import open_silo
from wholegrain.deploy.silo_service import SiloService, operator_status
from wholegrain.engines import wire
from wholegrain.engines.signatures import is_signed
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.privacy import events
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.training import Trainer

VICTIM = "p007"
MODEL = "deployment:relu_net"
NOISE = 4.0
TRIALS = amount(60, quick=20)
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


ATTACKS = {
    "underflow, tiny clip": ("underflow 0", 1e-11, 1e6),
    "underflow, clip 1": ("underflow 1", 1.0, 1.0),
    "extremes 1": ("1", 1e-15, 1.0),
    "extremes 2": ("2", 1.0, 1e6),
    "extremes 5": ("5", 1e-7, 1e-6),
}


def released(host: SiloService, start: Tensor, clip: float, rate: float, round: int) -> Tensor:
    """What the silo's answer says of its noisy sum, in clip norms."""
    server = MaliciousServer(line_to(host), MODEL, len(start))
    update = server.chooses_parameters(start, clip, rate, round).vector
    assert update is not None
    return _sum(host, start, update, clip, rate)


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
    start = chosen_parameters(with_victim, kind)
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
        start = chosen_parameters(with_victim, kind)
        move = exact(with_victim, start, 1e-11, "local_item_dp") - exact(without, start, 1e-11, "local_item_dp")
        moves.append(float(move.norm()))
    assert max(moves) > 1e6


@pytest.mark.thorough
@pytest.mark.parametrize(
    "attack", [name if name == "extremes 1" else pytest.param(name, marks=pytest.mark.slow) for name in [*ATTACKS][::2]]
)
def test_what_is_measured_stays_below_what_the_ledger_says(
    worlds: tuple[SiloService, SiloService], attack: str
) -> None:
    kind, clip, rate = ATTACKS[attack]
    with_victim, without = worlds
    start = chosen_parameters(with_victim, kind)
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


# What is refused, and what is paid for.

LIMIT = 4.0
REFUSED = {
    "lowers_noise": {"limit.smallest_noise"},
    "raises_clip": {"limit.largest_clip"},
    "underflows_clip": {"message"},
    "asks_huge_rates": {"message"},
    "asks_many_steps": {"limit.most_steps"},
    "swaps_policy": {"allow.policies"},
    "swaps_model": {"allow.models"},
    "sends_wrong_sizes": {"parameters"},
    "sends_no_numbers": {"parameters"},
    "counts_on_others_noise": {"allow.trust"},
    "asks_scores": {"allow.scores"},
    "sends_oversized": {"message"},
    "sends_no_nonce": {"message"},
}


@pytest.fixture
def silo(tmp_path: Path) -> Iterator[SiloService]:
    """A silo with a key, and a budget that a few rounds use up."""
    path = write_charter(tmp_path, link={"address": "here:1", "key": "key"}, limit={"epsilon": LIMIT})
    (tmp_path / "key").write_bytes(private_text(silo_key()))
    with open_silo(load_charter(path)) as found:
        yield found


def entries(host: SiloService) -> list[tuple[Any, ...]]:
    """The ledger's file, read by somebody else."""
    assert host.ledger.path is not None
    with sqlite3.connect(host.ledger.path) as database:
        return database.execute("SELECT * FROM entries ORDER BY number").fetchall()


def releases(loot: list[Loot]) -> int:
    """How many noisy sums left the silo; no two of them are the same."""
    found = [each.vector for each in loot if each.vector is not None]
    assert len({tuple(vector.tolist()) for vector in found}) == len(found)
    return len(found)


def least_epsilon(rounds: int) -> float:
    """What so many rounds, two steps each, cost at least: as if all had been agreed on in advance."""
    return PldAccountant().epsilon(events.repeat(events.sampled_gaussian(0.5, 2.0), 2 * rounds), 1e-5)


def require_paid(host: SiloService, loot: list[Loot]) -> None:
    """Refuse a ledger that shows less than what left the silo."""
    count = releases(loot)
    assert sum(run.released.get("north", 0) for run in host.ledger.state.runs.values()) == 2 * count
    assert least_epsilon(count) <= operator_status(host)["epsilon_spent"] * (1 + 1e-6) <= LIMIT


def test_every_attack_of_the_red_team_is_played() -> None:
    """A method that returns a list of messages' answers is an attack, and is named here or in a test below."""
    returns = {name: getattr(made, "__annotations__", {}).get("return") for name, made in vars(MaliciousServer).items()}
    attacks = {name for name, found in returns.items() if found == list[Loot]}
    assert attacks == {*REFUSED, "replays", "floods", "asks_again", "drains"}


@pytest.mark.parametrize("attack", REFUSED)
def test_an_attack_that_is_refused_leaves_the_ledger_as_it_was(silo: SiloService, attack: str) -> None:
    server = MaliciousServer(line_to(silo))
    for used in (False, True):
        if used:
            assert not server.ask().rule, "what the charter allows is answered"
        before = entries(silo)
        loot = getattr(server, attack)()
        assert {each.rule for each in loot} == REFUSED[attack]
        assert all(each.vector is None for each in loot)
        assert all(set(each.reply.content) == {wire.ANSWER} for each in loot)
        assert entries(silo) == before


@pytest.mark.parametrize("attack", ["replays", "floods"])
def test_copies_of_a_round_are_one_release(silo: SiloService, attack: str) -> None:
    loot = getattr(MaliciousServer(line_to(silo)), attack)(12)
    assert [each.rule for each in loot] == ["", *["message"] * 11]
    require_paid(silo, loot)


def test_a_round_that_is_asked_again_is_another_release_until_the_budget_ends(silo: SiloService) -> None:
    loot = MaliciousServer(line_to(silo)).asks_again(12)
    assert {each.rule for each in loot} == {"", "limit.epsilon"}
    assert 1 < releases(loot) < 12
    require_paid(silo, loot)


def test_two_servers_at_once_get_no_more_than_one(silo: SiloService) -> None:
    """Each by a process's own view of the silo, over the same ledger."""

    def play(run: str) -> list[Loot]:
        with open_silo(silo.charter) as view:
            return MaliciousServer(line_to(view), run=run).drains()

    with ThreadPoolExecutor(2) as pool:
        loot = [each for taken in pool.map(play, ("one", "two")) for each in taken]
    assert {each.rule for each in loot} == {"", "limit.epsilon"}
    require_paid(silo, loot)
    before = entries(silo)
    assert MaliciousServer(line_to(silo), run="three").ask().rule == "limit.epsilon"
    assert entries(silo) == before


def test_a_server_cannot_speak_in_a_silos_name(silo: SiloService) -> None:
    assert silo.key is not None
    server, public = MaliciousServer(line_to(silo)), silo.key.public_key()
    loot, other = server.asks_again(2)
    asked = wire.request_digest(loot.asked)
    assert is_signed(public, asked, loot.reply)
    for lie in (server.forges(loot), server.alters(loot), other.reply):
        assert not is_signed(public, asked, lie)
