"""Three silos of real processes, over TLS, that train, are scored each fifth round and stop at their budgets.

Every message that reaches the server is looked at: no score is in it without its noise.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from torch import Tensor

from deployment import as_toml, charter_tree, table
from loopback import NAMES, Federation, fill_roster, free_port, training, write_tables
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.fleet_grid import FleetGrid
from wholegrain.deploy.fleet_server import open_door
from wholegrain.deploy.scaffold import FederationDraft, write_federation
from wholegrain.deploy.server import serve
from wholegrain.deploy.server_folder import open_folder
from wholegrain.deploy.silo_answers import open_silo
from wholegrain.deploy.silo_service import SiloService, spent_by_silo
from wholegrain.engines import wire
from wholegrain.errors import RunError
from wholegrain.federation.private_score import ALL
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.runs.run_folder import RunFolder
from wholegrain.silo.noise_sources import noise_source
from wholegrain.silo.score_release import STEPS, ScoreMaker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

HELD_OUT, LIMIT = 0.4, 4.5
NUMBER = re.compile(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """Three silos that hold people out, let private scores of them leave, and have secure noise."""
    (tmp_path / "home").mkdir()
    made = Federation(tmp_path, free_port(), write_tables(tmp_path / "data"))
    write_federation(FederationDraft(NAMES, "127.0.0.1", made.port), tmp_path / "federation")
    fill_roster(made)
    for name in NAMES:
        tree = charter_tree(
            silo=name,
            data={"source": "table", "table": table(str(tmp_path / "data" / f"{name}.csv"))},
            limit={"epsilon": LIMIT, "smallest_noise": 0.5, "noise": "secure"},
            sizes=dict(zip(("items", "subjects"), made.sizes[name], strict=True)),
            allow={"scores": "private"},
            held_out=HELD_OUT,
            link={"address": f"127.0.0.1:{made.port}", "certificates": "ca.crt", "key": "key"},
            ledger={"data": f"visits of {name}"},
        )
        (made.silo(name) / "silo.toml").write_text(as_toml(tree))
    with made.started():
        yield made


@dataclass
class Log:
    """What the server sent to be scored, and all that it received."""

    asked: list[Tensor] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)

    @contextlib.contextmanager
    def of(self, grid: FleetGrid) -> Iterator[None]:
        push, pull = grid.push_messages, grid.pull_messages

        def pushed(messages: list[Message]) -> Any:
            self.asked += [wire.read_vector(m) for m in messages if m.metadata.message_type == "evaluate"]
            return push(messages)

        def pulled(ids: list[str]) -> list[Message]:
            found = list(pull(ids))
            self.received += found
            return found

        grid.push_messages, grid.pull_messages = pushed, pulled  # type: ignore[method-assign,assignment]
        yield


def numbers_in(message: Message) -> set[float]:
    """Every number of a message: in its texts, and in its arrays as whatever they may be."""
    found: set[float] = set()
    for record in message.content.config_records.values():
        for value in record.values():
            found |= {float(each) for each in NUMBER.findall(str(value))}
    for record in message.content.array_records.values():
        for array in record.values():
            for kind in ("<f4", "<f8", "<i4", "<i8"):
                whole = array.data[: len(array.data) // np.dtype(kind).itemsize * np.dtype(kind).itemsize]
                found |= {float(each) for each in np.frombuffer(whole, kind)}
    return found


def raw_scores(host: SiloService, vector: Tensor) -> set[float]:
    """What a silo's people who are held out add up to, and what follows from it at once, without noise."""
    (agreed,) = host.agreed
    assert agreed.scored is not None
    maker = ScoreMaker(
        model=agreed.learner.trained, loss=agreed.loss, task=agreed.predicts, noise=noise_source("seeded", 0)
    )
    form = ScoreForm(noise_multiplier=1.0, measures=("accuracy",))
    (steps,) = maker.add_up(agreed.scored, form, vector).tolist()
    people = agreed.scored.subject_count
    total = steps / STEPS
    share = (total / people + 1) / 2
    exact = {total, share, share * people, float(np.float32(total)), float(np.float32(share)), float(steps)}
    return {each for each in exact if each != round(each)}  # whole numbers are in every message: sizes, rounds


def test_it_scores_each_fifth_round_stops_at_its_budget_and_shows_no_raw_score(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = training(14, epsilon=9.0, noise="secure")
    tree |= {
        "rounds": {**tree["rounds"], "steps": 1},
        "evaluation": {"test": HELD_OUT, "private": {"every": 5, "noise_multiplier": 6.0}},
        "federation": {"roster": "roster.toml", "shape": [3], "classes": 2, "patience": 600.0},
    }
    (federation.server / "spec.toml").write_text(as_toml(tree))
    folder, log = open_folder(federation.server), Log()
    # The plan's own ε has room for all rounds; what every silo's operator allows has not.
    with (
        open_door(replace(folder.door, port=federation.port)) as (grid, keys),
        log.of(grid),
        pytest.raises(RunError, match=r"limit\.epsilon"),
    ):
        serve(folder.spec, federation.server / "run", grid, keys)
    rounds = RunFolder.open(federation.server / "run").rounds
    played = [done.round for done in rounds if not done.failed]
    assert played == list(range(len(played)))
    assert 5 <= len(played) < 14
    assert {done.round for done in rounds if done.private} >= {4}
    assert all(set(done.private) == {ALL, *NAMES} for done in rounds if done.private)

    monkeypatch.setenv("WHOLEGRAIN_STATE", str(federation.folder / "state"))
    seen = set().union(*map(numbers_in, log.received))
    raw: set[float] = set()
    for name in NAMES:
        federation.stop(federation.silos[name])
        with open_silo(load_charter(federation.silo(name) / "silo.toml")) as host:
            (run,) = host.ledger.state.runs.values()
            assert 5 <= run.reserved[name] < 14
            assert run.scored[name] >= 1
            assert spent_by_silo(host).epsilon <= LIMIT
            for vector in log.asked:
                raw |= raw_scores(host, vector)
    assert len(raw) >= 3
    assert len(seen) > 100
    assert not raw & seen
    # What was released is there: the search would have found a score that had been sent.
    sent = [wire.read_vector(m) for m in log.received if m.metadata.message_type == "evaluate" and has_vector(m)]
    assert len(sent) >= len(NAMES)
    assert all(float(each[0]) in seen for each in sent)


def has_vector(message: Message) -> bool:
    return "refused" not in json.loads(str(message.content.config_records["answer"]["json"]))
