"""A server's spec and two silos in this process, for tests of the server's part."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict

from deployment import write_charter
from grids import FakeGrid, Node
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.silo_answers import answer, open_silo
from wholegrain.deploy.silo_service import SiloService
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.spec import RunSpec

NAMES = ("north", "south")


@contextlib.contextmanager
def two_silos(folder: Path) -> Iterator[dict[str, SiloService]]:
    """Silos of one machine, by name."""
    with contextlib.ExitStack() as stack:
        limit = {"noise": "seeded", "smallest_noise": 0.5, "epsilon": 8.0}
        charters = {name: write_charter(folder / name, silo=name, limit=limit) for name in NAMES}
        yield {name: stack.enter_context(open_silo(load_charter(path))) for name, path in charters.items()}


def node(host: SiloService) -> Node:
    def reply(message: Message) -> RecordDict:
        return answer(message, host).content

    return reply


def grid_of(hosts: dict[str, SiloService]) -> FakeGrid:
    return FakeGrid({number: node(host) for number, host in enumerate(hosts.values(), start=11)})


def spec(hosts: dict[str, SiloService], **changes: Any) -> RunSpec:
    silos = [
        {"name": name, "items": host.silo.facts.items, "subjects": 40, "items_per_subject": 4}
        for name, host in hosts.items()
    ]
    tree: dict[str, Any] = {
        "seed": 3,
        "policy": {"name": "subject_dp", "rate": 0.5},
        "privacy": {"epsilon": 4.0},
        "rounds": {"count": 3, "steps": 2},
        "federation": {"shape": [3], "classes": 2, "silos": silos, "patience": 20.0},
    }
    for section, values in changes.items():
        tree[section] = None if values is None else {**tree.get(section, {}), **values}
    return RunSpec.of(tree)


def rounds_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def reserved(ledger: Ledger) -> dict[str, int]:
    return {silo: count for run in ledger.state.runs.values() for silo, count in run.reserved.items()}
